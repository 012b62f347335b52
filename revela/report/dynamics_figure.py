"""The figure of in-batch similarities: one batch at several steps of a training."""

from pathlib import Path
from string import ascii_uppercase

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from revela.config.report import DynamicsFigure
from revela.training.trainlog import read_log

_COLOURS = ["#0072B2", "#B34700", "#00734F", "#9C3F76"]  # dark enough for text on white


def draw_dynamics(figure: DynamicsFigure, logs: dict[str, Path]) -> Figure:
    """Draw the similarity matrix of one batch at each recorded step, its documents by colour."""
    lines = read_log(logs[figure.experiment])
    snapshots = [(line["step"], line["snapshot"]) for line in lines if "snapshot" in line]
    batch = snapshots[0][1]
    size = len(batch["texts"])
    documents = batch.get("documents") or [""] * size  # missing in ready-made batches
    names = list(dict.fromkeys(filter(None, documents)))
    letters = {name: ascii_uppercase[n % 26] for n, name in enumerate(names)} | {"": ""}
    colours = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(names)} | {"": "black"}
    marks = [f"{letters[document]}{number}" for number, document in enumerate(documents)]
    labels = [f"{_cut(text, 40)}  {m}" for text, m in zip(batch["texts"], marks, strict=True)]

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
            tick.set_color(colours[document])
        for chunk in range(1, size):
            if documents[chunk] != documents[chunk - 1]:
                axis.axhline(chunk - 0.5, color="white", linewidth=0.8)
                axis.axvline(chunk - 0.5, color="white", linewidth=0.8)
    drawing.colorbar(image, ax=list(axes), pad=0.01, label="similarity weight")
    if names:
        drawing.legend(
            [Line2D([], [], ls="", color=colours[n], marker=f"${letters[n]}$") for n in names],
            [_cut(name, 60) for name in names],
            title="documents",
            loc="outside lower left",
            ncols=2,
            labelcolor="markerfacecolor",
        )
    return drawing


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
