"""Figures, made from compiled tables and training logs."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from revela.config import load_config
from revela.config.report import (
    BarsFigure,
    CurvesFigure,
    DynamicsFigure,
    LearningFigure,
    StepCostFigure,
    TrendFigure,
)
from revela.report import figures, tables
from revela.report.training_figures import learning_text
from revela.training.trainlog import append_line
from tests.report.common import ROOT, rows_of


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    snapshot = {"texts": ["a", "b$ c$"], "documents": ["first", "second"]}
    snapshot |= {"similarity": [[0, 1], [1, 0]], "loss": 1.0, "plain_loss": 2.0}
    append_line(path, {"step": 0, "snapshot": snapshot})
    for step in range(1, 6):
        losses = {"loss": 5 - step, "plain_loss": 5.0, "plain_loss_gain": float(step)}
        append_line(path, {"step": step, **losses, "top_similarity": 0.1 * step})
    append_line(path, {"step": 5, "snapshot": snapshot})
    return path


COMPILED = """system,task,Mean,source
Revela 1B / b4,1.0,10.0,measured
Revela 1B / b16,1.0,30.0,reported
Revela 2B / b4,1.0,20.0,reported
Other 2B / b8,,,missing
"""
COST = """batch_size,replug_seconds,revela_seconds,replug_memory_gb,revela_memory_gb,machine
2,1.0,1.0,0.1,0.1,some machine
8,16.0,4.0,0.4,0.4,some machine
"""


@pytest.fixture
def inputs(log, tmp_path):
    (tmp_path / "table.csv").write_text(COMPILED)
    (tmp_path / "cost.csv").write_text(COST)
    return {"e": log, "t": tmp_path / "table.csv", "step-cost": tmp_path / "cost.csv"}


ODD = r"$\frac$ x"
FIGURES = [
    BarsFigure(kind="bars", caption="c", tables={"t": ODD}),
    TrendFigure(kind="trend", caption="c", tables={"t": "T"}, x_label=ODD),
    StepCostFigure(kind="step-cost", caption="c"),
    CurvesFigure(kind="curves", caption="c", experiments={"e": ODD}),
    DynamicsFigure(kind="dynamics", caption="c", experiment="e"),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.kind)
def test_figures_are_deterministic_and_text_between_dollars_is_plain(inputs, tmp_path, figure):
    for name, text in (("t", "Revela 1B"), ("t", "b16"), ("step-cost", "some machine")):
        inputs[name].write_text(inputs[name].read_text().replace(text, ODD))
    inputs["e"].write_text(inputs["e"].read_text().replace("b$ c$", r"$\\frac$ x"))
    files = [tmp_path / f"{n}.pdf" for n in (1, 2)]
    for file in files:
        drawing = figures.draw(figure, inputs)
        figures.save(drawing, file, "pdf")
    assert files[0].read_bytes().startswith(b"%PDF")
    assert files[0].read_bytes() == files[1].read_bytes()
    texts = drawing.findobj(Text)
    assert any(ODD in text.get_text() for text in texts)
    # matplotlib's own labels have none.
    assert not any("$" in text.get_text().replace(ODD, "") for text in texts)
    assert not any(text.get_parse_math() for text in texts)


def test_bars_show_means_and_hatch_reported_systems(inputs):
    (axis,) = figures.draw(FIGURES[0], inputs).axes
    bars = [patch for patch in axis.patches if patch.get_width()]
    assert [bar.get_height() for bar in bars] == [10, 30, 20, 0]
    assert [text.get_text() for text in axis.texts] == ["10.0", "30.0", "20.0", "–"]
    assert [bool(bar.get_hatch()) for bar in bars] == [False, True, True, False]
    colours = [bar.get_facecolor() for bar in bars]
    assert colours[0] == colours[1] == colours[2] != colours[3]  # only Revela is dark


def test_a_trend_has_one_line_per_group(inputs):
    drawing = figures.draw(FIGURES[1], inputs)
    (axis,) = drawing.axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["b4", "b16", "b8"]
    solid = [line for line in axis.lines if line.get_linestyle() != "None"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in solid}
    assert lines["Revela 1B"] == [[0, 10], [1, 30]]
    assert lines["Revela 2B"] == [[0, 20]]
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xydata().tolist() for line in hollow][:2] == [[[1, 30]], [[0, 20]]]
    entries = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert entries == ["Revela 1B", "Revela 2B", "Other 2B", "measured here", "as reported"]


def test_a_trend_shows_intervals_and_systems_may_be_named_by_numbers(tmp_path):
    """The mean of 16 is rounded out of its interval."""
    table = "system,task,Mean,source\n4,1.0,10.0,measured\n16,1.0,1.0,measured\n"
    (tmp_path / "t.csv").write_text(table)
    beside = "system,column,ci_low,ci_high\n4,Mean,8,13\n4,task,0,2\n16,Mean,0.9,0.96\n"
    (tmp_path / "t_significance.csv").write_text(beside)
    for figure in FIGURES[:2]:
        (axis,) = figures.draw(figure, {"t": tmp_path / "t.csv"}).axes
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["4", "16"]
    bars = [bar for lines in axis.collections for bar in lines.get_segments() if len(bar)]
    assert [bar.tolist() for bar in bars] == [[[0, 8], [0, 13]], [[1, 0.9], [1, 1]]]


def test_a_single_point_is_drawn_as_a_marker(inputs, tmp_path):
    append_line(tmp_path / "short.jsonl", {"step": 1, "loss": 5.0, "top_similarity": 0.1})
    for log, marker in ((tmp_path / "short.jsonl", "o"), (inputs["e"], "")):
        (line,) = figures.draw(FIGURES[3], {"e": log}).axes[0].lines
        assert line.get_marker() == marker


def learning(tmp_path, log, scores, **changes):
    """Return a learning figure and its inputs, the scores of some models."""
    settings = {"caption": "c", "task": "t", "experiments": {"e": "E"}} | changes
    figure = LearningFigure(kind="learning", **settings)
    paths = {"e.log": log}
    for name, value in scores.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps({figure.measure: value, "other": 0.9}))
    return figure, paths


def test_a_learning_curve_shows_mean_and_range_of_seeds(log, tmp_path):
    scores = {"e@0": 0.1, "e": 0.5, "e-seed1@0": 0.2, "e-seed1": 0.3, "e-other": 0.9}
    (axis,) = figures.draw(*learning(tmp_path, log, scores)).axes
    (line,) = axis.lines
    assert line.get_xydata() == pytest.approx(np.array([[0, 15], [5, 40]]))
    assert not line.get_clip_on()  # a score of 0 is on the frame
    (band,) = axis.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.round(6).tolist()}
    assert corners == {(0, 10), (0, 20), (5, 30), (5, 50)}


@pytest.mark.parametrize(
    ("measure", "label"), [("ndcg_at_10", "nDCG@10"), ("recall_at_5", "recall_at_5")]
)
def test_a_learning_curve_starts_at_the_untouched_model(log, tmp_path, measure, label):
    scores = {"e": 0.5, "untouched": 0.1}
    figure, paths = learning(tmp_path, log, scores, start="untouched", measure=measure)
    (axis,) = figures.draw(figure, paths).axes
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0, 10], [5, 50]]))
    assert axis.get_ylabel() == f"{label} × 100"
    title, *rows = learning_text(figure, paths).splitlines()
    assert title == f"{label} × 100 on t"
    words = ["step", "0", "5", "curve"], ["E", "10.0", "50.0", "▂█"]
    assert [row.split() for row in rows] == [*words]
    zeros = learning_text(*learning(tmp_path, log, {"e@0": 0.0, "e": 0.0}))
    assert zeros.split()[-4:] == ["E", "0.0", "0.0", "▁▁"]


def test_step_cost_is_drawn_with_the_growth_derived_in_the_paper(inputs):
    time, memory = figures.draw(FIGURES[2], inputs).axes
    drawn = {line.get_label(): line.get_ydata().tolist() for line in time.lines}
    assert drawn["REPLUG"] == [1, 16] == drawn["growth with B²"]
    assert drawn["Revela"] == [1, 4] == drawn["growth with B"]
    assert {line.get_label() for line in memory.lines} == {"REPLUG", "Revela", "growth with B"}


@pytest.mark.parametrize("name", ["bright-beir", "batch-sizes", "lm-sizes"])
def test_figures_of_the_paper_are_drawn_from_its_scores(paper, name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    figure = load_config(Path("config.yaml")).figures[name]
    compiled = {table: tmp_path / f"{table}.csv" for table, _ in figure.tables}
    for table, path in compiled.items():
        path.write_text(tables.to_csv(tables.compile_table(paper[table], tmp_path)))
    drawing = figures.draw(figure, compiled)
    shown = {text.get_text() for axis in drawing.axes for text in axis.texts}
    printed = {mean for table in compiled for *_, mean in rows_of(table)[1].values()}
    assert shown == printed
    assert drawing.legends[0].get_texts()[-1].get_text() == "as reported"


def test_dynamics_have_a_panel_per_step_and_label_chunks_by_document(log):
    drawing = figures.draw(FIGURES[4], {"e": log})
    titles = [axis.get_title() for axis in drawing.axes if axis.get_title()]
    assert [title.split("\n")[0] for title in titles] == ["step 0", "step 5"]
    labels = drawing.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["a  A0", "b$ c$  B1"]
    assert labels[0].get_color() != labels[1].get_color()
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["first", "second"]
    log.write_text(log.read_text().replace('["first", "second"]', "null"))
    drawing = figures.draw(FIGURES[4], {"e": log})
    assert drawing.axes[0].get_yticklabels()[0].get_text() == "a  0"
    assert not drawing.legends


def test_characters_are_drawn_by_a_font_that_has_them(log, tmp_path):
    text = "b ♥ \ue000"  # the last one is in STIXNonUnicode, which comes with matplotlib
    log.write_text(log.read_text().replace('"b$ c$"', json.dumps(text)))
    drawing = figures.draw(FIGURES[4], {"e": log})
    with warnings.catch_warnings(action="error"):  # of missing glyphs
        figures.save(drawing, tmp_path / "figure.png", "png")
    assert f"{text}  B1" in [label.get_text() for label in drawing.axes[0].get_yticklabels()]


def test_curves_are_rolling_means_over_the_steps(tmp_path):
    for n in range(1, 41):
        loss = 8.0 if n <= 2 else 4.0
        append_line(tmp_path / "a.jsonl", {"step": 2 * n, "loss": loss, "plain_loss_gain": n})
    drawing = figures.draw(FIGURES[3], {"e": tmp_path / "a.jsonl"})
    loss, gain = (axis.lines[0].get_xydata().tolist() for axis in drawing.axes[:2])
    assert [point[0] for point in loss] == list(range(2, 81, 2))
    assert [point[1] for point in loss][:5] == [1, 1, 0.75, 0.5, 0.5]  # relative to its start
    assert gain[-1] == [80, 39.5]
