"""What was spent: GPU-hours, energy and memory of the trainings and evaluations that are done."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from revela.common.errors import reading
from revela.common.outputs import read_json
from revela.report.render import MISSING, markdown

_PEAKS = ("peak_gpu_memory_gb", "peak_memory_gb")
_SUMS = ("training_hours", "training_gpu_hours", "evaluation_gpu_hours", "kilowatt_hours")
_COLUMNS = ["name", "gpu", "gpus", "starts", *_SUMS, *_PEAKS, "paper_gpu_hours"]
_NOTE = (
    "Of the manifests that are there; energy where the driver counts it for every step. The "
    "paper's figures are one a corpus, of 4 A100 80 GB, for no stated model size."
)


def training_manifests(results: Path) -> dict[str, dict[str, Any]]:
    """Return the manifest of each training that is done, by its name."""
    found = sorted(results.glob("models/*/manifest.json"))
    return {path.parent.name: read_json(path) for path in found}


def reported_hours(path: Path) -> dict[tuple[Any, Any], float]:
    """Return the reported GPU-hours by data and objective."""
    what = "a CSV of data, objective, hours, gpus"
    with reading(path, what), path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        if not rows.fieldnames:
            raise ValueError("it is empty")
        return {
            (row["data"], row["objective"]): float(row["hours"]) * int(row["gpus"]) for row in rows
        }


def usage_rows(results: Path, paper: Path | None = None) -> list[dict[str, str]]:
    """Return a row for each model that has a manifest of a training or an evaluation, then the sum.

    `paper` is a CSV of what the paper reports: data, objective, hours, gpus.

    Raises:
        RevelaError: a manifest or the CSV cannot be read.
    """
    reported = reported_hours(paper) if paper else {}
    trained, evaluated = training_manifests(results), defaultdict(list)
    for path in sorted(results.glob("scores/*/*.manifest.json")):
        evaluated[path.parent.name].append(read_json(path))
    rows = []
    for name in trained | evaluated:
        own = trained.get(name, {})
        every = [one for one in (own, *evaluated[name]) if one]
        settings = own.get("settings", {})
        data_and_objective = settings.get("data"), (settings.get("objective") or {}).get("name")
        energies = [one.get("kilowatt_hours") for one in every]
        row: dict[str, Any] = {
            "name": name,
            **{key: own.get(key) for key in ("gpu", "gpus", "starts")},
            "training_hours": own.get("hours"),
            "training_gpu_hours": own.get("gpu_hours"),
            "evaluation_gpu_hours": _sum(one.get("gpu_hours") for one in evaluated[name]),
            # Known only where each step knows its own.
            "kilowatt_hours": None if None in energies else _sum(energies),
            "paper_gpu_hours": reported.get(data_and_objective),
        }
        for key in _PEAKS:
            row[key] = max((float(one[key]) for one in every if one.get(key)), default=None)
        rows.append(row)
    total = {"name": "total"} | {key: _sum(row[key] for row in rows) for key in _SUMS}
    return [{key: _cell(row.get(key)) for key in _COLUMNS} for row in [*rows, total]]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 4) if known else None


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def to_csv(rows: list[dict[str, str]]) -> str:
    """Return the rows as CSV, what is not known left empty."""
    text = io.StringIO()
    lines = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)
    return text.getvalue()


def to_markdown(rows: list[dict[str, str]]) -> str:
    """Return the rows as a Markdown table with a note on the paper's figures."""
    headings = {key: key.replace("_", " ").replace("gpu", "GPU") for key in _COLUMNS}
    texts = [{headings[key]: text or MISSING for key, text in row.items()} for row in rows]
    return markdown(texts, notes=[_NOTE])
