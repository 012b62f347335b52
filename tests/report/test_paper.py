"""The paper's tables: their figures, what is bold, and means that do not add up."""

import csv
import json
import re
from pathlib import Path

import pytest

from revela.config import load_config
from revela.config.report import Table
from revela.config.settings import parse_settings
from revela.report import commands, reported, tables
from tests.report.common import PAPER_TABLES, ROOT, check_latex, rows_of


def test_equal_headings_are_merged_only_as_groups(paper, tmp_path):
    text = tables.to_latex(paper["bright"], tables.compile_table(paper["bright"], tmp_path))
    assert " & Revela & Revela & REPLUG" in text


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_reported_rows_match_the_paper(paper, name, tmp_path):
    table = parse_settings(Table, paper[name].dump())
    headings, rows = rows_of(name)
    frame = tables.compile_table(table, tmp_path)
    assert [row.reported for row in table.rows] == list(rows)
    assert [*frame.columns] == [*headings, "source"]
    lines = csv.reader(tables.to_csv(frame).splitlines()[1:])
    assert [line[1:] for line in lines] == [[*figures, "reported"] for figures in rows.values()]
    lines = [
        line for line in tables.to_markdown(table, frame).splitlines()[2:] if "---" not in line
    ]
    grid = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
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
                part = found["subsets"].setdefault(subset, {}) if subset else found
                part[table.measure] = figures[heading] / 100
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


def test_a_recomputed_mean_is_rounded_half_up(paper):
    means = reported.check_means(paper["contriever_summary"])["recomputed"]
    assert f"{means['Contriever-wiki 1B']:.1f}" == "46.4"  # (51.8 + 40.9) / 2 = 46.35
    means = reported.check_means(paper["bright"])["recomputed"]
    assert f"{means['Revela 1B']:.1f}" == "15.6"  # 186.6 / 12 = 15.55


def test_check_paper_prints_what_does_not_add_up(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    commands.check_paper(Path("config.yaml"))
    off = [line.rpartition(": Mean printed ") for line in capsys.readouterr().out.splitlines()]
    figures = {system: mean for system, _, mean in off}
    assert {system: mean for system, mean in figures.items() if "rounding" not in mean} == {
        "coir: REPLUG 3B": "53.9, recomputed 51.2",
        "coir: Ada-2": "45.6, recomputed 40.6",
        "coir: Voyage-2": "56.3, recomputed 51.2",
    }
    assert figures["beir: REPLUG 0.5B"] == "34.2, recomputed 34.1 (rounding)"
    assert len(figures) == 6


def test_what_stands_in_the_wrong_row_is_not_held_against_a_measurement(paper, tmp_path):
    """The published scores of the API models, four of which the paper prints at other tasks."""
    table = paper["coir"]
    published = {
        "Ada-2": [8.70, 28.88, 58.32, 74.21, 69.13, 53.34, 26.04, 72.40, 47.12, 17.74],
        "Voyage-2": [26.52, 29.79, 69.26, 81.79, 73.45, 72.77, 27.28, 87.68, 65.35, 28.74],
        "UniX 0.1B": [1.4, 25.1, 50.5, 60.2, 58.4, 41.8, 31.0, 44.7, 36.0, 24.2],
    }
    measured = tables.measured_figures(table, tmp_path)
    for system, scores in published.items():
        measured.loc[system] = [*scores, sum(scores) / 10]
    lines = reported.compare(table, measured)
    for system in ("Ada-2", "Voyage-2"):
        assert set(lines.loc[system]["verdict"]) == {"reproduced"}
    assert set(lines.loc["UniX 0.1B"]["note"]) == {"copied", ""}


def test_the_documentation_says_where_everything_in_the_paper_is():
    text = (ROOT / "docs/reproducing.md").read_text().partition("## Where everything")[2]
    config = load_config(ROOT / "config.yaml")
    for name in (*config.tables, *config.listings, *config.figures):
        assert re.search(rf"[`/]{name}(\.csv|\.png|`)", text), name
