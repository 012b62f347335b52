"""The state of trainings and evaluations, from their manifests, logs, locks and shards.

Imports nothing heavy, so that `revela status` is fast.
"""

import contextlib
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from glob import iglob
from pathlib import Path
from typing import Annotated, Any

import typer

from revela.common.errors import RevelaError
from revela.common.locks import is_locked
from revela.common.outputs import check_ours, read_json, remove

_TAIL = 64 * 1024  # bytes read from the end of a log
_STEPS_AVERAGED = 50
_ERROR = re.compile(r"^revela: error: (?!stopped by )|^[\w.]+(Error|Exception)\b")
_MADE = {
    "chunk files": "chunks/*.parquet",
    "batch sets": "batches/*.parquet",
    "sets of pairs": "pairs/*.parquet",
    "scores": "scores/*/*.manifest.json",
    "tables": "tables/*.tex",  # analyses of tables have none
}

_COLOURS = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}
_COLUMNS = ["model", "state", "step", "of", "loss", "tokens/s", "left", "checkpoint", "hours"]
_COLUMNS += ["GPU-hours", "last sign"]

Results = Annotated[Path, typer.Argument(exists=True, file_okay=False)]


def show(results: Results = Path("results")) -> None:
    """Show the state of all trainings and evaluations, failed jobs and the results so far."""
    now, failed = time.time(), failures(results)
    rows = trainings(results, now)
    unfinished = [row for row in rows if row["state"] != "done"]
    for row in unfinished:
        if f"train {row['model']}" in failed:
            row["state"] = "failed"
    show_table("Trainings", rows)
    show_table("Unfinished evaluations", evaluations_under_way(results, now))
    show_table("Failed", [{"job": job, "why": why} for job, why in failed.items()])
    for row in unfinished:
        work = results / "models" / row["model"] / "checkpoints"
        print(f"{work}: {_size(work) / 1e9:.1f} GB; `revela clean {row['model']}` removes them")
    counts = {what: len(list(results.glob(pattern))) for what, pattern in _MADE.items()}
    made = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    print(f"{results}: {made or 'no results yet'}")


def show_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under the keys of the first one, numbers right-aligned; nothing if empty."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        numbers = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = map(_cell, row.values())
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours = minutes // 60
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def trainings(results: Path, now: float) -> list[dict[str, Any]]:
    """Return a row for each training, unfinished ones last; unknown values are None.

    Raises:
        RevelaError: a manifest cannot be read.
    """
    done, others = [], []
    for folder in sorted(results.glob("models/*")):
        # A retriever that is being retrained keeps its manifest until it is done.
        if (folder / "manifest.json").exists():
            done.append(_finished(folder, now))
        works = [path for path in folder.glob("checkpoints/*") if path.is_dir()]
        if works:
            others.append(_unfinished(folder.name, max(works, key=_last_sign), now))
    return done + others


def failures(results: Path) -> dict[str, str]:
    """Return the last log line of each failed job: `train x` → line."""
    logs = results / "logs"
    lines = {log: last_line(log) for log in sorted(logs.rglob("*.log"))}
    return {
        " ".join(log.relative_to(logs).with_suffix("").parts): line
        for log, line in lines.items()
        if _ERROR.search(line)
    }


def last_line(log: Path) -> str:
    """Return the last non-blank line of a log."""
    return next((line.strip() for line in reversed(_tail(log)) if line.strip()), "")


def reason(log: Path) -> str:
    """Return why a job failed, by the last line of its log."""
    line = last_line(log)
    if line == "revela: interrupted":
        return "interrupted; the same command resumes"
    if line.startswith("revela: error: ") or _ERROR.search(line):
        return line
    return f"no error message, perhaps killed; last: {line}" if line else "perhaps killed"


def clean(results: Path, model: str) -> int:
    """Remove the files of an unfinished training or evaluation; return their size in bytes.

    Raises:
        RevelaError: there are none, it is running, or a file of others is among them.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.@-]*", model, re.ASCII):
        raise RevelaError(f"{model!r}: not the name of an experiment or model")
    left = [results / "models" / model / name for name in ("checkpoints", "retriever-unchecked")]
    shards = results / "shards" / model
    folders = [folder for folder in (*left, shards) if folder.is_dir()]
    if not folders:
        raise RevelaError(f"{results}: no checkpoints and no shards of {model!r}")
    # A training that saves and checks its model after the last step has its lock still.
    if any(map(is_locked, folders)):
        raise RevelaError(f"{model!r} is running")
    size = sum(map(_size, folders))
    check_ours(*folders)
    for folder in folders:
        remove(folder)
    return size


def _size(folder: Path) -> int:
    # Unlike `rglob`, which fails if a folder disappears meanwhile.
    return sum(_stat(folder / name)[0] for name in iglob("**", root_dir=folder, recursive=True))


def _stat(path: Path) -> tuple[int, float]:
    """Return a file's size and time, zeros if a running job has just removed it."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size, status.st_mtime
    return 0, 0


def evaluations_under_way(results: Path, now: float) -> list[dict[str, Any]]:
    """Return a row for each running or interrupted evaluation, with its shards so far."""
    seen = defaultdict(list)
    for path in results.glob("shards/*/*/*/*.safetensors"):
        model, work = path.parts[-4:-2]
        seen[model, work.removeprefix(f"{model}-")].append(_stat(path)[1])
    return [
        {"model": model, "task": task, "shards": len(times), "last": _ago(now, max(times))}
        for (model, task), times in sorted(seen.items())
    ]


def _finished(folder: Path, now: float) -> dict[str, Any]:
    path = folder / "manifest.json"
    manifest, lines = read_json(path), _last_steps(folder / "log.jsonl")
    return dict.fromkeys(_COLUMNS) | {
        "model": folder.name,
        "state": "done",
        "step": manifest.get("steps"),
        "of": manifest.get("steps"),
        "loss": lines[-1]["loss"] if lines else None,
        "tokens/s": manifest.get("tokens_per_second"),
        "hours": manifest.get("hours"),
        "GPU-hours": manifest.get("gpu_hours"),
        "last sign": _ago(now, path.stat().st_mtime),
    }


def under_way(folder: Path, since: float) -> tuple[int, int, float] | None:
    """Return the last step of a training, of how many, and the seconds left.

    None if it has not made a step since a time in seconds since the epoch.
    """
    with contextlib.suppress(FileNotFoundError):  # the training has just ended
        for log in folder.glob("checkpoints/*/log.jsonl"):
            lines = _last_steps(log) if _stat(log)[1] > since else []
            if (left := _seconds_left(lines)) is not None:
                return lines[-1]["step"], lines[-1]["of"], left
    return None


def _seconds_left(lines: list[dict[str, Any]]) -> float | None:
    times = [line["seconds"] for line in lines[-_STEPS_AVERAGED:] if "seconds" in line]
    if not times or not lines[-1].get("of"):
        return None
    return float(statistics.median_high(times) * (lines[-1]["of"] - lines[-1]["step"]))


def _unfinished(name: str, work: Path, now: float) -> dict[str, Any]:
    lines = _last_steps(work / "log.jsonl")
    last = lines[-1] if lines else {}
    recent = lines[-_STEPS_AVERAGED:]
    rates = [line["tokens_per_second"] for line in recent if "tokens_per_second" in line]
    left = _seconds_left(lines)
    saved = [int(file.parent.name.rpartition("-")[2]) for file in work.glob("*/complete.json")]
    return dict.fromkeys(_COLUMNS) | {
        "model": name,
        "state": "running" if is_locked(work.parent) else "stopped",
        "step": last.get("step", 0),
        "of": last.get("of"),
        "loss": last.get("loss"),
        "tokens/s": statistics.median_high(rates) if rates else None,
        "left": duration(left) if left is not None else None,
        "checkpoint": max(saved, default=None),
        "last sign": _ago(now, _last_sign(work)),
    }


def _last_sign(work: Path) -> float:
    files = [work, work / "log.jsonl", *work.glob("*/complete.json")]
    return max(_stat(file)[1] for file in files)


def _last_steps(log: Path) -> list[dict[str, Any]]:
    """Return the last lines with a loss of a training's log, except truncated ones."""
    steps = []
    for line in _tail(log) if log.exists() else ():
        with contextlib.suppress(ValueError):
            steps.append(json.loads(line))
    return [step for step in steps if isinstance(step, dict) and "loss" in step]


def _tail(log: Path) -> list[str]:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        return re.split(r"[\r\n]", stream.read().decode(errors="replace"))  # \r: progress bars


def _ago(now: float, seen: float) -> str:
    return f"{duration(now - seen)} ago"
