"""What was spent: GPU-hours, energy and memory of the trainings and evaluations that are done."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError
from revela.plan.records import Manifest, evaluations, trainings
from revela.report.render import MISSING, markdown

_PEAKS = ("peak_gpu_memory_gb", "peak_memory_gb")
_SUMS = ("training_hours", "training_gpu_hours", "evaluation_gpu_hours", "kilowatt_hours")
COLUMNS = ["name", "gpu", "gpus", "starts", *_SUMS, *_PEAKS, "paper_gpu_hours"]
_NOTE = (
    "Of the manifests that are there; energy where the driver counts it for every step. The "
    "paper's figures are one a corpus, of 4 A100 80 GB, for no stated model size."
)


def usage_rows(results: Path, paper: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each model that has a manifest of a training or an evaluation, then the sum.

    Args:
        results: the folder with `models/` and `scores/`.
        paper: a CSV of what the paper reports: data, objective, hours, gpus.

    Raises:
        RevelaError: a manifest or the CSV cannot be read.
    """
    reported = reported_hours(paper) if paper else {}
    trained = {one.name: one.manifest for one in trainings(results, 0) if one.state == "done"}
    evaluated: dict[str, list[Manifest]] = defaultdict(list)
    for one in evaluations(results):
        if one.manifest is not None:
            evaluated[one.model].append(one.manifest)
    names = [*trained, *(name for name in evaluated if name not in trained)]
    rows = [_row(name, trained.get(name), evaluated[name], reported) for name in names]
    total = dict.fromkeys(COLUMNS) | {"name": "total"}
    return [*rows, total | {key: _sum(row[key] for row in rows) for key in _SUMS}]


def _row(
    name: str,
    training: Manifest | None,
    evaluated: list[Manifest],
    reported: dict[tuple[Any, Any], float],
) -> dict[str, Any]:
    every = [*([training] if training else []), *evaluated]
    energies = [one.get("kilowatt_hours") for one in every]
    own = training or {}
    settings = own.get("settings", {})
    kind = (settings.get("data"), (settings.get("objective") or {}).get("name"))
    peaks = {key: [float(one[key]) for one in every if one.get(key)] for key in _PEAKS}
    return {
        "name": name,
        **{key: own.get(key) for key in ("gpu", "gpus", "starts")},
        "training_hours": own.get("hours"),
        "training_gpu_hours": own.get("gpu_hours"),
        "evaluation_gpu_hours": _sum(one.get("gpu_hours") for one in evaluated),
        # Known only where each step knows its own.
        "kilowatt_hours": None if None in energies else _sum(energies),
        **{key: max(values, default=None) for key, values in peaks.items()},
        "paper_gpu_hours": reported.get(kind) if training else None,
    }


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV, what is not known left empty."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    lines.writeheader()
    lines.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table with a note on the paper's figures."""
    headings = {key: key.replace("_", " ").replace("gpu", "GPU") for key in COLUMNS}
    texts = [{headings[key]: _cell(value) or MISSING for key, value in row.items()} for row in rows]
    return markdown(texts, notes=[_NOTE])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 4) if known else None


def reported_hours(path: Path) -> dict[tuple[Any, Any], float]:
    """Return the reported GPU-hours by data and objective."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return {
                (row["data"], row["objective"]): float(row["hours"]) * int(row["gpus"])
                for row in csv.DictReader(stream)
            }
    except (OSError, KeyError, ValueError) as error:
        raise RevelaError(f"{path}: expected columns data, objective, hours, gpus") from error
