"""Costs of trainings (modelled, measured, reported), and a paper's claims about them."""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from revela.common.errors import check_name, reading
from revela.config.file import Config
from revela.config.report import CostTable
from revela.plan.costs import Plan
from revela.plan.estimates import TFLOPS
from revela.plan.machine import this_machine
from revela.plan.usage import reported_hours, training_manifests
from revela.report.render import MISSING, as_latex, latex, markdown

_ABOUT = 2  # factor, in both directions, within which a ratio counts as claimed
_CLAIM_COLUMNS = ["claim", "claimed", "compared", "theirs", "ours", "source"]
_COST_CELLS = {  # heading → column, its format
    "Training": ("label", "{}"),
    "Data": ("data", "{}"),
    "Batches": ("batches", "{:,.0f}"),
    "Texts (M)": ("texts", "{:,.2f}"),
    "Tokens (M)": ("tokens", "{:,.0f}"),
    "EFLOP": ("eflop", "{:,.1f}"),
    "GPU-hours, modelled": ("modelled_gpu_hours", "{:,.0f}"),
    "measured": ("measured_gpu_hours", "{:,.1f}"),
    "on": ("gpu", "{}"),
    "reported": ("reported_gpu_hours", "{:,.0f}"),
}
_CLAIM_CELLS = {
    "Claim": ("claim", "{}"),
    "Compared": ("compared", "{}"),
    "Theirs": ("theirs", "{:,.0f}"),
    "Ours": ("ours", "{:,.0f}"),
    "Ratio": ("ratio", "{:,.3g}×"),
    "Verdict": ("verdict", "{}"),
    "Source": ("source", "{}"),
}
_NOTE = (
    "Texts and tokens are those of the batches, with texts counted at full length. Modelled: on "
    f"an A100 at {TFLOPS['A100']:.0f} TFLOP/s, a rate that itself comes from the reported hours. "
    "Reported: one figure per corpus, for an unstated model size. Measured: on the GPU named."
)
_CLAIMS_NOTE = (
    f"As claimed: the ratio is within a factor of {_ABOUT} of the claimed one. Not checkable: one "
    "of the two figures is unknown."
)


def training_costs(config: Config, entry: CostTable, results: Path, known: Path) -> pd.DataFrame:
    """Return a row for each training of a cost table, NaN for unknown figures.

    Measurements are read from `results/models`, published counts and shapes from `known`.

    Raises:
        RevelaError: a manifest or the CSV of reported hours cannot be read.
    """
    plan = Plan(config, (), this_machine(), known)
    reported, measured = reported_hours(Path(entry.reported)), training_manifests(results)
    rows = []
    for name, label in entry.experiments:
        experiment, manifest = config.experiments[name], measured.get(name, {})
        batches = plan.counts.rows_trained(name) or math.nan
        flops = plan.training_flops(name) or math.nan
        texts = batches * plan.row_size(name)
        data_and_objective = _cut_from(config, experiment.data), experiment.objective.name
        rows.append(
            {
                "training": name,
                "label": label,
                "data": str(experiment.data),
                "batches": batches,
                "texts": texts,
                "tokens": texts * experiment.max_length,
                "eflop": flops / 1e18,
                "modelled_gpu_hours": flops / TFLOPS["A100"] / 3.6e15,
                "measured_gpu_hours": manifest.get("gpu_hours") or math.nan,  # 0 on a CPU
                "gpu": manifest.get("gpu"),
                "reported_gpu_hours": reported.get(data_and_objective, math.nan),
            }
        )
    return pd.DataFrame(rows)


def check_claims(entry: CostTable, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the claims with both figures, their ratio and a verdict.

    `ours` of a claim is a number, or a column of the costs for the value of `claims_about`.

    Raises:
        RevelaError: the CSV cannot be read or lacks a column, or `ours` is neither of these.
    """
    path = Path(entry.claims)
    kinds = {"claimed": float, "theirs": float, "ours": str}
    with reading(path, f"a CSV of {', '.join(_CLAIM_COLUMNS)}"):
        claims = pd.read_csv(path, dtype=kinds, usecols=_CLAIM_COLUMNS)[_CLAIM_COLUMNS]
    own = costs.set_index("training").loc[entry.claims_about].drop(["label", "data", "gpu"])
    for ours in claims["ours"]:
        if not str(ours).isdecimal():
            check_name(str(path), "ours", str(ours), own.index)
    claims["ours"] = [float(own.get(ours, ours)) for ours in claims["ours"]]
    claims["ratio"] = claims["theirs"] / claims["ours"]
    share = claims["ratio"] / claims["claimed"]
    cases = [share.isna(), share < 1 / _ABOUT, share > _ABOUT]
    verdicts = ["not checkable", "less than claimed", "more than claimed"]
    claims["verdict"] = np.select(cases, verdicts, "as claimed")
    return claims


def _cut_from(config: Config, data: str) -> str:
    """Return the batch set that smaller batches are split from, else the data itself."""
    batches = config.batches.get(data)
    return next(iter(batches.sample_from)) if batches and len(batches.sample_from) == 1 else data


def render(entry: CostTable, costs: pd.DataFrame, claims: pd.DataFrame) -> tuple[str, str]:
    """Return the costs, followed by the claims, as Markdown and as LaTeX."""
    millions = costs.assign(texts=costs["texts"] / 1e6, tokens=costs["tokens"] / 1e6)
    above, below = _cells(millions, _COST_CELLS), _cells(claims, _CLAIM_CELLS)
    about = f"The claims, checked for {dict(entry.experiments)[entry.claims_about]}."
    costs_in_markdown = markdown(above, entry.caption, [_NOTE])
    claims_in_markdown = markdown(below, about, [_CLAIMS_NOTE], align="left")
    # A rule separates kinds of training, and claims.
    kinds, columns = costs["label"].str.split().str[0], "llrrrlp{0.25\\linewidth}"
    costs_in_latex = latex(as_latex(above), entry.caption, kinds, [_NOTE])
    claims_in_latex = latex(as_latex(below), about, claims["claim"], [_CLAIMS_NOTE], columns)
    return f"{costs_in_markdown}\n{claims_in_markdown}", costs_in_latex + claims_in_latex


def _cells(frame: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Return columns of a frame as text with headings; the first one is the index."""
    cells = {
        heading: frame[name].map(form.format).where(frame[name].notna(), MISSING)
        for heading, (name, form) in columns.items()
    }
    return pd.DataFrame(cells).set_index(next(iter(cells)))
