"""Tables and comparisons, made from scores and reported figures."""

import json

import pytest

from revela.common.errors import RevelaError
from revela.config.report import Table
from revela.report import commands, reported, tables
from tests.report.common import check_latex, squeezed, write_score


@pytest.fixture
def table(tmp_path):
    for model, task, value in (("m1", "a", 0.5), ("m1", "b", 0.25), ("m2", "a", 0.12345)):
        write_score(tmp_path, model, f"task_{task}", value)
    (tmp_path / "printed.csv").write_text(
        "task,System,One\ntask_a,90.0,49.2\ntask_b,1.5,30.0\nMean,45.8,40.0\n"
    )
    return Table.model_validate(
        {
            "caption": "A & B, 100%",
            "columns": {"task_a": "task_a", "task_b": "task_b"},
            "reported": str(tmp_path / "printed.csv"),
            "rows": [
                {"label": "One", "model": "m1", "reported": "One"},
                {"label": "Two_2", "size": "2B", "model": "m2"},
                {"label": "Paper", "model": "m3", "reported": "System", "ranked": False},
                {"label": "None", "model": "m3"},
            ],
        }
    )


def test_cells_are_measured_reported_or_missing(table, tmp_path):
    assert tables.to_csv(tables.compile_table(table, tmp_path)).splitlines() == [
        "system,task_a,task_b,Mean,source",
        "One,50.0,25.0,37.5,measured",
        "Two_2 2B,12.3,,,measured",
        "Paper,90.0,1.5,45.8,reported",
        "None,,,,missing",
    ]


def test_a_system_of_several_models_is_their_mean(table, tmp_path):
    write_score(tmp_path, "m2", "task_b", 0.5)
    row = table.rows[0].model_copy(update={"model": ["m1", "m2"]})
    several = table.model_copy(update={"rows": [row]})
    cells = tables.compile_table(several, tmp_path).iloc[0]
    assert cells["task_a"] == pytest.approx((50 + 12.345) / 2)
    assert cells["Mean"] == pytest.approx((cells["task_a"] + (25 + 50) / 2) / 2)
    (tmp_path / "m2" / "task_b.json").unlink()
    assert tables.compile_table(several, tmp_path).iloc[0].isna()["task_b"]


def test_columns_of_several_tasks_and_of_subsets(table, tmp_path):
    subsets = {"subsets": {"standard/x": {"ndcg_at_10": 0.1, "acc": 0.2}}, "ndcg_at_10": 0.9}
    (tmp_path / "m1" / "task_c.json").write_text(json.dumps(subsets))
    columns = [("X", ["task_c:standard/x"]), ("AB", ["task_a", "task_b"])]
    changed = table.model_copy(
        update={"columns": columns, "rows": table.rows[:1], "reported": None}
    )
    frame = tables.compile_table(changed, tmp_path)
    assert frame.iloc[0].to_list() == [10.0, 37.5, 23.75, "measured"]
    other = changed.model_copy(update={"measure": "acc", "columns": columns[:1]})
    assert tables.compile_table(other, tmp_path).iloc[0]["Mean"] == 20
    wrong = changed.model_copy(update={"columns": [("X", ["task_c:standard/y"])]})
    with pytest.raises(RevelaError, match=r"task_c\.json: unknown subset 'standard/y'; did you"):
        tables.compile_table(wrong, tmp_path)


def test_the_mean_of_fewer_tasks_than_printed_is_recomputed(table):
    fewer = table.model_copy(update={"columns": [("task_b", ["task_b"])]})
    assert reported.printed_figures(fewer).loc["Paper"].to_dict() == {"task_b": 1.5, "Mean": 1.5}


def test_markdown_marks_the_best(table, tmp_path):
    lines = squeezed(tables.to_markdown(table, tables.compile_table(table, tmp_path)))
    assert lines[2:] == [
        "| | task_a | task_b | Mean | source |",
        "|:-|-:|-:|-:|-:|",
        "| One | **50.0** | **25.0** | **37.5** | measured |",
        "| Two_2 2B | 12.3 | – | – | measured |",
        "| Paper | 90.0 | 1.5 | 45.8 | reported |",
        "| None | – | – | – | missing |",
        "",
        "Two_2 2B: partly measured; missing: task_b",
    ]


@pytest.mark.parametrize(("bold", "bold_names"), [("table", "bc"), ("group", "abc"), ("none", "")])
def test_the_best_of_a_table_or_of_each_group(tmp_path, bold, bold_names):
    (tmp_path / "p.csv").write_text("model,t\na,4.0\nb,5.04\nc,4.96\n")
    groups = {"a": "g1", "b": "g2", "c": "g2"}
    rows = [{"label": name, "group": group, "reported": name} for name, group in groups.items()]
    table = Table(caption="c", rows=rows, reported=str(tmp_path / "p.csv"), bold=bold)
    frame = tables.compile_table(table, tmp_path)
    lines = squeezed(tables.to_markdown(table, frame))[4:]
    assert "".join(line[2] for line in lines if "**" in line) == bold_names
    latex = tables.to_latex(table, frame)
    assert latex.count("\\midrule") == 2  # below the headings, between the groups
    check_latex(latex, tmp_path)


def test_names_that_would_clash_include_the_group(table):
    rows = [("one", "g"), ("two", "g"), ("one", "h"), ("three", "k"), ("four", "")]
    rows = [table.rows[0].model_copy(update={"label": x, "group": g}) for x, g in rows]
    names = table.model_copy(update={"rows": rows}).names()
    assert names == ["g / one", "g / two", "h / one", "three", "four"]


def test_a_transposed_table_has_groups_and_sizes_as_headings(table, tmp_path):
    rows = [
        row.model_copy(update={"group": group, "size": "1B", "shaded": group == "h"})
        for row, group in zip(table.rows, ("g", "g", "h", "h"), strict=True)
    ]
    turned = table.model_copy(update={"rows": rows, "transposed": True})
    frame = tables.compile_table(turned, tmp_path)
    assert squeezed(tables.to_markdown(turned, frame))[2:8:2] == [
        "| | One 1B | Two_2 1B | Paper 1B | None 1B |",
        "| task_a | **50.0** | 12.3 | 90.0 | – |",
        "| Mean | **37.5** | – | 45.8 | – |",
    ]
    text = tables.to_latex(turned, frame)
    grey = "\\cellcolor{gray!20}"
    for line in (
        " & \\multicolumn{2}{c}{g} & \\multicolumn{2}{c}{h} \\\\",
        f" & One & Two\\_2 & {grey}Paper & {grey}None \\\\",
        f"Model Size & 1B & 1B & {grey}1B & {grey}1B \\\\",
        f"task\\_a & \\textbf{{50.0}} & 12.3 & {grey}90.0 & {grey}-- \\\\",
        "source & measured & measured & reported & missing \\\\",
        "\\par\\smallskip Two\\_2 1B: partly measured; missing: task\\_b",
    ):
        assert line in text.splitlines()
    check_latex(text, tmp_path)


def test_latex_escapes(table, tmp_path):
    text = tables.to_latex(table, tables.compile_table(table, tmp_path))
    assert "A \\& B, 100\\%" in text
    assert "Two\\_2 2B & 12.3 & -- & -- & measured \\\\" in text
    odd = table.model_copy(update={"caption": r"~ ^ \ † – → {x}"})
    check_latex(tables.to_latex(odd, tables.compile_table(odd, tmp_path)), tmp_path)


def test_a_comparison_has_three_figures_and_a_verdict(table, tmp_path):
    frame = reported.compare(table, tables.measured_figures(table, tmp_path))
    assert tables.to_csv(frame).splitlines() == [
        "system,task,printed,recomputed,adds_up,note,measured,difference,verdict",
        "One,task_a,49.2,,,,50.0,0.8,reproduced",
        "One,task_b,30.0,,,,25.0,-5.0,lower",
        "One,Mean,40.0,39.6,no,,37.5,-2.1,lower",
        "Paper,task_a,90.0,,,,,,not measured",
        "Paper,task_b,1.5,,,,,,not measured",
        "Paper,Mean,45.8,45.8,yes,,,,not measured",
    ]
    commands.compare(table, tmp_path, tmp_path / "compared.csv")
    lines = squeezed((tmp_path / "compared.md").read_text())
    assert lines[4] == "| One | task_a | 49.2 | – | | | 50.0 | 0.8 | reproduced |"
    tight = table.model_copy(update={"tolerance": 0.5})
    again = reported.compare(tight, tables.measured_figures(table, tmp_path))
    assert again["verdict"].iloc[0] == "higher"


@pytest.mark.parametrize(
    ("note", "verdict", "mean"),  # of 37.25 with the right figure, of 39.6
    [("misplaced,25.3", "reproduced", 0.25), ("copied,", "lower", -2.1)],
)
def test_a_misplaced_figure_is_compared_with_the_right_one(table, tmp_path, note, verdict, mean):
    (tmp_path / "notes.csv").write_text(f"system,task,note,published\nOne,task_b,{note}\n")
    table = table.model_copy(update={"notes": str(tmp_path / "notes.csv")})
    lines = reported.compare(table, tables.measured_figures(table, tmp_path)).loc["One"]
    assert lines["verdict"].to_list() == ["reproduced", verdict, verdict]
    assert lines["difference"].to_list()[2] == pytest.approx(mean)
    assert lines["note"].to_list() == ["", note.partition(",")[0], ""]
    assert lines["printed"].to_list()[1] == 30


def test_a_verified_system_may_be_named_like_a_missing_value(tmp_path, capsys):
    lines = "system,task,difference,verdict\nNA,null,,reproduced\n"
    (tmp_path / "compared.csv").write_text(lines)
    commands.verify([tmp_path / "compared.csv"])
    assert capsys.readouterr().out.split()[4:] == ["NA", "null", "NaN", "reproduced"]
