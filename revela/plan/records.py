"""The records of trainings and evaluations: manifests, logs, starts, shards; from files alone.

Imports nothing heavy, so that the commands that read them answer at once.
"""

import contextlib
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError
from revela.common.usage import read_segments, spent

_QUIET = 300  # seconds without a sign of life, or so many steps, until a training has stalled
_QUIET_STEPS = 10
_LAST_LINES = 64 * 1024  # bytes of a log that are read
_STEPS_AVERAGED = 50

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """How a training stands; None where its files do not say."""

    name: str
    state: str  # done, running, stopped, stalled
    seen: float  # when it last wrote anything
    step: int | None = None
    last_step: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    checkpoint: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    manifest: Manifest = field(default_factory=dict)  # of one that is done


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: its manifest once it is done, till then the shards that it has made."""

    model: str
    task: str
    seen: float
    manifest: Manifest | None = None
    shards: int = 0


def trainings(results: Path, now: float) -> list[Training]:
    """Return all trainings of a results folder, those that are not done last.

    Args:
        results: the folder with `models/`.
        now: seconds since 1970.

    Raises:
        RevelaError: a manifest cannot be read.
    """
    done, others = [], []
    for folder in sorted(results.glob("models/*")):
        # A retriever that is being trained afresh keeps its manifest until it is done.
        if (folder / "manifest.json").exists():
            done.append(_finished(folder))
        works = [path for path in folder.glob("checkpoints/*") if path.is_dir()]
        if works:
            others.append(_unfinished(folder.name, max(works, key=_last_sign), now))
    return done + others


def evaluations(results: Path) -> list[Evaluation]:
    """Return the evaluations that are done, then those under way or interrupted.

    Raises:
        RevelaError: a manifest cannot be read.
    """
    done = [
        Evaluation(path.parent.name, path.name.removesuffix(".manifest.json"),
                   path.stat().st_mtime, _manifest(path))
        for path in sorted(results.glob("scores/*/*.manifest.json"))
    ]  # fmt: skip
    shards: dict[tuple[str, str], list[float]] = {}
    for path in results.glob("shards/*/*/*/*.safetensors"):
        shards.setdefault((path.parts[-4], path.parts[-3]), []).append(path.stat().st_mtime)
    return done + [
        Evaluation(model, task, max(seen), shards=len(seen))
        for (model, task), seen in sorted(shards.items())
    ]


def _finished(folder: Path) -> Training:
    path = folder / "manifest.json"
    manifest, lines = _manifest(path), _last_lines(folder / "log.jsonl")
    return Training(
        folder.name,
        "done",
        path.stat().st_mtime,
        step=manifest.get("steps"),
        last_step=manifest.get("steps"),
        loss=next((line["loss"] for line in reversed(lines) if "loss" in line), None),
        tokens_per_second=manifest.get("tokens_per_second"),
        hours=manifest.get("hours", manifest.get("seconds", 0) / 3600),
        gpu_hours=manifest.get("gpu_hours"),
        manifest=manifest,
    )


def _unfinished(name: str, work: Path, now: float) -> Training:
    lines = [line for line in _last_lines(work / "log.jsonl") if "loss" in line]
    segments = read_segments(work)
    step = lines[-1]["step"] if lines else 0
    last_step = segments[-1]["last_step"] if segments else None
    each = None
    if segments:  # of this start: an earlier one may have had other GPUs
        made = segments[-1]["step"] - segments[-1]["first_step"]
        each = (segments[-1]["seen"] - segments[-1]["began"]) / made if made > 0 else None
    seen = _last_sign(work)
    quiet = now - seen > max(_QUIET, _QUIET_STEPS * (each or 0))
    ended = bool(segments) and (segments[-1]["ended"] or _gone(segments[-1]))
    cost = spent(work)
    return Training(
        name,
        "stopped" if ended else "stalled" if quiet else "running",
        seen,
        step=step,
        last_step=last_step,
        loss=lines[-1]["loss"] if lines else None,
        tokens_per_second=_speed(lines),
        seconds_left=each * (last_step - step) if each and last_step else None,
        checkpoint=max((_step(path.parent) for path in work.glob("*/complete.json")), default=None),
        hours=cost["hours"],
        gpu_hours=cost["gpu_hours"],
    )


def _gone(segment: dict[str, Any]) -> bool:
    """Return whether the process of a segment was killed, which only its own machine knows."""
    own = segment["host"] == socket.gethostname()
    return own and not Path(f"/proc/{segment['process']}").exists()


def _speed(lines: list[dict[str, Any]]) -> float | None:
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    recent = sorted(rates[-_STEPS_AVERAGED:])
    return recent[len(recent) // 2] if recent else None


def _last_sign(work: Path) -> float:
    """Return when a training last wrote anything."""
    files = [work, work / "log.jsonl", *work.glob("segments/*.json"), *work.glob("*/complete.json")]
    return max(path.stat().st_mtime for path in files if path.exists())


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _manifest(path: Path) -> Manifest:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RevelaError(f"{path}: cannot be read: {error}") from error


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """Return the last lines of a log; one that is being written is left out."""
    lines = []
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LAST_LINES))
        for line in stream.read().splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]
