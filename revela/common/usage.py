"""What was spent: GPU-hours, energy and memory of a training's parts, and of all that is there.

A training writes a file a part, from each start to its end or to a kill (`trainlog.Meter`), so
that what a restart had to do again counts as well. Imports nothing heavy.
"""

import contextlib
import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError

PARTS = "parts"  # folder of a training's parts, beside its checkpoints


def energy_joules() -> float | None:
    """Return what this process's GPUs have drawn since the driver was loaded, in joules.

    None without a GPU, without the package nvidia-ml-py, or where the driver does not count.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            names = [str(n) for n in range(pynvml.nvmlDeviceGetCount())]
        else:
            names = [name for name in visible.split(",") if name]
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]
        joules = [pynvml.nvmlDeviceGetTotalEnergyConsumption(one) / 1000 for one in handles]
    except pynvml.NVMLError:
        return None
    return sum(joules) if joules else None


def joules_between(before: float | None, now: float | None) -> float | None:
    """Return the difference of two counts; None where one is missing, or the driver began anew."""
    return now - before if before is not None and now is not None and now >= before else None


def kilowatt_hours(joules: float | None) -> float | None:
    """Return joules as kilowatt-hours."""
    return None if joules is None else round(joules / 3.6e6, 4)


# ---------------------------------------------------------------------------- one training


def read_parts(work: Path) -> list[dict[str, Any]]:
    """Return the parts of a training, oldest first; one that cannot be read is left out."""
    parts = []
    for path in work.glob(f"{PARTS}/*.json"):
        with contextlib.suppress(OSError, ValueError):
            parts.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(parts, key=lambda part: part["started"])


def spent(work: Path) -> dict[str, Any]:
    """Return what a training has cost so far over all its starts, for its manifest.

    Returns:
        starts, hours (of the clock, while it ran), GPUs of the last start, GPU-hours,
        kilowatt-hours (None unless every part knows), peak GPU memory in GB.
    """
    parts = read_parts(work)
    starts: list[tuple[float, float]] = []
    for part in parts:  # the nodes of one start overlap
        if starts and part["started"] < starts[-1][1]:
            starts[-1] = (starts[-1][0], max(starts[-1][1], part["seen"]))
        else:
            starts.append((part["started"], part["seen"]))
    last = [part for part in parts if starts and part["started"] >= starts[-1][0]]
    joules = [part["joules"] for part in parts]
    peaks = [part["peak_gpu_memory_gb"] for part in parts if part["peak_gpu_memory_gb"]]
    hours = sum((part["seen"] - part["started"]) * part["gpus"] for part in parts) / 3600
    known = bool(joules) and None not in joules
    return {
        "starts": len(starts),
        "hours": round(sum(end - start for start, end in starts) / 3600, 4),
        "gpus": sum(part["gpus"] for part in last),
        "gpu": last[-1]["gpu"] if last else None,
        "gpu_hours": round(hours, 4),
        "kilowatt_hours": kilowatt_hours(sum(joules)) if known else None,
        "peak_gpu_memory_gb": max(peaks, default=None),
    }


# ---------------------------------------------------------------------------- everything

COLUMNS = [
    "name",
    "gpu",
    "gpus",
    "starts",
    "training_hours",
    "training_gpu_hours",
    "evaluation_gpu_hours",
    "kilowatt_hours",
    "peak_gpu_memory_gb",
    "peak_memory_gb",
    "paper_gpu_hours",
]


def usage_rows(results: Path, paper: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each model that has a manifest of a training or an evaluation, then the sum.

    Args:
        results: the folder with `models/` and `scores/`.
        paper: a CSV of what the paper reports: data, objective, hours, gpus.

    Raises:
        RevelaError: a manifest cannot be read.
    """
    reported = _reported(paper) if paper else {}
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("models/*/manifest.json")):
        found = _read(path)
        told = found["settings"]
        trained = (told.get("data"), (told.get("objective") or {}).get("name"))
        rows[path.parent.name] = {
            "name": path.parent.name,
            **{key: found.get(key) for key in ("gpu", "gpus", "starts", "kilowatt_hours")},
            "training_hours": found.get("hours"),
            "training_gpu_hours": found.get("gpu_hours"),
            "peak_gpu_memory_gb": found.get("peak_gpu_memory_gb"),
            "peak_memory_gb": found.get("peak_memory_gb"),
            "paper_gpu_hours": reported.get(trained),
        }
    evaluations = defaultdict(list)
    for path in sorted(results.glob("scores/*/*.manifest.json")):
        evaluations[path.parent.name].append(_read(path))
    for name, made in evaluations.items():
        row = rows.setdefault(name, {"name": name})
        row["evaluation_gpu_hours"] = _sum(one.get("gpu_hours") for one in made)
        # Of both; known only where each step knows its own.
        energies = [one.get("kilowatt_hours") for one in made]
        energies += [row.get("kilowatt_hours")] if "training_hours" in row else []
        row["kilowatt_hours"] = None if None in energies else _sum(energies)
        for key in ("peak_gpu_memory_gb", "peak_memory_gb"):
            peaks = [float(one[key]) for one in [row, *made] if one.get(key)]
            row[key] = max(peaks, default=None)
    ordered = [{key: row.get(key) for key in COLUMNS} for row in rows.values()]
    summed = ("training_hours", "training_gpu_hours", "evaluation_gpu_hours", "kilowatt_hours")
    total = dict.fromkeys(COLUMNS) | {"name": "total"}
    return [*ordered, total | {key: _sum(row[key] for row in ordered) for key in summed}]


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV, what is not known left empty."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    lines.writeheader()
    lines.writerows({key: _shown(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table with a note on the paper's figures."""
    lines = [[key.replace("_", " ").replace("gpu", "GPU") for key in COLUMNS]]
    lines += [[_shown(row[key]) or "–" for key in COLUMNS] for row in rows]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    rule = f"|---|---|{'---:|' * (len(COLUMNS) - 2)}"
    note = (
        "Of the manifests that are there; energy where the driver tells it of every step. The "
        "paper's figures are one a corpus, of 4 A100 80 GB, for no stated model size."
    )
    return "\n".join([head, rule, *body, "", note, ""])


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 4) if known else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RevelaError(f"{path}: cannot be read: {error}") from error


def _reported(path: Path) -> dict[tuple[Any, Any], float]:
    """Return the reported GPU-hours by data and objective."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return {
                (row["data"], row["objective"]): float(row["hours"]) * int(row["gpus"])
                for row in csv.DictReader(stream)
            }
    except (OSError, KeyError, ValueError) as error:
        raise RevelaError(f"{path}: expected columns data, objective, hours, gpus") from error
