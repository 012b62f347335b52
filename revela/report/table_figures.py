"""Figures of compiled tables: bars, and trends over row labels."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from revela.config.report import BarsFigure, TrendFigure
from revela.report.significance import read_analysis
from revela.report.tables import SOURCE

_SOURCES = {"measured": "measured here", "reported": "as reported"}
_HATCHES = {"reported": "////"}
# Placement of a number at its point.
_ABOVE = {"xytext": (0, 5), "va": "bottom"}
_BELOW = {"xytext": (0, -5), "va": "top"}
_OUTLINE = [withStroke(linewidth=2, foreground="white")]
_NUMBER = {"textcoords": "offset points", "ha": "center", "path_effects": _OUTLINE}
_OPAQUE, _LIGHT, _EDGE = "#0072B2", "#C9D6DF", "#7F8C95"


def draw_bars(figure: BarsFigure, tables: dict[str, Path]) -> Figure:
    """Draw the mean of each system of each table; reported ones are hatched."""
    drawing, panels, sources = _panels(figure, tables, by_width=True)
    for axis, means in panels:
        opaque = means.index.str.startswith("Revela")
        bars = axis.bar(
            range(len(means)),
            means["mean"].fillna(0),
            color=np.where(opaque, _OPAQUE, _LIGHT),
            edgecolor=np.where(opaque, "white", _EDGE),
            hatch=[_HATCHES.get(source, "") for source in means[SOURCE]],
            linewidth=0,
        )
        labels = ["–" if pd.isna(mean) else f"{mean:.1f}" for mean in means["mean"]]
        axis.bar_label(bars, labels, padding=1)
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(range(len(means)), means.index, **slanted)
        axis.grid(visible=False)
        axis.margins(x=0.02, y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    look: dict[str, Any] = {"facecolor": _LIGHT, "edgecolor": _EDGE, "linewidth": 0}
    entries = [Patch(**look, hatch=_HATCHES.get(key), label=sources[key]) for key in sources]
    drawing.legend(handles=entries, loc="outside upper right", ncols=2)
    return drawing


def draw_trend(figure: TrendFigure, tables: dict[str, Path]) -> Figure:
    """Draw the means of each table's groups over their row labels; reported ones are hollow.

    Error bars are 95% intervals over queries, for tables with a `_significance.csv`.
    """
    drawing, panels, sources = _panels(figure, tables)
    # A group has the same style in all panels.
    looks: dict[str, dict[str, Any]] = defaultdict(rcParams["axes.prop_cycle"]().__next__)
    lines: dict[str, Line2D] = {}
    for axis, means in panels:
        # A row with an ambiguous label is named "group / label" (`Table.names`).
        parts = means.index.to_series().str.rpartition(" / ")
        means["group"], means["label"] = parts[0], parts[2]
        labels = list(means["label"].unique())
        highest = means.groupby("label")["mean"].transform("max")
        for group, rows in means.groupby("group", sort=False):
            look = looks[group]
            x, is_reported = rows["label"].map(labels.index), rows[SOURCE] == "reported"
            (lines[group],) = axis.plot(x, rows["mean"], linewidth=1.3, label=group, **look)
            # The mean has fewer decimals than its interval and may be rounded out of it.
            low = (rows["mean"] - rows["ci_low"]).clip(lower=0)
            high = (rows["ci_high"] - rows["mean"]).clip(lower=0)
            thin = {"fmt": "none", "ecolor": look["color"], "elinewidth": 0.8}
            axis.errorbar(x, rows["mean"], [low, high], **thin)
            hollow = look | {"linestyle": "", "markerfacecolor": "white"}
            axis.plot(x[is_reported], rows["mean"][is_reported], **hollow)
            for system, mean in rows["mean"].dropna().items():
                place = _ABOVE if mean == highest[system] else _BELOW
                axis.annotate(f"{mean:.1f}", (x[system], mean), **place, **_NUMBER)
        axis.set_xticks(range(len(labels)), labels)
        axis.set_xlabel(figure.x_label)
        axis.margins(x=0.12, y=0.15)
    look = {"color": "#444444", "linestyle": "", "marker": "o"}
    handles = [line for group, line in lines.items() if group]
    for key, label in sources.items() if "reported" in sources else ():
        inside = "white" if key == "reported" else None
        handles.append(Line2D([], [], **look, label=label, markerfacecolor=inside))
    drawing.legend(handles=handles, loc="outside upper center", ncols=5)
    return drawing


def _panels(
    figure: BarsFigure | TrendFigure, tables: dict[str, Path], by_width: bool = False
) -> tuple[Figure, list[tuple[Any, pd.DataFrame]], dict[str, str]]:
    """Return a drawing, each table's panel and means, and the sources to explain in a legend."""
    means = [_read_means(tables[name]) for name, _ in figure.tables]
    drawing = Figure()
    widths = [len(systems) if by_width else 1 for systems in means]
    axes = drawing.subplots(1, len(means), squeeze=False, width_ratios=widths)[0]
    axes[0].set_ylabel("mean over tasks (%)")
    for axis, (_, title) in zip(axes, figure.tables, strict=True):
        axis.set_title(title)
    used = set(pd.concat(means)[SOURCE])
    sources = {key: label for key, label in _SOURCES.items() if key in used}
    return drawing, list(zip(axes, means, strict=True)), sources


def _read_means(path: Path) -> pd.DataFrame:
    """Read a compiled table: each system's `mean`, its interval `ci_low` to `ci_high`, `source`."""
    text = {"system": str}  # a system may be named 4
    table = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])
    analysis = read_analysis(path)
    of_mean = analysis[analysis["column"] == table.columns[-2]].set_index("system")
    means = table.set_index("system").iloc[:, -2:].set_axis(["mean", SOURCE], axis="columns")
    return means.join(of_mean[["ci_low", "ci_high"]].astype(float))
