"""Figures of compiled tables: bars, and trends over the rows' labels."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from revela.common.errors import RevelaError
from revela.config.report import BarsFigure, TrendFigure
from revela.report.style import CYCLE
from revela.report.tables import SOURCE

_SOURCES = {"measured": "measured here", "reported": "as reported"}
_HATCHES = {"reported": "////"}
_MEAN = "mean over tasks (%)"
_OPAQUE, _LIGHT, _EDGE = "#0072B2", "#C9D6DF", "#7F8C95"


def draw_bars(figure: BarsFigure, tables: dict[str, Path]) -> Figure:
    """Draw the mean of each system of each table; reported ones are hatched."""
    means = [_read_means(tables[name]) for name, _ in figure.tables]
    drawing = Figure()
    widths = [len(found) for found in means]
    axes = drawing.subplots(1, len(means), squeeze=False, width_ratios=widths)[0]
    for axis, (_, title), found in zip(axes, figure.tables, means, strict=True):
        opaque = found.index.str.startswith("Revela")
        bars = axis.bar(
            range(len(found)),
            found["mean"].fillna(0),
            color=[_OPAQUE if is_opaque else _LIGHT for is_opaque in opaque],
            edgecolor=["white" if is_opaque else _EDGE for is_opaque in opaque],
            hatch=[_HATCHES.get(source, "") for source in found[SOURCE]],
            linewidth=0,
        )
        labels = ["–" if pd.isna(mean) else f"{mean:.1f}" for mean in found["mean"]]
        axis.bar_label(bars, labels, padding=1)
        axis.set_xticks(
            range(len(found)), found.index, rotation=45, ha="right", rotation_mode="anchor"
        )
        axis.set_title(title)
        axis.grid(visible=False)
        axis.margins(x=0.02, y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(_MEAN)
    shown = pd.concat(means)[SOURCE].unique()
    entries = [
        Patch(facecolor=_LIGHT, edgecolor=_EDGE, linewidth=0, hatch=_HATCHES.get(key), label=label)
        for key, label in _SOURCES.items()
        if key in shown
    ]
    drawing.legend(handles=entries, loc="outside upper right", ncols=2)
    return drawing


def draw_trend(figure: TrendFigure, tables: dict[str, Path]) -> Figure:
    """Draw the means of each table's groups over their rows' labels; hollow where reported.

    Bars are 95% intervals over queries, for tables that have a `_significance.csv` beside them.
    """
    drawing = Figure()
    axes = drawing.subplots(1, len(figure.tables), squeeze=False)[0]
    # A group looks the same in all panels.
    looks: dict[str, dict[str, Any]] = defaultdict(CYCLE().__next__)
    lines: dict[str, Line2D] = {}
    shown: set[str] = set()
    for axis, (name, title) in zip(axes, figure.tables, strict=True):
        found = _read_means(tables[name])
        # A row is called "group / label" where its label is not its own (`Table.names`).
        parts = found.index.to_series().str.rpartition(" / ")
        found["group"], found["label"] = parts[0], parts[2]
        labels = list(found["label"].unique())
        highest = found.groupby("label")["mean"].transform("max")
        for group, rows in found.groupby("group", sort=False):
            look = looks[group]
            x, is_reported = rows["label"].map(labels.index), rows[SOURCE] == "reported"
            (lines[group],) = axis.plot(x, rows["mean"], linewidth=1.3, label=group, **look)
            intervals = [rows["mean"] - rows["ci_low"], rows["ci_high"] - rows["mean"]]
            axis.errorbar(
                x, rows["mean"], intervals, fmt="none", ecolor=look["color"], elinewidth=0.8
            )
            hollow = look | {"linestyle": "", "markerfacecolor": "white"}
            axis.plot(x[is_reported], rows["mean"][is_reported], **hollow)
            for system, mean in rows["mean"].dropna().items():
                above = mean == highest[system]
                axis.annotate(
                    f"{mean:.1f}",
                    (x[system], mean),
                    xytext=(0, 5 if above else -5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if above else "top",
                    path_effects=[withStroke(linewidth=2, foreground="white")],
                )
        shown |= set(found[SOURCE])
        axis.set_xticks(range(len(labels)), labels)
        axis.set(title=title, xlabel=figure.x_label)
        axis.margins(x=0.12, y=0.15)
    axes[0].set_ylabel(_MEAN)
    kinds = [
        Line2D([], [], color="#444444", linestyle="", marker="o", label=label,
               markerfacecolor="white" if key == "reported" else "#444444")
        for key, label in _SOURCES.items()
        if key in shown
    ]  # fmt: skip
    handles = [line for group, line in lines.items() if group] + kinds
    drawing.legend(handles=handles, loc="outside upper center", ncols=5)
    return drawing


def _read_means(path: Path) -> pd.DataFrame:
    """Read a compiled table: each system's `mean`, its interval `ci_low` to `ci_high`, `source`.

    Raises:
        RevelaError: the intervals have the column names of an older version.
    """
    table = _by_system(path)
    mean = table.columns[-2]
    means = pd.DataFrame({"mean": table[mean].astype(float), SOURCE: table[SOURCE]})
    beside = path.with_name(f"{path.stem}_significance.csv")
    if not beside.exists():
        return means.assign(ci_low=float("nan"), ci_high=float("nan"))
    analysis = _by_system(beside)
    if "ci_low" not in analysis:
        raise RevelaError(f"{beside}: no column 'ci_low': compile the table again")
    return means.join(analysis.loc[analysis["column"] == mean, ["ci_low", "ci_high"]])


def _by_system(path: Path) -> pd.DataFrame:
    # A system may be called 4.
    return pd.read_csv(path, dtype={"system": str}, index_col="system")
