"""Draws and saves figures of all kinds in a common style."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from revela.common.errors import reading
from revela.config.report import AnyFigure
from revela.report import dynamics_figure, table_figures, training_figures
from revela.report.fonts import legible

_DRAW: dict[str, Callable[[Any, dict[str, Path]], Figure]] = {
    "bars": table_figures.draw_bars,
    "curves": training_figures.draw_curves,
    "dynamics": dynamics_figure.draw_dynamics,
    "learning": training_figures.draw_learning,
    "step-cost": training_figures.draw_step_cost,
    "trend": table_figures.draw_trend,
}
_STYLE = Path(__file__).with_name("figures.mplstyle")


@rc_context(fname=_STYLE)
def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Figure:
    """Return a matplotlib figure.

    `inputs` are training logs by experiment or backbone; tables by name; the `step-cost` bench; for
    a learning figure, scores by model and the log of each experiment.

    Raises:
        RevelaError: an input cannot be read or lacks data for the figure.
    """
    labels = legible([figure.model_dump_json()], "labels")[0]  # of its own; names are ASCII
    figure = type(figure).model_validate_json(labels)
    with reading(", ".join(map(str, inputs.values())), f"data for a {figure.kind} figure"):
        drawing = _DRAW[figure.kind](figure, inputs)
    for text in drawing.findobj(Text):
        text.set_parse_math(False)  # labels may have dollar signs
    return drawing


@rc_context(fname=_STYLE)
def save(drawing: Figure, path: Path, kind: str) -> None:
    """Save a figure as `pdf` or `png`."""
    # Without a date, a PDF is the same for the same data.
    drawing.savefig(path, format=kind, metadata={"CreationDate": None} if kind == "pdf" else {})
