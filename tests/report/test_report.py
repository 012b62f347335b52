"""Tables, comparisons, listings and figures, made from scores, reported figures and logs."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager

from revela.common.errors import RevelaError
from revela.config import load_config
from revela.config.printed import read_listing
from revela.config.report import (
    BarsFigure,
    CurvesFigure,
    DynamicsFigure,
    LearningFigure,
    Listing,
    PretrainingFigure,
    StepCostFigure,
    Table,
    TrendFigure,
)
from revela.config.settings import parse_settings
from revela.report import commands, figures, listings, reported, tables
from revela.report.ranking import first_ranked
from revela.report.training_figures import learning_text
from revela.text.batching import SCHEMA
from revela.text.rows import write_parquet
from revela.training.trainlog import append_line

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(tmp_path):
    scores = {"m1": {"task_a": 0.5, "task_b": 0.25}, "m2": {"task_a": 0.12345}, "m3": {}}
    for model, found in scores.items():
        for task, value in found.items():
            write_score(tmp_path, model, task, value)
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


def write_score(folder, model, task, value):
    (folder / model).mkdir(exist_ok=True)
    (folder / model / f"{task}.json").write_text(json.dumps({"ndcg_at_10": value}))


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
    subsets = {"subsets": {"standard/x": {"ndcg_at_10": 0.1}}, "ndcg_at_10": 0.9}
    (tmp_path / "m1" / "task_c.json").write_text(json.dumps(subsets))
    columns = [("X", ["task_c:standard/x"]), ("AB", ["task_a", "task_b"])]
    changes = {"columns": columns, "rows": [table.rows[1].model_copy(update={"model": ["m1"]})]}
    changed = table.model_copy(update=changes | {"reported": None})
    frame = tables.compile_table(changed, tmp_path)
    assert frame.iloc[0].to_list() == [10.0, 37.5, 23.75, "measured"]
    wrong = changed.model_copy(update={"columns": [("X", ["task_c:standard/y"])]})
    with pytest.raises(RevelaError, match=r"task_c\.json: unknown subset 'standard/y'; did you"):
        tables.compile_table(wrong, tmp_path)


def test_the_mean_of_fewer_tasks_than_printed_is_recomputed(table):
    fewer = table.model_copy(update={"columns": [("task_b", ["task_b"])]})
    assert reported.printed_figures(fewer).loc["Paper"].to_dict() == {"task_b": 1.5, "Mean": 1.5}


def squeezed(markdown):
    """Return the lines of Markdown without the spaces that align columns."""
    return [re.sub("-+", "-", re.sub(" +", " ", line)) for line in markdown.splitlines()]


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


@pytest.mark.parametrize(
    ("bold", "expected"),
    [
        ("table", "4.0 **5.0** **5.0**"),
        ("group", "**4.0** **5.0** **5.0**"),
        ("none", "4.0 5.0 5.0"),
    ],
)
def test_the_best_of_a_table_or_of_each_group(tmp_path, bold, expected):
    (tmp_path / "p.csv").write_text("model,t\na,4.0\nb,5.04\nc,4.96\n")
    rows = [
        {"label": name, "group": group, "reported": name}
        for name, group in (("a", "g1"), ("b", "g2"), ("c", "g2"))
    ]
    table = Table(caption="c", rows=rows, reported=str(tmp_path / "p.csv"), bold=bold)
    frame = tables.compile_table(table, tmp_path)
    lines = squeezed(tables.to_markdown(table, frame))[4:]
    assert " ".join(line.split(" | ")[1] for line in lines) == expected
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


def test_equal_headings_are_merged_only_as_groups(paper, tmp_path):
    text = tables.to_latex(paper["bright"], tables.compile_table(paper["bright"], tmp_path))
    assert " & Revela & Revela & REPLUG" in text


def test_latex_escapes(table, tmp_path):
    text = tables.to_latex(table, tables.compile_table(table, tmp_path))
    assert "A \\& B, 100\\%" in text
    assert "Two\\_2 2B & 12.3 & -- & -- & measured \\\\" in text
    odd = table.model_copy(update={"caption": r"~ ^ \ † – → {x}"})
    check_latex(tables.to_latex(odd, tables.compile_table(odd, tmp_path)), tmp_path)


def check_latex(text, folder):
    """Compile the table if LaTeX is installed; check braces and columns in any case."""
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert text.isascii()
    body = text[text.index("\\toprule") :]
    columns = re.search(r"begin\{tabular\}\{((?:[lr]|p\{.+?\})+)\}", text).group(1)
    columns = re.sub(r"p\{.+?\}", "p", columns)
    for line in body.splitlines():
        if line.endswith("\\\\"):
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) + 1 == len(columns), line
    if engine := shutil.which("pdflatex") or shutil.which("tectonic"):
        head = "\\documentclass{article}\\usepackage{booktabs}\\usepackage[table]{xcolor}"
        head += "\\usepackage{hyperref}"
        (folder / "t.tex").write_text(f"{head}\\begin{{document}}{text}\\end{{document}}")
        options = ["-halt-on-error"] if "pdflatex" in engine else []
        subprocess.run([engine, *options, "t.tex"], cwd=folder, check=True, capture_output=True)


# ---------------------------------------------------------------------------- comparisons


def test_a_comparison_has_three_figures_and_a_verdict(table, tmp_path):
    frame = reported.compare(table, tables.measured_figures(table, tmp_path))
    assert tables.to_csv(frame).splitlines() == [
        "system,task,printed,recomputed,adds_up,measured,difference,verdict",
        "One,task_a,49.2,,,50.0,0.8,reproduced",
        "One,task_b,30.0,,,25.0,-5.0,lower",
        "One,Mean,40.0,39.6,no,37.5,-2.1,lower",
        "Paper,task_a,90.0,,,,,not measured",
        "Paper,task_b,1.5,,,,,not measured",
        "Paper,Mean,45.8,45.8,yes,,,not measured",
    ]
    commands.compare(table, tmp_path, tmp_path / "compared.csv")
    lines = squeezed((tmp_path / "compared.md").read_text())
    assert lines[4] == "| One | task_a | 49.2 | – | | 50.0 | 0.8 | reproduced |"
    tight = table.model_copy(update={"tolerance": 0.5})
    again = reported.compare(tight, tables.measured_figures(table, tmp_path))
    assert again["verdict"].iloc[0] == "higher"


@pytest.fixture(scope="module")
def paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(Path("config.yaml"))
        yield {name: config.table(name) for name in config.tables}


LISTINGS = ["bright_tasks", "checkpoints", "coir_tasks", "embedding_models"]
PAPER_TABLES = sorted(
    path.stem
    for path in (ROOT / "data" / "paper").glob("*.csv")
    if path.stem not in [*LISTINGS, "example_batch", "gpu_hours", "corpora", "claims"]
)


def rows_of(name):
    """Return the paper's figures by system, in the order in which they are printed."""
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.reader(stream))
    lines = lines if lines[0][0] == "model" else [list(line) for line in zip(*lines, strict=True)]
    return lines[0][1:], {line[0]: line[1:] for line in lines[1:]}


def test_every_table_of_the_paper_is_in_the_config(paper):
    assert set(PAPER_TABLES) <= set(paper)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_reported_rows_match_the_paper(paper, name, tmp_path):
    table = parse_settings(Table, paper[name].dump())
    headings, rows = rows_of(name)
    frame = tables.compile_table(table, tmp_path)
    assert [row.reported for row in table.rows] == list(rows)
    assert [*frame.columns] == [*headings, "source"]
    for line, expected in zip(
        csv.reader(tables.to_csv(frame).splitlines()[1:]), rows.values(), strict=True
    ):
        assert line[1:] == [*expected, "reported"]
    grid = [
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in tables.to_markdown(table, frame).splitlines()[2:]
        if "---" not in line
    ]
    grid = [list(line) for line in zip(*grid, strict=True)] if table.transposed else grid
    printed = [line[1:-1] for line in grid if line[-1] == "reported"]
    assert printed == list(rows.values())
    check_latex(tables.to_latex(table, frame), tmp_path)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_bold_follows_the_caption(paper, name, tmp_path):
    """The scope is all systems, all but APIs (CoIR), or each group of 2 or 3."""
    table, (_, rows) = paper[name], rows_of(name)
    apis = {"OpenAI-Ada-002", "Voyage-code-002"} if name == "coir" else set()
    size = {"lm_size_coir": 3, "lm_size_beir": 3, "contriever_summary": 2}.get(name, len(rows))
    expected = set()
    systems = list(rows)
    for heading in range(len(rows[systems[0]])):
        for first in range(0, len(systems), size):
            group = [system for system in systems[first : first + size] if system not in apis]
            best = max(float(rows[system][heading]) for system in group)
            expected |= {(s, heading) for s in group if float(rows[s][heading]) == best}
    if name.startswith("batch_size") or name == "lm_after":
        expected = set()
    text = tables.to_latex(table, tables.compile_table(table, tmp_path))
    lines = [line for line in text.splitlines() if line.endswith(" \\\\")]
    grid = [line.split(" & ")[1:] for line in lines if re.search(r"\d\.\d\b", line)]
    turned = grid if not table.transposed else list(zip(*grid, strict=True))
    assert expected == {
        (systems[row], column)
        for row, cells in enumerate(turned)
        for column, cell in enumerate(cells)
        if "textbf" in cell
    }


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_scores_as_in_the_paper_give_its_tables(paper, name, tmp_path):
    table = paper[name]
    headings, rows = rows_of(name)
    for row in table.rows:
        figures = dict(zip(headings, map(float, rows[row.reported]), strict=True))
        for heading, tasks in table.columns:
            for task, _, subset in (entry.partition(":") for entry in tasks):
                if not row.model:
                    continue
                path = tmp_path / row.model[0] / f"{task}.json"
                path.parent.mkdir(exist_ok=True)
                found = json.loads(path.read_text()) if path.exists() else {"subsets": {}}
                score = {table.measure: figures[heading] / 100}
                found.update(score if not subset else {})
                found["subsets"].update({subset: score})
                path.write_text(json.dumps(found))
    frame = tables.compile_table(table, tmp_path)
    means = reported.check_means(table)
    for row, (system, cells) in zip(table.rows, frame.iterrows(), strict=True):
        assert cells["source"] == ("measured" if row.model else "reported")
        shown = [f"{cells[heading]:.1f}" for heading in headings[:-1]]
        assert shown == rows[row.reported][:-1]
        mean = means["recomputed" if row.model else "printed"][system]
        assert cells[table.mean] == pytest.approx(mean)
    compared = reported.compare(table, tables.measured_figures(table, tmp_path))
    assert set(compared["verdict"]) <= {"reproduced", "not measured"}


def test_means_of_the_paper_that_do_not_add_up(paper):
    found = pd.concat({name: reported.check_means(table) for name, table in paper.items()})
    found = found.round(1)
    assert {key: tuple(row) for key, row in found[found["adds_up"] == "no"].iterrows()} == {
        ("coir", "REPLUG 3B"): (53.9, 51.2, "no"),
        ("coir", "Ada-2"): (45.6, 40.6, "no"),
        ("coir", "Voyage-2"): (56.3, 51.2, "no"),
    }
    assert sorted(found.index[found["adds_up"] == "rounding"]) == [
        ("beir", "REPLUG 0.5B"),
        ("fineweb_beir", "Revela 0.1B"),
        ("lm_size_beir", "Revela 0.5B / 0.1B"),
    ]


def test_a_recomputed_mean_is_rounded_half_up(paper):
    means = reported.check_means(paper["contriever_summary"])["recomputed"]
    assert f"{means['Contriever-wiki 1B']:.1f}" == "46.4"  # (51.8 + 40.9) / 2 = 46.35
    means = reported.check_means(paper["bright"])["recomputed"]
    assert f"{means['Revela 1B']:.1f}" == "15.6"  # 186.6 / 12 = 15.55


def test_check_paper_prints_what_does_not_add_up(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    commands.check_paper(Path("config.yaml"))
    lines = capsys.readouterr().out.splitlines()
    assert "coir: REPLUG 3B: Mean printed 53.9, recomputed 51.2" in lines
    assert "beir: REPLUG 0.5B: Mean printed 34.2, recomputed 34.1 (rounding)" in lines
    assert len(lines) == 6


# ---------------------------------------------------------------------------- listings


@pytest.mark.parametrize("name", LISTINGS)
def test_listings_of_the_paper_print_every_cell(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    listing = parse_settings(Listing, load_config(Path("config.yaml")).listings[name].dump())
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        headings, *rows = csv.reader(stream)
    shown = [headings.index(heading) for heading in listing.columns or headings]
    found = read_listing(listing)
    printed = csv.reader(listings.to_csv(listing, found).splitlines())
    assert list(printed) == [[row[n] for n in shown] for row in [headings, *rows]]
    markdown = "\n".join(squeezed(listings.to_markdown(listing, found)))
    latex = listings.to_latex(listing, found)
    for row in rows:
        assert f"| {row[0]} |" in markdown
        for heading, column in listing.links.items():
            text, address = row[headings.index(heading)], row[headings.index(column)]
            assert f"[{text}]({address}) |" in markdown
            assert f"\\href{{{address}}}{{{text}}}" in latex
    groups = {row[headings.index(listing.group)] for row in rows} if listing.group else {""}
    assert latex.count("\\midrule") == len(groups)
    check_latex(latex, tmp_path)


BATCHES = [
    ["Nothing of the kind."] * 16,
    ["Largest Irish island; Michael Davitt | Bridge", *(["Slievemore peat bog " * 20] * 16)],
    ["Irish bog"] * 16,
]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The paper's batch: its listing, the lines of its file, and a function that adds batches."""
    monkeypatch.chdir(ROOT)
    config = load_config(Path("config.yaml"))
    assert config.inputs("listings", "example_batch") == {
        "wikipedia": "results/batches/wikipedia.parquet"
    }
    listing = parse_settings(Listing, config.resolved("listings", "example_batch").dump())
    with Path(listing.file).open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    path = tmp_path / "batches.parquet"

    def listed(batches, documents=True):
        ids = [[f"d{n}" for n, _ in enumerate(texts)] if documents else None for texts in batches]
        rows = [{"source": "wikipedia", "texts": texts, "documents": of_one}
                for texts, of_one in zip(batches, ids, strict=True)]  # fmt: skip
        write_parquet(path, SCHEMA, rows)
        return listings.listed(listing, {"wikipedia": path})

    return listing, lines, listed


def test_the_most_similar_batch_is_shown_beside_the_paper(example, tmp_path):
    listing, lines, listed = example
    found = listed(BATCHES)
    printed = list(csv.DictReader(listings.to_csv(listing, found).splitlines()))
    assert [row["Text here"] for row in printed] == BATCHES[1]
    assert [row["Document"] for row in printed] == [f"d{n}" for n in range(17)]
    assert [row["Text in the paper"] for row in printed] == [
        *(line["Text in the paper"] for line in lines), ""
    ]  # fmt: skip
    markdown = squeezed(listings.to_markdown(listing, found))
    first = f"| 1 | d0 | {BATCHES[1][0]} | {lines[0]['Text in the paper']} |"
    assert first.replace("Davitt |", "Davitt \\|") in markdown
    assert all(len(line) < 400 for line in markdown)
    latex = listings.to_latex(listing, found)
    assert "NaBH$_{4}$/LiAlH$_{4}$" in latex
    assert latex.count("p{0.38\\linewidth}") == 2
    check_latex(latex, tmp_path)


def test_the_first_batch_is_shown_if_none_is_similar(example):
    _, _, listed = example
    batches = [["Unlike"] * 16, ["Also unlike"] * 16]
    assert list(listed(batches)["Text here"]) == batches[0]
    ready_made = listed(BATCHES[2:], documents=False)
    assert list(ready_made["Text here"]) == BATCHES[2]
    assert set(ready_made["Document"]) == {""}


# ---------------------------------------------------------------------------- figures


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
                "documents": ["first", "second"],
                "similarity": [[0, 1], [1, 0]],
                "loss": 1.0,
                "plain_loss": 2.0,
            }
            append_line(path, {"step": step, "snapshot": snapshot})
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


FIGURES = [
    BarsFigure(kind="bars", caption="c", tables={"t": "T"}),
    TrendFigure(kind="trend", caption="c", tables={"t": "T"}, x_label="batch size"),
    StepCostFigure(kind="step-cost", caption="c"),
    CurvesFigure(kind="curves", caption="c", experiments={"e": "label"}),
    DynamicsFigure(kind="dynamics", caption="c", experiment="e"),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.kind)
@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_are_deterministic(inputs, tmp_path, figure, kind, magic):
    files = [tmp_path / f"{n}.{kind}" for n in (1, 2)]
    for file in files:
        figures.save(figures.draw(figure, inputs), file, kind)
    assert files[0].read_bytes().startswith(magic)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_experiments_of_a_figure_keep_their_order():
    figure = CurvesFigure(kind="curves", caption="c", experiments={"z": "1", "a": "2"})
    assert parse_settings(CurvesFigure, figure.dump()).experiments == [("z", "1"), ("a", "2")]


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
    lines = {
        line.get_label(): list(zip(*line.get_data(), strict=True))
        for line in axis.lines
        if line.get_linestyle() != "None"
    }
    assert lines["Revela 1B"] == [(0, 10), (1, 30)]
    assert lines["Revela 2B"] == [(0, 20)]
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xydata().tolist() for line in hollow][:2] == [[[1, 30]], [[0, 20]]]
    entries = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert entries == ["Revela 1B", "Revela 2B", "Other 2B", "measured here", "as reported"]


def test_a_group_looks_the_same_in_all_panels(inputs, tmp_path):
    other = COMPILED.replace("Revela 1B / ", "").replace("b16", "b32")
    (tmp_path / "u.csv").write_text(other)
    tables = {"u": "U", "t": "T"}
    figure = TrendFigure(kind="trend", caption="c", tables=tables, x_label="batch size")
    drawing = figures.draw(figure, inputs | {"u": tmp_path / "u.csv"})
    looks = [
        {line.get_label(): line.get_color() for line in axis.lines if len(line.get_label()) < 10}
        for axis in drawing.axes
    ]
    assert looks[0]["Revela 2B"] == looks[1]["Revela 2B"]
    assert len({*looks[0].values(), *looks[1].values()}) == 4


def test_systems_may_be_named_by_numbers(tmp_path):
    table = "system,task,Mean,source\n4,1.0,10.0,measured\n16,1.0,30.0,measured\n"
    (tmp_path / "t.csv").write_text(table)
    beside = "system,column,ci_low,ci_high\n4,Mean,8,13\n16,Mean,25,31\n"
    (tmp_path / "t_significance.csv").write_text(beside)
    for figure in FIGURES[:2]:
        (axis,) = figures.draw(figure, {"t": tmp_path / "t.csv"}).axes
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["4", "16"]
    bars = [bar for lines in axis.collections for bar in lines.get_segments() if len(bar)]
    assert [bar.tolist() for bar in bars] == [[[0, 8], [0, 13]], [[1, 25], [1, 31]]]


def test_a_trend_shows_the_intervals_of_its_table(inputs):
    beside = "system,column,ci_low,ci_high\nRevela 1B / b4,Mean,8,13\nRevela 1B / b4,task,0,2\n"
    inputs["t"].with_name("table_significance.csv").write_text(beside)
    (axis,) = figures.draw(FIGURES[1], inputs).axes
    bars = [bar for lines in axis.collections for bar in lines.get_segments() if len(bar)]
    assert [bar.tolist() for bar in bars if not np.isnan(bar).any()] == [[[0, 8], [0, 13]]]


def test_a_single_point_is_drawn_as_a_marker(inputs, tmp_path):
    append_line(tmp_path / "short.jsonl", {"step": 1, "loss": 5.0, "top_similarity": 0.1})
    drawing = figures.draw(FIGURES[3], {"e": tmp_path / "short.jsonl"})
    (point,) = drawing.axes[0].lines
    assert point.get_marker() == "o"
    (line, *_) = figures.draw(FIGURES[3], inputs).axes[0].lines
    assert line.get_marker() == ""


def test_a_short_pretraining_is_drawn_in_full(tmp_path):
    path, figure = (
        tmp_path / "short.jsonl",
        PretrainingFigure(kind="pretraining", caption="c", backbone="b"),
    )
    for name, loss in (("loss", 5.0), ("held_out_loss", 5.5)):
        append_line(path, {"step": 1, "tokens": 1000, name: loss})
    (axis,) = figures.draw(figure, {"b": path}).axes
    lowest, highest = axis.get_ylim()
    assert lowest < 5.0 < 5.5 < highest


def test_a_learning_curve_shows_mean_and_range_of_seeds(inputs, tmp_path):
    figure = LearningFigure(kind="learning", caption="c", task="t", experiments={"e": "E"})
    scores = {"e@0": 0.1, "e": 0.5, "e-seed1@0": 0.2, "e-seed1": 0.3, "e-other": 0.9}
    paths = {"e.log": inputs["e"]}
    for name, value in scores.items():
        write_score(tmp_path, name, "t", value)
        paths[name] = tmp_path / name / "t.json"
    (axis,) = figures.draw(figure, paths).axes
    (line,) = axis.lines
    assert line.get_xydata() == pytest.approx(np.array([[0, 15], [5, 40]]))
    assert not line.get_clip_on()  # a score of 0 is on the frame
    (band,) = axis.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.round(6).tolist()}
    assert corners == {(0, 10), (0, 20), (5, 30), (5, 50)}


def test_a_learning_curve_starts_at_the_untouched_model(inputs, tmp_path):
    figure = LearningFigure(
        kind="learning", caption="c", task="t", experiments={"e": "E"}, start="untouched"
    )
    paths = {"e.log": inputs["e"]}
    for name, value in {"e": 0.5, "untouched": 0.1}.items():
        write_score(tmp_path, name, "t", value)
        paths[name] = tmp_path / name / "t.json"
    (line,) = figures.draw(figure, paths).axes[0].lines
    assert line.get_xydata() == pytest.approx(np.array([[0, 10], [5, 50]]))
    title, *rows = learning_text(figure, paths).splitlines()
    assert title == "nDCG@10 × 100 on t"
    assert [row.split() for row in rows] == [
        ["step", "0", "5", "curve"],
        ["E", "10.0", "50.0", "▂█"],
    ]


def test_ranking_prints_the_first_documents_and_marks_relevant_ones(tmp_path):
    rows = {"corpus": ["a mountain", "a  river\nwith mud", "x" * 200], "queries": ["mud?"]}
    for file, texts in rows.items():
        lines = [json.dumps({"_id": f"{file[0]}{n}", "text": t}) for n, t in enumerate(texts)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels.tsv").write_text("q0\tc1\t1\n")
    runs = {"bm25": ["c2", "c0", "c1"], "dense": ["c1", "c2"]}
    for name, documents in runs.items():
        (tmp_path / name).mkdir()
        lines = [f"q0 Q0 {one} {n} {9 - n} {name}" for n, one in enumerate(documents, 1)]
        (tmp_path / name / "t.trec").write_text("\n".join(lines))
    paths = [tmp_path / name / "t.trec" for name in runs]
    assert first_ranked(tmp_path, paths, None, 2).split("\n") == [
        "query: mud?",
        "bm25:",
        f"    {'x' * 88} …",
        "    a mountain",
        "dense:",
        "  ✓ a river with mud",
        f"    {'x' * 88} …",
    ]
    with pytest.raises(RevelaError, match=r"queries\.jsonl: unknown query 'q7'"):
        first_ranked(tmp_path, paths, "q7", 2)


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
    compiled = {}
    for table, _ in figure.tables:
        compiled[table] = tmp_path / f"{table}.csv"
        frame = tables.compile_table(paper[table], tmp_path)
        compiled[table].write_text(tables.to_csv(frame))
    drawing = figures.draw(figure, compiled)
    shown = {text.get_text() for axis in drawing.axes for text in axis.texts}
    printed = {mean for table in compiled for *_, mean in rows_of(table)[1].values()}
    assert shown == printed
    assert drawing.legends[0].get_texts()[-1].get_text() == "as reported"


def test_dynamics_have_a_panel_per_recorded_step(log):
    figure = DynamicsFigure(kind="dynamics", caption="c", experiment="e")
    drawing = figures.draw(figure, {"e": log})
    titles = [axis.get_title() for axis in drawing.axes if axis.get_title()]
    assert [title.split("\n")[0] for title in titles] == ["step 0", "step 5"]


def test_dynamics_label_chunks_by_document(log):
    figure = DynamicsFigure(kind="dynamics", caption="c", experiment="e")
    drawing = figures.draw(figure, {"e": log})
    labels = drawing.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["a  A0", "b\\$ c\\$  B1"]
    assert labels[0].get_color() != labels[1].get_color()
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["first", "second"]
    text = log.read_text().replace('"documents": ["first", "second"]', '"documents": null')
    log.write_text(text)
    drawing = figures.draw(figure, {"e": log})
    assert drawing.axes[0].get_yticklabels()[0].get_text() == "a  0"
    assert not drawing.legends


def test_labels_of_a_small_batch_do_not_overlap(log):
    drawing = figures.draw(FIGURES[4], {"e": log})
    drawing.canvas.draw()
    *panels, bar = drawing.axes
    boxes = [panel.title.get_window_extent() for panel in panels]
    boxes.append(bar.yaxis.label.get_window_extent())
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.fixture
def rare(log):
    """A log whose second text has characters missing in the default font."""
    log.write_text(log.read_text().replace('"b$ c$"', json.dumps("\N{ROCKET} b ♥ 中")))
    return log


def drawn_labels(log, folder):
    """Draw the figure, with warnings as errors; return its labels."""
    drawing = figures.draw(FIGURES[4], {"e": log})
    with warnings.catch_warnings(action="error"):
        figures.save(drawing, folder / "figure.png", "png")
    return [label.get_text() for label in drawing.axes[0].get_yticklabels()]


def test_characters_that_no_font_has_are_replaced(rare, tmp_path, capsys):
    assert drawn_labels(rare, tmp_path) == ["a  A0", ":rocket: b ♥ ?  B1"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"{rare}: no installed font has '中': replaced by ?"


def test_characters_are_drawn_by_a_font_that_has_them(rare, tmp_path, capsys, monkeypatch):
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "middle"])
    builder.setupCharacterMap({ord("中"): "middle"})
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((500, 900))
    pen.lineTo((900, 0))
    pen.closePath()
    builder.setupGlyf({".notdef": pen.glyph(), "middle": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "middle": (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Rare", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "rare.ttf")
    monkeypatch.setattr(fontManager, "ttflist", fontManager.ttflist[:])
    fontManager.addfont(tmp_path / "rare.ttf")
    assert drawn_labels(rare, tmp_path) == ["a  A0", ":rocket: b ♥ 中  B1"]
    assert not capsys.readouterr().out
