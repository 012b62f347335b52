"""GPU-hours, energy and memory of finished trainings and evaluations."""

from pathlib import Path
from typing import Any

import pandas as pd

from revela.common.errors import reading
from revela.common.outputs import read_json
from revela.report.render import MISSING, markdown

_SUMS = ["training_hours", "training_gpu_hours", "evaluation_gpu_hours", "kilowatt_hours"]
_PEAKS = ["peak_gpu_memory_gb", "peak_memory_gb"]
_COLUMNS = ["gpu", "gpus", "starts", *_SUMS, *_PEAKS, "paper_gpu_hours"]
_NOTE = (
    "From the existing manifests; energy if the driver measures it for every step. The "
    "paper's figures are one per corpus, on 4 A100 80 GB, for an unstated model size."
)


def training_manifests(results: Path) -> dict[str, dict[str, Any]]:
    """Return the manifests of finished trainings by name."""
    found = sorted(results.glob("models/*/manifest.json"))
    return {path.parent.name: read_json(path) for path in found}


def reported_hours(path: Path) -> dict[tuple[Any, Any], float]:
    """Return the reported GPU-hours by data and objective."""
    columns = {"data": str, "objective": str, "hours": float, "gpus": int}
    with reading(path, f"a CSV of {', '.join(columns)}"):
        hours = pd.read_csv(path, dtype=columns, usecols=list(columns), na_filter=False)
        return hours.set_index(["data", "objective"]).prod(axis=1).to_dict()


def summed(results: Path, paper: Path | None = None) -> pd.DataFrame:
    """Return a row for each model with a manifest of a training or evaluation, then the sum.

    `paper` is a CSV of the paper's figures: data, objective, hours, gpus.

    Raises:
        RevelaError: a manifest or the CSV cannot be read.
    """
    reported, steps = reported_hours(paper) if paper else {}, []
    for name, manifest in training_manifests(results).items():
        settings = manifest.get("settings", {})
        objective = (settings.get("objective") or {}).get("name")
        of_training = {
            "training_hours": manifest.get("hours"),
            "training_gpu_hours": manifest.get("gpu_hours"),
            "paper_gpu_hours": reported.get((settings.get("data"), objective)),
        }
        steps.append({"name": name} | manifest | of_training)
    for path in sorted(results.glob("scores/*/*.manifest.json")):
        manifest = read_json(path)
        of_evaluation = {key: manifest.get(key) for key in ("kilowatt_hours", *_PEAKS)}
        of_evaluation["evaluation_gpu_hours"] = manifest.get("gpu_hours")
        steps.append({"name": path.parent.name} | of_evaluation)
    frame = pd.DataFrame(steps, columns=["name", *_COLUMNS])
    frame = frame.astype(dict.fromkeys([*_SUMS, *_PEAKS], float))
    models = frame.groupby("name", sort=False)
    table = models.first()
    table[_PEAKS] = models[_PEAKS].max()
    table[_SUMS] = models[_SUMS].sum(min_count=1)
    # Known only if it is known for each step.
    known = frame["kilowatt_hours"].notna().groupby(frame["name"]).all()
    table["kilowatt_hours"] = table["kilowatt_hours"].where(known)
    table.loc["total", _SUMS] = table[_SUMS].sum(min_count=1)
    return table


def to_markdown(table: pd.DataFrame) -> str:
    """Return the rows as a Markdown table with a note on the paper's figures."""
    texts = table.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
    texts = texts.mask(table.isna(), MISSING)
    texts.columns = texts.columns.str.replace("_", " ").str.replace("gpu", "GPU")
    return markdown(texts, notes=[_NOTE])
