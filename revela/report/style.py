"""The style that all figures share."""

from typing import Any

from cycler import cycler

# Okabe-Ito colours, each with a line style and a marker of its own: legible in print and without
# colour vision.
CYCLE = cycler(
    color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"],
    linestyle=["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1))],
    marker=["o", "s", "^", "D", "v", "P"],
)
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.prop_cycle": CYCLE,
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
