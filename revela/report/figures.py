"""Figures: draw one of any kind, save it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from revela.common.errors import RevelaError
from revela.config.report import AnyFigure
from revela.report.dynamics_figure import draw_dynamics
from revela.report.style import STYLE
from revela.report.table_figures import draw_bars, draw_trend
from revela.report.training_figures import (
    draw_curves,
    draw_learning,
    draw_pretraining,
    draw_step_cost,
)

_DRAW: dict[str, Callable[[Any, dict[str, Path]], Figure]] = {
    "bars": draw_bars,
    "curves": draw_curves,
    "dynamics": draw_dynamics,
    "learning": draw_learning,
    "pretraining": draw_pretraining,
    "step-cost": draw_step_cost,
    "trend": draw_trend,
}


class _Inputs(dict[str, Path]):
    def __missing__(self, name: str) -> Path:
        raise RevelaError(f"--input {name}=PATH is missing")


@rc_context(STYLE)
def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Figure:
    """Return a matplotlib figure.

    Args:
        figure: what to draw.
        inputs: training logs by experiment or backbone; tables by name; the `step-cost` bench; for
            a learning figure scores by model and the log of each experiment.

    Raises:
        RevelaError: an input is missing, or a training log has no snapshots for `dynamics`.
    """
    return _DRAW[figure.kind](figure, _Inputs(inputs))


@rc_context(STYLE)
def save(drawing: Figure, path: Path, kind: str) -> None:
    """Save a figure as `pdf` or `png`."""
    # Without its date a PDF is the same for the same data.
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    drawing.savefig(path, format=kind, metadata=metadata)
