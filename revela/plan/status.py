"""What is running and what is done, read from files alone: from any machine that sees them.

Imports nothing heavy, so that it answers at once.
"""

import contextlib
import json
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revela.common.usage import read_parts, spent

_QUIET = 300  # seconds without a sign of life, or so many steps, until a training is given up
_QUIET_STEPS = 10
_LAST_LINES = 64 * 1024  # bytes of a log that are read
_STEPS_AVERAGED = 50


@dataclass(frozen=True)
class Training:
    """How a training stands; None where its files do not tell."""

    name: str
    state: str  # done, running, stopped, stalled
    step: int | None = None
    last_step: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    checkpoint: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    seen: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is under way or was interrupted: the shards that it has made."""

    model: str
    task: str
    shards: int
    seen: float


def trainings(results: Path, now: float) -> list[Training]:
    """Return all trainings of a results folder, those that are not done last.

    Args:
        results: the folder with `models/`.
        now: seconds since 1970.
    """
    done, others = [], []
    for folder in sorted(results.glob("models/*")):
        # A retriever that is being trained afresh leaves its manifest until it is done.
        if (folder / "manifest.json").exists():
            done.append(_finished(folder))
        works = [path for path in folder.glob("checkpoints/*") if path.is_dir()]
        if works:
            others.append(_unfinished(folder.name, max(works, key=_last_sign), now))
    return done + others


def _finished(folder: Path) -> Training:
    manifest, lines = _json(folder / "manifest.json"), _last_lines(folder / "log.jsonl")
    losses = [line["loss"] for line in lines if "loss" in line]
    steps = manifest.get("steps")
    return Training(
        folder.name,
        "done",
        step=steps,
        last_step=steps,
        loss=losses[-1] if losses else None,
        tokens_per_second=manifest.get("tokens_per_second"),
        hours=manifest.get("hours", manifest.get("seconds", 0) / 3600),
        gpu_hours=manifest.get("gpu_hours"),
        seen=(folder / "manifest.json").stat().st_mtime,
    )


def _unfinished(name: str, work: Path, now: float) -> Training:
    lines = [line for line in _last_lines(work / "log.jsonl") if "loss" in line]
    parts = read_parts(work)
    step = lines[-1]["step"] if lines else 0
    last_step = parts[-1]["last_step"] if parts else None
    each = None
    if parts:  # of this start: an earlier one may have had other GPUs
        made = parts[-1]["step"] - parts[-1]["first_step"]
        each = (parts[-1]["seen"] - parts[-1]["began"]) / made if made > 0 else None
    seen = _last_sign(work)
    quiet = now - seen > max(_QUIET, _QUIET_STEPS * (each or 0))
    ended = bool(parts) and (parts[-1]["ended"] or _gone(parts[-1]))
    cost = spent(work)
    return Training(
        name,
        "stopped" if ended else "stalled" if quiet else "running",
        step=step,
        last_step=last_step,
        loss=lines[-1]["loss"] if lines else None,
        tokens_per_second=_speed(lines),
        seconds_left=each * (last_step - step) if each and last_step else None,
        checkpoint=max((_step(path.parent) for path in work.glob("*/complete.json")), default=None),
        hours=cost["hours"],
        gpu_hours=cost["gpu_hours"],
        seen=seen,
    )


def _gone(part: dict[str, Any]) -> bool:
    """Tell whether the process of a part was killed, which only its own machine knows."""
    own = part["host"] == socket.gethostname()
    return own and not Path(f"/proc/{part['process']}").exists()


def _speed(lines: list[dict[str, Any]]) -> float | None:
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    recent = sorted(rates[-_STEPS_AVERAGED:])
    return recent[len(recent) // 2] if recent else None


def _last_sign(work: Path) -> float:
    """Return when a training last wrote anything."""
    files = [work, work / "log.jsonl", *work.glob("parts/*.json"), *work.glob("*/complete.json")]
    return max(path.stat().st_mtime for path in files if path.exists())


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def evaluations(results: Path) -> list[Evaluation]:
    """Return the evaluations whose embeddings are there: under way, or interrupted."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in results.glob("embeddings/*/*/*/*.safetensors"):
        found.setdefault((path.parts[-4], path.parts[-3]), []).append(path)
    return [
        Evaluation(model, task, len(shards), max(shard.stat().st_mtime for shard in shards))
        for (model, task), shards in sorted(found.items())
    ]


def show(results: Path) -> None:
    """Print how trainings and evaluations stand."""
    from rich.console import Console
    from rich.table import Table

    now, console = time.time(), Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Trainings")
    for heading in ("Model", "State", "Step", "Loss", "Tokens/s", "Left", "Checkpoint", "Hours",
                    "GPU-hours", "Last sign"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("Model", "State") else "right")
    colours = {"done": "green", "running": "cyan", "stopped": "yellow", "stalled": "red"}
    found = trainings(results, now)
    for one in found:
        table.add_row(
            one.name,
            f"[{colours[one.state]}]{one.state}[/]",
            f"{_number(one.step)}/{_number(one.last_step)}",
            "–" if one.loss is None else f"{one.loss:.4f}",
            _number(one.tokens_per_second),
            "–" if one.seconds_left is None else _duration(one.seconds_left),
            _number(one.checkpoint),
            "–" if one.hours is None else f"{one.hours:.2f}",
            "–" if one.gpu_hours is None else f"{one.gpu_hours:.2f}",
            "–" if one.seen is None else f"{_duration(now - one.seen)} ago",
        )
    if found:
        console.print(table)
    under_way = evaluations(results)
    if under_way:
        table = Table(title="Evaluations under way")
        for heading in ("Model", "Task", "Shards", "Last one"):
            table.add_column(heading, justify="left" if heading in ("Model", "Task") else "right")
        for one_of in under_way:
            ago = f"{_duration(now - one_of.seen)} ago"
            table.add_row(one_of.model, one_of.task, str(one_of.shards), ago)
        console.print(table)
    counts = {
        "chunk files": "chunks/*.parquet",
        "batch sets": "batches/*.parquet",
        "sets of pairs": "pairs/*.parquet",
        "scores": "scores/*/*.manifest.json",
        "tables": "tables/*.csv",
    }
    made = {what: len(list(results.glob(pattern))) for what, pattern in counts.items()}
    told = ", ".join(f"{count} {what}" for what, count in made.items() if count)
    console.print(f"{results}: {told or 'nothing is done yet'}", highlight=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 48:
        return f"{hours // 24:.0f} d {hours % 24:.0f} h"
    if hours:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    return f"{minutes:.0f} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return {}


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """Return the last lines of a log; one that is being written is left out."""
    lines = []
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LAST_LINES))
        for line in stream.read().splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]
