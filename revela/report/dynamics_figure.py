"""The figure of in-batch similarities: one batch at several steps of a training."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from revela.config.report import DynamicsFigure
from revela.report.fonts import legible
from revela.training.trainlog import read_log

_COLOURS = ["#0072B2", "#B34700", "#00734F", "#9C3F76"]  # dark enough for text on white
_SHOWN = 60  # maximum characters of a text


def draw_dynamics(figure: DynamicsFigure, logs: dict[str, Path]) -> Figure:
    """Draw the similarity matrix of one batch at each recorded step, chunks labelled by their text.

    Chunks of the same document share a letter and a colour; lines separate documents.
    """
    path = logs[figure.experiment]
    snapshots = [(line["step"], line["snapshot"]) for line in read_log(path) if "snapshot" in line]
    batch = snapshots[0][1]
    size = len(batch["texts"])
    documents = batch.get("documents") or [""] * size  # missing in ready-made batches
    names = list(dict.fromkeys(filter(None, documents)))
    texts = [" ".join(text.split())[: _SHOWN + 1] for text in [*batch["texts"], *names]]
    lines = legible(texts, str(path))
    looks = {name: (_letters(n), _COLOURS[n % len(_COLOURS)]) for n, name in enumerate(names)}
    looks[""] = ("", "black")
    marks = [f"{looks[document][0]}{number}" for number, document in enumerate(documents)]
    labels = [f"{_cut(line, 40)}  {mark}" for line, mark in zip(lines, marks, strict=False)]

    side = max(1.8, 0.12 * size)  # inches of a panel: space for its title and labels
    width, height = 3 + (side + 0.5) * len(snapshots), side + 1.8 + 0.08 * len(names)
    drawing = Figure(figsize=(width, height), layout="compressed")
    axes = drawing.subplots(1, len(snapshots), squeeze=False)[0]
    for axis, (step, snapshot) in zip(axes, snapshots, strict=True):
        image = axis.imshow(snapshot["similarity"], cmap="cividis", vmin=0, vmax=1)
        losses = f"loss {snapshot['loss']:.2f}, without {snapshot['plain_loss']:.2f}"
        axis.set(title=f"step {step}\n{losses}", xlabel="chunk read")
        axis.grid(visible=False)
        axis.set_xticks(range(size), marks, fontsize=6, rotation=90)
        axis.set_yticks(range(size), labels if axis is axes[0] else marks, fontsize=6)
        ticks = [*axis.get_xticklabels(), *axis.get_yticklabels()]
        for tick, document in zip(ticks, documents * 2, strict=True):
            tick.set_color(looks[document][1])
        for chunk in range(1, size):
            if documents[chunk] != documents[chunk - 1]:
                axis.axhline(chunk - 0.5, color="white", linewidth=0.8)
                axis.axvline(chunk - 0.5, color="white", linewidth=0.8)
    drawing.colorbar(image, ax=list(axes), pad=0.01, label="similarity weight")
    if names:
        drawing.legend(
            handles=[
                Line2D([], [], ls="", color=looks[name][1], marker=f"${looks[name][0]}$")
                for name in names
            ],
            labels=[_cut(line, _SHOWN) for line in lines[size:]],
            title="documents",
            loc="outside lower left",
            ncols=2,
            labelcolor="markerfacecolor",
        )
    return drawing


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _letters(number: int) -> str:
    """Return A to Z, then AA and so on."""
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)
