"""Tables and figures: what is measured, reported and missing, in three formats."""

import json
import shutil
import subprocess

import pytest

from revela import figures, tables
from revela.config import CurvesFigure, DynamicsFigure, FolderBenchmark, Table
from revela.errors import RevelaError
from revela.trainlog import append_line

BENCHMARK = FolderBenchmark(source="folder", path="x", tasks=["task_a", "task_b"])


@pytest.fixture
def table(tmp_path):
    for model, scores in {"m1": {"task_a": 0.5, "task_b": 0.25}, "m2": {"task_a": 0.12345}}.items():
        for task, value in scores.items():
            (tmp_path / model).mkdir(exist_ok=True)
            (tmp_path / model / f"{task}.json").write_text(json.dumps({"ndcg_at_10": value}))
    (tmp_path / "printed.csv").write_text("task,System\ntask_a,90.0\ntask_b,1.5\nMean,45.8\n")
    reported = {"file": str(tmp_path / "printed.csv"), "column": "System"}
    return Table.model_validate(
        {
            "caption": "A & B, 100%",
            "benchmark": "b",
            "rows": [
                {"label": "One", "model": "m1"},
                {"label": "Two_2", "model": "m2"},
                {"label": "Paper", "reported": reported},
            ],
        }
    )


def test_cells_are_measured_reported_or_missing(table, tmp_path):
    csv = tables.to_csv(tables.compile_table(table, BENCHMARK, tmp_path))
    assert csv.splitlines() == [
        "system,task_a,task_b,Mean,source",
        "One,50.0,25.0,37.5,measured",
        "Two_2,12.3,,,measured",
        "Paper,90.0,1.5,45.8,reported",
    ]


def test_markdown_marks_the_best_measured(table, tmp_path):
    frame = tables.compile_table(table, BENCHMARK, tmp_path)
    lines = tables.to_markdown(frame, table.caption).splitlines()
    assert lines[2] == "|  | task_a | task_b | Mean | source |"
    assert lines[4] == "| One | **50.0** | **25.0** | **37.5** | measured |"
    assert lines[5] == "| Two_2 | 12.3 | – | – | measured |"
    assert lines[6] == "| Paper | 90.0 | 1.5 | 45.8 | reported |"


def test_latex_escapes_and_compiles(table, tmp_path):
    frame = tables.compile_table(table, BENCHMARK, tmp_path)
    text = tables.to_latex(frame, table.caption)
    assert "A \\& B, 100\\%" in text
    assert "Two\\_2 & 12.3 & -- & -- & measured \\\\" in text
    assert text.count("{") == text.count("}")
    if shutil.which("pdflatex"):
        head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}"
        (tmp_path / "t.tex").write_text(head + text + "\\end{document}")
        subprocess.run(
            ["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True
        )


def test_reported_figures_that_are_not_there(table, tmp_path):
    def changed(**row):
        return table.model_copy(update={"rows": [table.rows[2].model_copy(update=row)]})

    reported = table.rows[2].reported
    wrong = changed(reported=reported.model_copy(update={"column": "Sytem"}))
    with pytest.raises(RevelaError, match="unknown column 'Sytem'; did you mean 'System'"):
        tables.compile_table(wrong, BENCHMARK, tmp_path)
    (tmp_path / "printed.csv").write_text("task,System\ntask_a,90.0\n")
    with pytest.raises(RevelaError, match="unknown task 'task_b'"):
        tables.compile_table(changed(), BENCHMARK, tmp_path)


def test_an_unknown_measure(table, tmp_path):
    wrong = table.model_copy(update={"measure": "ndcg_at_11"})
    with pytest.raises(
        RevelaError, match="unknown measure 'ndcg_at_11'; did you mean 'ndcg_at_10'"
    ):
        tables.compile_table(wrong, BENCHMARK, tmp_path)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    for step in range(6):
        if step:
            append_line(
                path,
                {
                    "step": step,
                    "loss": 5 - step,
                    "plain_loss": 5.0,
                    "plain_loss_gain": float(step),
                    "top_similarity": 0.1 * step,
                },
            )
        if step in (0, 5):
            snapshot = {
                "texts": ["a", "b$ c$"],
                "similarity": [[0, 1], [1, 0]],
                "loss": 1.0,
                "plain_loss": 2.0,
            }
            append_line(path, {"step": step, "snapshot": snapshot})
    return path


def test_figures_are_drawn_and_repeatable(log, tmp_path):
    curves = CurvesFigure(kind="curves", caption="c", experiments={"e": "label"})
    dynamics = DynamicsFigure(kind="dynamics", caption="c", experiment="e")
    for figure in (curves, dynamics):
        for kind, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            files = [tmp_path / f"{n}.{kind}" for n in (1, 2)]
            for file in files:
                figures.save(figures.draw(figure, {"e": log}), file, kind)
            assert files[0].read_bytes().startswith(magic)
            assert files[0].read_bytes() == files[1].read_bytes()


def test_dynamics_show_each_recorded_step(log):
    figure = DynamicsFigure(kind="dynamics", caption="c", experiment="e")
    drawing = figures.draw(figure, {"e": log})
    titles = [axis.get_title() for axis in drawing.axes if axis.get_title()]
    assert [title.split("\n")[0] for title in titles] == ["step 0", "step 5"]


def test_a_log_without_snapshots(tmp_path):
    append_line(tmp_path / "log.jsonl", {"step": 1, "loss": 1.0})
    figure = DynamicsFigure(kind="dynamics", caption="c", experiment="e")
    with pytest.raises(RevelaError, match="no snapshot"):
        figures.draw(figure, {"e": tmp_path / "log.jsonl"})
