"""What finished trainings used, beside the figures that a paper gives."""

from pathlib import Path
from typing import Any

import pandas as pd

from revela.common.errors import reading
from revela.common.outputs import read_json
from revela.report.render import MISSING, markdown

_COLUMNS = ["steps", "rows", "tokens", "hours", "gpus", "gpu", "gpu_hours", "peak_memory_gb"]
_REPORTED = {"rows": float, "hours": float, "gpus": float, "gpu": str}
_WHOLE = ("steps", "rows", "tokens", "gpus")
_NOTE = (
    "Rows are batches (of Contriever, pairs). Memory is that of a GPU or, without one, of the "
    "process."
)


def usage(results: Path, paper: Path | None = None) -> pd.DataFrame:
    """Return a row for each finished training, from its manifest; unknown figures are NaN.

    `paper` is a CSV of reported figures: experiment, rows, hours, gpus, gpu. They become rows too,
    and all are compared with the last one, in how many times as many rows and GPU-hours that needs.
    """
    manifests = sorted(results.glob("models/*/manifest.json"))
    trained = {path.parent.name: _used(read_json(path)) for path in manifests}
    table = pd.DataFrame.from_dict(trained, orient="index", columns=_COLUMNS)
    table = table.astype({name: float for name in _COLUMNS if name != "gpu"})
    if paper:
        with reading(paper, f"a CSV of experiment, {', '.join(_REPORTED)}"):
            reported = pd.read_csv(paper, dtype=_REPORTED).set_index("experiment")[[*_REPORTED]]
        table = pd.concat([table, reported])
        table["gpu_hours"] = table["gpu_hours"].fillna(table["hours"] * table["gpus"])
        for name in ("rows", "gpu_hours"):
            table[f"{name}_ratio"] = table[name].iloc[-1] / table[name].where(table[name] > 0)
    return table.rename_axis("experiment")


def _used(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the figures that it has under other names; some may be missing."""
    per_step = manifest.get("settings", {}).get("batches_per_step")
    memory = manifest.get("peak_gpu_memory_gb") or manifest.get("peak_memory_gb")
    rows = per_step and per_step * manifest["steps"]
    return manifest | {"rows": rows, "peak_memory_gb": memory}


def to_markdown(table: pd.DataFrame) -> str:
    """Return the table as Markdown with a note."""
    texts = table.astype(object)
    for name in table.columns.drop("gpu"):
        texts[name] = table[name].map(f"{{:,.{0 if name in _WHOLE else 1}f}}".format)
    texts = texts.mask(table.isna(), MISSING)
    texts.columns = texts.columns.str.replace("_", " ").str.replace("gpu", "GPU")
    return markdown(texts, notes=[_NOTE])
