"""How trainings and evaluations stand, printed as tables."""

import time
from pathlib import Path
from typing import Any

from revela.plan.records import Training, evaluations, trainings
from revela.plan.show import show_table

_MADE = {
    "chunk files": "chunks/*.parquet",
    "batch sets": "batches/*.parquet",
    "sets of pairs": "pairs/*.parquet",
    "scores": "scores/*/*.manifest.json",
    "tables": "tables/*.csv",
}


def show(results: Path) -> None:
    """Print how trainings and evaluations stand, and how many files of each kind there are."""
    now = time.time()
    show_table("Trainings", [_row(one, now) for one in trainings(results, now)])
    under_way = [
        {"model": one.model, "task": one.task, "shards": one.shards, "last": _ago(now, one.seen)}
        for one in evaluations(results)
        if one.manifest is None
    ]
    show_table("Evaluations under way", under_way)
    counts = {what: len(list(results.glob(pattern))) for what, pattern in _MADE.items()}
    made = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    print(f"{results}: {made or 'nothing is done yet'}")


def _row(one: Training, now: float) -> dict[str, Any]:
    return {
        "model": one.name,
        "state": one.state,
        "step": one.step,
        "of": one.last_step,
        "loss": one.loss,
        "tokens/s": one.tokens_per_second,
        "left": None if one.seconds_left is None else _duration(one.seconds_left),
        "checkpoint": one.checkpoint,
        "hours": one.hours,
        "GPU-hours": one.gpu_hours,
        "last sign": _ago(now, one.seen),
    }


def _ago(now: float, seen: float) -> str:
    return f"{_duration(now - seen)} ago"


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 48:
        return f"{hours // 24:.0f} d {hours % 24:.0f} h"
    if hours:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    return f"{minutes:.0f} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"
