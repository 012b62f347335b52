"""Figures: draw one of any kind, in the style that all share; save it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cycler import cycler
from matplotlib import rc_context
from matplotlib.figure import Figure

from revela.common.errors import reading
from revela.config.report import AnyFigure
from revela.report import dynamics_figure, table_figures, training_figures

_DRAW: dict[str, Callable[[Any, dict[str, Path]], Figure]] = {
    "bars": table_figures.draw_bars,
    "curves": training_figures.draw_curves,
    "dynamics": dynamics_figure.draw_dynamics,
    "learning": training_figures.draw_learning,
    "pretraining": training_figures.draw_pretraining,
    "step-cost": training_figures.draw_step_cost,
    "trend": table_figures.draw_trend,
}
_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.labelsize": 8,
    # Okabe-Ito colours, each with a line style and a marker of its own: legible in print and
    # without colour vision.
    "axes.prop_cycle": cycler(
        color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"],
        linestyle=["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1))],
        marker=["o", "s", "^", "D", "v", "P"],
    ),
    "axes.titlesize": 9,
    "errorbar.capsize": 2,
    "figure.constrained_layout.use": True,
    "figure.figsize": (6.4, 2.7),  # inches: the width of a page
    "font.size": 7,
    "grid.alpha": 0.3,
    "lines.markersize": 4,
    "savefig.bbox": "tight",  # nothing is clipped
    "savefig.dpi": 160,
}


@rc_context(_STYLE)
def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Figure:
    """Return a matplotlib figure.

    `inputs` are training logs by experiment or backbone; tables by name; the `step-cost` bench; for
    a learning figure scores by model and the log of each experiment.

    Raises:
        RevelaError: an input cannot be read or lacks what the figure shows.
    """
    with reading(", ".join(map(str, inputs.values())), f"what a {figure.kind} figure shows"):
        return _DRAW[figure.kind](figure, inputs)


@rc_context(_STYLE)
def save(drawing: Figure, path: Path, kind: str) -> None:
    """Save a figure as `pdf` or `png`."""
    # Without its date a PDF is the same for the same data.
    drawing.savefig(path, format=kind, metadata={"CreationDate": None} if kind == "pdf" else {})
