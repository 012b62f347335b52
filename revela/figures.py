"""Figures: of a training here, of tables and benches in `table_figures`."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from revela.errors import RevelaError
from revela.report_settings import (
    AnyFigure,
    BarsFigure,
    CostFigure,
    CurvesFigure,
    DynamicsFigure,
    LearningFigure,
    PretrainingFigure,
    TrendFigure,
)
from revela.trainlog import read_log

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from revela.table_figures import STYLES, draw_bars, draw_cost, draw_trend


def draw(figure: AnyFigure, inputs: dict[str, Path]) -> Any:
    """Return a matplotlib figure.

    Args:
        figure: what to draw.
        inputs: training logs by experiment or backbone; tables by name; the `cost` bench; for a
            learning figure scores by model, and each experiment's log as well.
    """
    match figure:
        case BarsFigure():
            return draw_bars(figure, inputs)
        case TrendFigure():
            return draw_trend(figure, inputs)
        case CostFigure():
            return draw_cost(inputs["cost"])
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
    """Draw each experiment's loss relative to its start, the gain of attention, the sharpness."""
    drawing, axes = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    panels = [
        ("loss", "training loss, share of its start"),
        ("plain_loss_gain", "loss without − with in-batch attention (nats)"),
        ("top_similarity", "mean largest similarity weight"),
    ]
    for (label, entries), (colour, style, _) in zip(logs.items(), STYLES, strict=False):
        frame = pd.DataFrame([entry for entry in entries if "loss" in entry]).set_index("step")
        width = max(1, len(frame) // 40)
        for axis, (name, _) in zip(axes, panels, strict=True):
            if name not in frame:
                continue
            values = frame[name].dropna()
            if name == "loss":
                values = values / values.iloc[:width].mean()
            if name != "plain_loss_gain":
                values = values.rolling(width, min_periods=1).mean()
            axis.plot(values.index, values, color=colour, linestyle=style, label=label)
    for axis, (_, title) in zip(axes, panels, strict=True):
        axis.set_xlabel("step")
        axis.set_title(title, fontsize=9)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    return drawing


def draw_learning(figure: LearningFigure, inputs: dict[str, Path]) -> Any:
    """Draw what each experiment scores on a task against the training's steps."""
    drawing, axis = plt.subplots(figsize=(5, 3.3), layout="constrained")
    for (experiment, label), (colour, style, marker) in zip(
        figure.experiments, STYLES, strict=False
    ):
        points = {}
        for name, path in inputs.items():
            model, _, step = name.partition("@")
            if model == experiment and path.suffix == ".json":
                last = read_log(inputs[f"{experiment}.log"])[-1]["step"]
                score = json.loads(path.read_text(encoding="utf-8"))[figure.measure]
                points[int(step or last)] = 100 * score
        steps = sorted(points)
        axis.plot(
            steps,
            [points[step] for step in steps],
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=3,
            label=label,
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
    for (label, values), (colour, style, _) in zip(losses.items(), STYLES, strict=False):
        axis.plot(values.index / 1e6, values, color=colour, linestyle=style, label=label)
    axis.set_xlabel("million tokens")
    axis.set_ylabel("loss (nats a token)")
    axis.set_ylim(top=float(losses["training"].iloc[min(50, len(losses["training"]) - 1)]))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return drawing


def draw_dynamics(entries: list[dict[str, Any]]) -> Any:
    """Draw the similarity matrix of one batch at each recorded step, chunks named by their text.

    Raises:
        RevelaError: the log holds no snapshot.
    """
    snapshots = [(entry["step"], entry["snapshot"]) for entry in entries if "snapshot" in entry]
    if not snapshots:
        raise RevelaError("the training log holds no snapshot: set `snapshots` in the experiment")
    size = len(snapshots[0][1]["texts"])
    labels = [_label(number, text) for number, text in enumerate(snapshots[0][1]["texts"])]
    drawing, axes = plt.subplots(
        1,
        len(snapshots),
        figsize=(3 + 3.4 * len(snapshots), 1.2 + 0.24 * size),
        layout="constrained",
        squeeze=False,
    )
    for index, (axis, (step, snapshot)) in enumerate(zip(axes[0], snapshots, strict=True)):
        image = axis.imshow(snapshot["similarity"], cmap="cividis", vmin=0, vmax=1)
        axis.set_title(
            f"step {step}\nloss {snapshot['loss']:.2f}, without attention "
            f"{snapshot['plain_loss']:.2f}",
            fontsize=9,
        )
        axis.set_xticks(range(size), [str(number) for number in range(size)], fontsize=6)
        axis.set_yticks(range(size), labels if index == 0 else [""] * size, fontsize=6)
        axis.set_xlabel("document read")
    drawing.colorbar(image, ax=axes[0][-1], label="similarity weight", shrink=0.8)
    return drawing


def _label(number: int, text: str) -> str:
    line = " ".join(text.split())
    # matplotlib would read a pair of dollar signs as mathematics.
    return f"{line[:44].replace('$', chr(92) + '$')}…  {number}"
