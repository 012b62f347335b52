"""Draws and saves figures of all kinds in a common style."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.text import Text

from revela.common.errors import reading
from revela.config.report import AnyFigure
from revela.report import dynamics_figure, table_figures, training_figures

_DRAW: dict[str, Callable[[Any, dict[str, Path]], Figure]] = {
    "bars": table_figures.draw_bars,
    "curves": training_figures.draw_curves,
    "dynamics": dynamics_figure.draw_dynamics,
    "learning": training_figures.draw_learning,
    "step-cost": training_figures.draw_step_cost,
    "trend": table_figures.draw_trend,
}
_STYLE = Path(__file__).with_name("figures.mplstyle")
_FONT = "DejaVu Sans"  # comes with matplotlib


@rc_context(fname=_STYLE)
def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Figure:
    """Return a matplotlib figure; an input that cannot be read or lacks its data is an error.

    `inputs` are training logs by experiment or backbone; tables by name; the `step-cost` bench; for
    a learning figure, scores by model and the log of each experiment.
    """
    with reading(", ".join(map(str, inputs.values())), f"data for a {figure.kind} figure"):
        drawing = _DRAW[figure.kind](figure, inputs)
    texts = drawing.findobj(Text)
    fonts = _fonts("".join(text.get_text() for text in texts))
    for text in texts:
        text.set_fontfamily(fonts)
        text.set_parse_math(False)  # labels may have dollar signs
    return drawing


@rc_context(fname=_STYLE)
def save(drawing: Figure, path: Path, kind: str) -> None:
    """Save a figure as `pdf` or `png`."""
    # Without a date, a PDF is the same for the same data.
    drawing.savefig(path, format=kind, metadata={"CreationDate": None} if kind == "pdf" else {})


def _fonts(text: str) -> list[str]:
    """Return the default font and those installed that have characters which it lacks."""
    fonts, missing = [_FONT], {*map(ord, text)} - {*get_font(findfont(_FONT)).get_charmap()}
    for name, file in sorted({(font.name, font.fname) for font in fontManager.ttflist}):
        # The last-resort font has a box for every character.
        if missing and not name.startswith("Last Resort"):
            with contextlib.suppress(RuntimeError):  # a bitmap font
                characters = missing & {*get_font(file).get_charmap()}
                fonts += [name] * bool(characters)
                missing -= characters
    return fonts
