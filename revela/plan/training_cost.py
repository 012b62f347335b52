"""What trainings take, as modelled, measured and reported, and a paper's claims about it."""

from pathlib import Path

import pandas as pd

from revela.common.errors import RevelaError, unknown_name
from revela.config.file import Config
from revela.config.report import CostTable
from revela.plan.costs import Plan
from revela.plan.estimates import TFLOPS
from revela.plan.machine import this_machine
from revela.plan.usage import reported_hours, training_manifests
from revela.report.render import MISSING, as_latex, latex, markdown

_ABOUT = 2  # a factor, either way, within which a ratio is about what is claimed
_TEXT_COLUMNS = ["training", "label", "data", "gpu"]
_CLAIM_COLUMNS = ["claim", "claimed", "compared", "theirs", "ours", "source"]
_NOTE = (
    "Texts and tokens are those of the batches, each text counted as of full length. Modelled: on "
    f"an A100 at {TFLOPS['A100']:.0f} TFLOP/s, a rate that itself comes from the reported hours. "
    "Reported: one figure a corpus, for no stated model size. Measured: on the GPU that is named."
)
_CLAIMS_NOTE = (
    f"As claimed: the ratio is within a factor of {_ABOUT} of the claimed one. Not checkable: one "
    "of the two figures is not known."
)


def training_costs(config: Config, entry: CostTable, results: Path, known: Path) -> pd.DataFrame:
    """Return a row for each training of a cost table, NaN where a figure is not known.

    What was measured is read from `results/models`, published counts and shapes from `known`.

    Raises:
        RevelaError: a manifest or the CSV of reported hours cannot be read.
    """
    plan = Plan(config, (), this_machine(), known)
    reported, measured = reported_hours(Path(entry.reported)), training_manifests(results)
    rows = []
    for name, label in entry.experiments:
        experiment, manifest = config.experiments[name], measured.get(name, {})
        batches, flops = plan.counts.rows_trained(name), plan.training_flops(name)
        texts = batches and batches * plan.row_size(name)
        rows.append(
            {
                "training": name,
                "label": label,
                "data": str(experiment.data),
                "batches": batches,
                "texts": texts,
                "tokens": texts and texts * experiment.max_length,
                "eflop": flops and flops / 1e18,
                "modelled_gpu_hours": flops and flops / TFLOPS["A100"] / 3.6e15,
                "measured_gpu_hours": manifest.get("gpu_hours") or None,  # 0 on a CPU
                "gpu": manifest.get("gpu"),
                "reported_gpu_hours": reported.get(
                    (_cut_from(config, experiment.data), experiment.objective.name)
                ),
            }
        )
    frame = pd.DataFrame(rows)
    return frame.astype({name: float for name in frame if name not in _TEXT_COLUMNS})


def check_claims(entry: CostTable, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the claims with both figures, their ratio and a verdict.

    `ours` of a claim is a number, or a column of the costs for the value of `claims_about`.

    Raises:
        RevelaError: the CSV cannot be read or lacks a column, or `ours` is neither.
    """
    path, kinds = Path(entry.claims), {"claimed": float, "theirs": float, "ours": str}
    try:
        claims = pd.read_csv(path, dtype=kinds, usecols=_CLAIM_COLUMNS)[_CLAIM_COLUMNS]
    except (OSError, KeyError, ValueError) as error:
        raise RevelaError(f"{path}: expected {', '.join(_CLAIM_COLUMNS)}: {error}") from error
    own = costs.set_index("training").loc[entry.claims_about]
    own = own.drop(_TEXT_COLUMNS, errors="ignore")
    for ours in claims["ours"]:
        if ours not in own and not str(ours).isdecimal():
            raise RevelaError(f"{path}: {unknown_name('ours', str(ours), own.index)}")
    claims["ours"] = [float(own.get(ours, ours)) for ours in claims["ours"]]
    claims["ratio"] = claims["theirs"] / claims["ours"]
    claims["verdict"] = (claims["ratio"] / claims["claimed"]).map(_verdict)
    return claims


def _cut_from(config: Config, data: str) -> str:
    """Return the batch set that smaller batches are cut from, else the data itself."""
    batches = config.batches.get(data)
    return next(iter(batches.sample_from)) if batches and len(batches.sample_from) == 1 else data


def _verdict(share: float) -> str:
    if pd.isna(share):
        return "not checkable"
    if 1 / _ABOUT <= share <= _ABOUT:
        return "as claimed"
    return "less than claimed" if share < 1 else "more than claimed"


def render(entry: CostTable, costs: pd.DataFrame, claims: pd.DataFrame) -> tuple[str, str]:
    """Return the costs, and below them the claims, as Markdown and as LaTeX."""
    above, below = _cost_cells(costs), _claim_cells(claims)
    about = f"The claims, checked for {dict(entry.experiments)[entry.claims_about]}."
    costs_in_markdown = markdown(above, entry.caption, [_NOTE])
    claims_in_markdown = markdown(below, about, [_CLAIMS_NOTE], align="left")
    # A rule where another kind of training begins, or another claim.
    kinds, columns = costs["label"].str.split().str[0], "llrrrlp{0.25\\linewidth}"
    costs_in_latex = latex(as_latex(above), entry.caption, kinds, [_NOTE])
    claims_in_latex = latex(as_latex(below), about, claims["claim"], [_CLAIMS_NOTE], columns)
    return f"{costs_in_markdown}\n{claims_in_markdown}", costs_in_latex + claims_in_latex


def _cost_cells(costs: pd.DataFrame) -> pd.DataFrame:
    cells = {
        "Training": costs["label"],
        "Data": costs["data"],
        "Batches": _printed(costs["batches"]),
        "Texts (M)": _printed(costs["texts"] / 1e6, "{:,.2f}"),
        "Tokens (M)": _printed(costs["tokens"] / 1e6),
        "EFLOP": _printed(costs["eflop"], "{:,.1f}"),
        "GPU-hours, modelled": _printed(costs["modelled_gpu_hours"]),
        "measured": _printed(costs["measured_gpu_hours"], "{:,.1f}"),
        "on": costs["gpu"].fillna(MISSING),
        "reported": _printed(costs["reported_gpu_hours"]),
    }
    return pd.DataFrame(cells).set_index("Training")


def _claim_cells(claims: pd.DataFrame) -> pd.DataFrame:
    cells = {
        "Claim": claims["claim"],
        "Compared": claims["compared"],
        "Theirs": _printed(claims["theirs"]),
        "Ours": _printed(claims["ours"]),
        "Ratio": _printed(claims["ratio"], "{:,.3g}×"),
        "Verdict": claims["verdict"],
        "Source": claims["source"],
    }
    return pd.DataFrame(cells).set_index("Claim")


def _printed(column: pd.Series, shape: str = "{:,.0f}") -> pd.Series:
    return column.map(shape.format).where(column.notna(), MISSING)
