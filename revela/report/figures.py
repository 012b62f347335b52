"""Figures: of a training here, of tables and benches in `table_figures`."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from revela.common.errors import RevelaError
from revela.config.names import ModelName
from revela.config.report import (
    AnyFigure,
    BarsFigure,
    CurvesFigure,
    DynamicsFigure,
    LearningFigure,
    PretrainingFigure,
    StepCostFigure,
    TrendFigure,
)
from revela.training.trainlog import read_log

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from revela.report.table_figures import STYLES, draw_bars, draw_step_cost, draw_trend


def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Any:
    """Return a matplotlib figure.

    Args:
        figure: what to draw.
        inputs: training logs by experiment or backbone; tables by name; the `step-cost` bench; for
            a learning figure scores by model, and each experiment's log as well.

    Raises:
        RevelaError: an input is missing, or holds no snapshot for `dynamics`.
    """
    for name in figure.inputs():
        if name not in inputs:
            raise RevelaError(f"--input {name}=PATH is missing: a figure of kind {figure.kind}")
    match figure:
        case BarsFigure():
            return draw_bars(figure, inputs)
        case TrendFigure():
            return draw_trend(figure, inputs)
        case StepCostFigure():
            return draw_step_cost(inputs["step-cost"])
        case LearningFigure():
            return draw_learning(figure, inputs)
        case PretrainingFigure():
            return draw_pretraining(read_log(inputs[figure.backbone]))
        case DynamicsFigure():
            return draw_dynamics(read_log(inputs[figure.experiment]))
        case CurvesFigure():
            return draw_curves(
                {label: read_log(inputs[name]) for name, label in figure.experiments}
            )


def save(drawing: Any, path: Path, kind: str) -> None:
    """Save a figure as `pdf` or `png`."""
    # No date in the PDF: the same data gives the same file.
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    drawing.savefig(path, dpi=160, format=kind, metadata=metadata)
    plt.close(drawing)


def draw_curves(logs: dict[str, list[dict[str, Any]]]) -> Any:
    """Draw each experiment's loss relative to its start, the gain of attention, the sharpness.

    And the share of chunks whose gradient reaches the retriever, the pulse of Revela's training.
    """
    drawing, axes = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
    panels = [
        ("loss", "training loss, share of its start"),
        ("plain_loss_gain", "loss without − with in-batch attention (nats)"),
        ("top_similarity", "mean largest similarity weight"),
        ("rows_learning", "share of chunks that teach the retriever"),
    ]
    for (label, entries), (colour, style, _) in zip(logs.items(), cycle(STYLES), strict=False):
        frame = pd.DataFrame([entry for entry in entries if "loss" in entry]).set_index("step")
        for axis, (name, _) in zip(axes.flat, panels, strict=True):
            if name not in frame:
                continue
            values = frame[name].dropna()
            width = max(1, len(values) // 20)
            if name == "loss":
                values = values / values.iloc[:width].mean()
            values = values.rolling(width, min_periods=1).mean()
            axis.plot(values.index, values, color=colour, linestyle=style, label=label)
    for axis, (_, title) in zip(axes.flat, panels, strict=True):
        axis.set_xlabel("step")
        axis.set_title(title, fontsize=9)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    axes[1, 1].set_ylim(0, 1.05)
    return drawing


def draw_learning(figure: LearningFigure, inputs: dict[str, Path]) -> Any:
    """Draw what each experiment scores on a task against the training's steps.

    Of an experiment with several seeds it is their mean, on the range of them all.
    """
    drawing, axis = plt.subplots(figsize=(5, 3.3), layout="constrained")
    for (experiment, label), (colour, style, marker) in zip(
        figure.experiments, cycle(STYLES), strict=False
    ):
        last = read_log(inputs[f"{experiment}.log"])[-1]["step"]
        scores = [
            (
                last if model.step is None else model.step,
                100 * json.loads(path.read_text(encoding="utf-8"))[figure.measure],
            )
            for name, path in inputs.items()
            for model in [ModelName.parse(name)]
            if path.suffix == ".json" and experiment in (model.experiment, model.training)
        ]
        by_step = pd.DataFrame(scores, columns=["step", "score"]).groupby("step")["score"]
        mean = by_step.mean()
        axis.plot(
            mean.index,
            mean,
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=3,
            label=label,
        )
        axis.fill_between(
            mean.index, by_step.min(), by_step.max(), color=colour, alpha=0.15, linewidth=0
        )
    axis.set_xlabel("step")
    axis.set_ylabel(f"{figure.measure.replace('ndcg_at_', 'nDCG@')} × 100")
    axis.set_title(figure.task, fontsize=9)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return drawing


def draw_pretraining(entries: list[dict[str, Any]]) -> Any:
    """Draw a backbone's loss in training (rolling mean) and on held-out documents."""
    drawing, axis = plt.subplots(figsize=(5, 3.3), layout="constrained")
    frame = pd.DataFrame(entries).set_index("tokens")
    losses = {
        "training": frame["loss"].dropna().rolling(50, min_periods=1).mean(),
        "held out": frame["held_out_loss"].dropna(),
    }
    for (label, values), (colour, style, _) in zip(losses.items(), cycle(STYLES), strict=False):
        axis.plot(values.index / 1e6, values, color=colour, linestyle=style, label=label)
    axis.set_xlabel("million tokens")
    axis.set_ylabel("loss (nats a token)")
    axis.set_ylim(top=float(losses["training"].iloc[min(50, len(losses["training"]) - 1)]))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return drawing


def draw_dynamics(entries: list[dict[str, Any]]) -> Any:
    """Draw the similarity matrix of one batch at each recorded step, chunks named by their text.

    Chunks of the same document have the same letter and colour, and lines between documents.

    Raises:
        RevelaError: the log holds no snapshot.
    """
    snapshots = [(entry["step"], entry["snapshot"]) for entry in entries if "snapshot" in entry]
    if not snapshots:
        raise RevelaError(
            "the training log holds no snapshot: set `similarity_snapshot_steps` in the experiment"
        )
    texts = snapshots[0][1]["texts"]
    documents = snapshots[0][1].get("documents") or [""] * len(texts)  # none in ready-made batches
    order = list(dict.fromkeys(documents))
    letters = ["" if d == "" else _letters(order.index(d)) for d in documents]
    colours = ["black" if d == "" else _INKS[order.index(d) % len(_INKS)] for d in documents]
    size = len(texts)
    drawing, axes = plt.subplots(
        1,
        len(snapshots),
        figsize=(2.8 + 2.4 * len(snapshots), 1.35 + 0.135 * size + 0.08 * len(order)),
        layout="constrained",
        squeeze=False,
    )
    borders = [n - 0.5 for n in range(1, size) if documents[n] != documents[n - 1]]
    for index, (axis, (step, snapshot)) in enumerate(zip(axes[0], snapshots, strict=True)):
        image = axis.imshow(snapshot["similarity"], cmap="cividis", vmin=0, vmax=1)
        axis.set_title(
            f"step {step}\nloss {snapshot['loss']:.2f}, without {snapshot['plain_loss']:.2f}",
            fontsize=9,
        )
        marks = [f"{letter}{number}" for number, letter in enumerate(letters)]
        labels = [f"{_line(text, 40)}  {mark}" for text, mark in zip(texts, marks, strict=True)]
        axis.set_xticks(range(size), marks, fontsize=6, rotation=90)
        axis.set_yticks(range(size), labels if index == 0 else marks, fontsize=6)
        for tick, colour in zip(
            [*axis.get_xticklabels(), *axis.get_yticklabels()], colours * 2, strict=True
        ):
            tick.set_color(colour)
        for border in borders:
            axis.axhline(border, color="white", linewidth=0.8)
            axis.axvline(border, color="white", linewidth=0.8)
        axis.set_xlabel("chunk read", fontsize=8)
    bar = drawing.colorbar(image, ax=list(axes[0]), shrink=0.8, pad=0.01)
    bar.set_label("similarity weight", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    names = [
        Line2D([], [], linestyle="", color=_INKS[n % len(_INKS)], marker=f"${_letters(n)}$",
               label=_line(document, 60))
        for n, document in enumerate(order)
        if document
    ]  # fmt: skip
    if names:
        drawing.legend(
            handles=names, title="documents", loc="outside lower left", ncols=2, fontsize=7,
            title_fontsize=7, labelcolor="markerfacecolor",
        )  # fmt: skip
    return drawing


# Of the colours above those that are dark enough to read on white.
_INKS = ["#0072B2", "#B34700", "#00734F", "#9C3F76"]


def _letters(number: int) -> str:
    """Return A to Z, then AA and so on."""
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)


def _line(text: str, characters: int) -> str:
    line = " ".join(text.split())
    line = line if len(line) <= characters else line[: characters - 1] + "…"
    # matplotlib would read a pair of dollar signs as mathematics.
    return line.replace("$", "\\$")
