"""Figures of trainings: losses, scores over the steps, the cost of a step."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from revela.config.names import ModelName
from revela.config.report import CurvesFigure, LearningFigure, StepCostFigure
from revela.report.tables import read_score
from revela.training.trainlog import read_log

_CURVES = {
    "loss": "training loss, relative to its start",
    "plain_loss_gain": "loss without − with in-batch attention (nats)",
    "top_similarity": "mean largest similarity weight",
    "rows_learning": "share of chunks that train the retriever",
}


def draw_curves(figure: CurvesFigure, logs: dict[str, Path]) -> Figure:
    """Draw rolling means of each experiment's loss, gain of attention and similarity weights."""
    drawing = Figure(figsize=(8, 6))
    axes = dict(zip(_CURVES, drawing.subplots(2, 2).flat, strict=True))
    for experiment, label in figure.experiments:
        log = pd.DataFrame(read_log(logs[experiment]), columns=["step", *_CURVES])
        for name, axis in axes.items():
            values = log.set_index("step")[name].dropna()
            width = max(1, len(values) // 20)
            if name == "loss":
                values = values / values.iloc[:width].mean()
            marker = "" if len(values) > 1 else None  # a line, or a single point
            axis.plot(values.rolling(width, min_periods=1).mean(), label=label, marker=marker)
            axis.set(title=_CURVES[name], xlabel="step")
            axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes["loss"].legend()
    axes["rows_learning"].set_ylim(-0.05, 1.05)
    return drawing


def draw_learning(figure: LearningFigure, inputs: dict[str, Path]) -> Figure:
    """Draw the scores of experiments on a task over the training steps, mean and range of seeds."""
    drawing = Figure(figsize=(5, 3.3))
    axis = drawing.subplots()
    scores = learning_scores(figure, inputs)
    for _, label in figure.experiments:
        by_step = scores[scores["label"] == label].groupby("step")["score"]
        (line,) = axis.plot(by_step.mean(), label=label, clip_on=False)
        lowest, highest = by_step.min(), by_step.max()
        axis.fill_between(lowest.index, lowest, highest, color=line.get_color(), alpha=0.15, lw=0)
    measure = figure.measure.replace("ndcg_at_", "nDCG@")
    axis.set(title=figure.task, xlabel="step", ylabel=f"{measure} × 100")
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axis.legend()
    return drawing


def learning_scores(figure: LearningFigure, inputs: dict[str, Path]) -> pd.DataFrame:
    """Return label, step and score × 100 of each kept retriever, one row per seed."""
    scores = []
    for experiment, label in figure.experiments:
        last = read_log(inputs[f"{experiment}.log"])[-1]["step"]
        scores += [
            (label, last if model.step is None else model.step, read_score(path, figure.measure))
            for name, path in inputs.items()
            for model in [ModelName.parse(name)]
            if path.suffix == ".json" and experiment in (model.experiment, model.training)
        ]
        if figure.start:
            scores.append((label, 0, read_score(inputs[figure.start], figure.measure)))
    return pd.DataFrame(scores, columns=["label", "step", "score"])


def learning_text(figure: LearningFigure, inputs: dict[str, Path]) -> str:
    """Return the means of `learning_scores` as text: one row per label, one column per step."""
    means = learning_scores(figure, inputs).pivot_table("score", "label", "step", sort=True)
    bars = "▁▂▃▄▅▆▇█"
    height = means.max(axis=None) / (len(bars) - 1) or 1  # all scores may be 0
    rows = means.map("{:.1f}".format)
    curves = means.map(lambda v: " " if pd.isna(v) else bars[round(v / height)])
    rows["curve"] = curves.sum(axis=1)
    measure = figure.measure.replace("ndcg_at_", "nDCG@")
    lines = rows.rename_axis(index=None, columns="step").to_string()
    return f"{measure} × 100 on {figure.task}\n{lines}"


_GUIDE: dict[str, Any] = {"color": "#777777", "linewidth": 0.8}


def draw_step_cost(_: StepCostFigure, inputs: dict[str, Path]) -> Figure:
    """Draw time and peak memory of a step of REPLUG and Revela over the batch size (log-log).

    Thin lines show the growth that the paper derives, B² for REPLUG's time and B for Revela's,
    through the values at the largest batch size, measured by `bench/training/step_cost.py`.
    """
    costs = pd.read_csv(inputs["step-cost"]).set_index("batch_size")
    sizes = costs.index
    share = sizes / sizes[-1]
    drawing = Figure()
    axes = drawing.subplots(1, 2)
    panels = ("seconds", "time of a step (s)"), ("memory_gb", "peak memory of a step (GB)")
    for axis, (measure, title) in zip(axes, panels, strict=True):
        revela, replug = costs[f"revela_{measure}"], costs[f"replug_{measure}"]
        axis.plot(revela, label="Revela")
        axis.plot(replug, label="REPLUG")
        axis.plot(sizes, share * revela.iloc[-1], "-", label="growth with B", **_GUIDE)
        if measure == "seconds":
            axis.plot(sizes, share**2 * replug.iloc[-1], "--", label="growth with B²", **_GUIDE)
        axis.set(xscale="log", yscale="log", title=title, xlabel="batch size B")
        axis.set_xticks(sizes, sizes)
        axis.yaxis.set_major_formatter("{x:g}")  # by default, powers of ten are mathematics
        axis.minorticks_off()
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    drawing.supxlabel(costs["machine"].iloc[0], fontsize=5, color="#555555")
    return drawing
