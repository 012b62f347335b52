"""Figures of compiled tables and of a bench: bars, trends, the cost of a step."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from revela.config.report import BarsFigure, TrendFigure
from revela.report.tables import SOURCE

# Okabe-Ito colours, with line styles and markers of their own: legible in print and without
# colour vision.
STYLES: list[tuple[str, Any, str]] = [
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#56B4E9", (0, (5, 1)), "v"),
    ("#E69F00", (0, (3, 1, 1, 1)), "P"),
]
_SMALL = 7  # points, at the width of a page
_LIGHT = "#C9D6DF"


def draw_bars(figure: BarsFigure, tables: dict[str, Path]) -> Any:
    """Draw the mean of each system of each table; what is reported, not measured, is hatched."""
    means = [_read_means(tables[name]) for name, _ in figure.tables]
    drawing, axes = plt.subplots(
        1,
        len(means),
        figsize=(6.4, 2.6),
        layout="constrained",
        width_ratios=[len(found) for found in means],
        squeeze=False,
    )
    for axis, (_, title), found in zip(axes[0], figure.tables, means, strict=True):
        opaque = [name.startswith(figure.opaque) for name in found.index]
        bars = axis.bar(
            range(len(found)),
            found["mean"].fillna(0),
            color=[STYLES[0][0] if is_opaque else _LIGHT for is_opaque in opaque],
            edgecolor=["white" if is_opaque else "#7F8C95" for is_opaque in opaque],
            hatch=["////" if source == "reported" else "" for source in found[SOURCE]],
            linewidth=0,
        )
        labels = ["–" if pd.isna(mean) else f"{mean:.1f}" for mean in found["mean"]]
        axis.bar_label(bars, labels, fontsize=_SMALL, padding=1)
        axis.set_xticks(
            range(len(found)), found.index, rotation=45, ha="right", rotation_mode="anchor"
        )
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=_SMALL, length=2)
        axis.margins(x=0.02, y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("mean over tasks (%)", fontsize=_SMALL)
    shown = {source for found in means for source in found[SOURCE]}
    entries = [
        Patch(facecolor=_LIGHT, edgecolor="#7F8C95", linewidth=0, hatch=hatch, label=label)
        for source, hatch, label in _SOURCES
        if source in shown
    ]
    drawing.legend(handles=entries, loc="outside upper right", ncols=2, fontsize=_SMALL)
    return drawing


_SOURCES = [("measured", "", "measured here"), ("reported", "////", "as reported")]


def draw_trend(figure: TrendFigure, tables: dict[str, Path]) -> Any:
    """Draw the means of each table's groups over their rows' labels; hollow where reported.

    Bars are 95% intervals over queries, of tables that have a `_significance.csv` beside them.
    """
    drawing, axes = plt.subplots(
        1, len(figure.tables), figsize=(6.2, 2.7), layout="constrained", squeeze=False
    )
    lines: dict[str, Line2D] = {}
    looks: dict[Any, tuple[str, Any, str]] = {}
    shown: set[str] = set()
    for axis, (name, title) in zip(axes[0], figure.tables, strict=True):
        found = _read_means(tables[name])
        # A row is called "group / label" where its label is not its own (`Table.names`).
        found["group"] = [system.rpartition(" / ")[0] for system in found.index]
        found["label"] = [system.rpartition(" / ")[2] for system in found.index]
        places = {label: place for place, label in enumerate(found["label"].unique())}
        for group, rows in found.groupby("group", sort=False):
            # A group looks the same in all panels, and no other like it.
            colour, style, marker = looks.setdefault(group, STYLES[len(looks) % len(STYLES)])
            x = rows["label"].map(places)
            (lines[str(group)],) = axis.plot(
                x,
                rows["mean"],
                color=colour,
                linestyle=style,
                linewidth=1.3,
                marker=marker,
                markersize=5,
                label=group,
            )
            axis.errorbar(
                x,
                rows["mean"],
                yerr=[rows["mean"] - rows["low"], rows["high"] - rows["mean"]],
                fmt="none",
                ecolor=colour,
                elinewidth=0.8,
                capsize=2,
            )
            hollow = rows[SOURCE] == "reported"
            axis.plot(
                x[hollow], rows["mean"][hollow], color=colour, linestyle="", marker=marker,
                markersize=5, markerfacecolor="white",
            )  # fmt: skip
            highest = found.groupby("label")["mean"].transform("max")[rows.index]
            for place, mean, top in zip(x, rows["mean"], highest, strict=True):
                axis.annotate(
                    "" if pd.isna(mean) else f"{mean:.1f}",
                    (place, mean),
                    xytext=(0, 5 if mean == top else -5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if mean == top else "top",
                    fontsize=_SMALL,
                    path_effects=[withStroke(linewidth=2, foreground="white")],
                )
        shown |= set(found[SOURCE])
        axis.set_xticks(range(len(places)), list(places))
        axis.set_xlabel(figure.x_label, fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=_SMALL)
        axis.margins(x=0.12, y=0.15)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("mean over tasks (%)", fontsize=8)
    kinds = [
        Line2D([], [], color="#444444", linestyle="", marker="o", markersize=5,
               markerfacecolor="white" if hatch else "#444444", label=label)
        for source, hatch, label in _SOURCES
        if source in shown
    ]  # fmt: skip
    handles = [line for group, line in lines.items() if group] + kinds
    drawing.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=_SMALL)
    return drawing


def draw_step_cost(path: Path) -> Any:
    """Draw time and peak memory of a step of REPLUG and Revela over the batch size (log-log).

    Thin lines show the growth that the paper derives, with B² of REPLUG's time and with B of
    Revela's, up to what is measured at the largest batch.

    Args:
        path: what `bench/training/step_cost.py` writes.
    """
    found = pd.read_csv(path).set_index("batch_size")
    drawing, axes = plt.subplots(1, 2, figsize=(6.2, 2.7), layout="constrained")
    panels = [("seconds", "time of a step (s)"), ("memory_gb", "peak memory of a step (GB)")]
    for axis, (measure, title) in zip(axes, panels, strict=True):
        for (name, label, power), (colour, style, marker) in zip(
            (("replug", "REPLUG", 2), ("revela", "Revela", 1)), STYLES[1::-1], strict=True
        ):
            values = found[f"{name}_{measure}"]
            if power == 1 or measure == "seconds":
                growth = (found.index / found.index[-1]) ** power * values.iloc[-1]
                guide = f"growth with B{'²' if power == 2 else ''}"
                axis.plot(
                    found.index,
                    growth,
                    color="#777777",
                    linestyle=style,
                    linewidth=0.8,
                    label=guide,
                )
            axis.plot(
                found.index, values, color=colour, linestyle=style, marker=marker, markersize=4,
                label=label,
            )  # fmt: skip
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(found.index, [str(size) for size in found.index])
        axis.minorticks_off()
        axis.set_xlabel("batch size B", fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=_SMALL)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=_SMALL)
    drawing.supxlabel(found["machine"].iloc[0], fontsize=5, color="#555555")
    return drawing


def _read_means(path: Path) -> pd.DataFrame:
    """Read a compiled table: each system's `mean`, its interval `low` to `high`, and `source`."""
    found = _by_system(path)
    mean = found.columns[-2]
    means = pd.DataFrame({"mean": found[mean].astype(float), SOURCE: found[SOURCE]})
    beside = path.with_name(f"{path.stem}_significance.csv")
    if not beside.exists():
        return means.assign(low=math.nan, high=math.nan)
    analysis = _by_system(beside)
    return means.join(analysis.loc[analysis["column"] == mean, ["low", "high"]])


def _by_system(path: Path) -> pd.DataFrame:
    # A system may be called 4.
    return pd.read_csv(path, dtype={"system": str}).set_index("system")
