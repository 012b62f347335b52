"""The HTML page of all results."""

import json
import re
from pathlib import Path

import pytest

from revela.common.errors import RevelaError
from revela.config import parse_config
from revela.report import commands
from revela.report.page import write_page
from tests.report.common import write_score

PRINTED = {"label": "Printed", "reported": "P"}
CONFIG = {
    "models": {"bm25": {"kind": "bm25s"}, "x": {"kind": "encoder", "retriever": "some/model"}},
    "benchmarks": {"mine": {"source": "folder", "path": "mine", "tasks": ["t", "u"]}},
    "tables": {
        "a": {
            "caption": "Of <two> systems.",
            "columns": {"T": "t", "U": "u"},
            "reported": "printed.csv",
            "rows": [
                {"label": "BM25", "model": "bm25"},
                {"label": "X", "model": "x"},
                PRINTED,
            ],
        },
        "printed": {"caption": "c", "reported": "printed.csv", "rows": [PRINTED]},
        "later": {"caption": "c", "benchmark": "mine", "rows": [{"label": "X", "model": "x"}]},
    },
}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("printed.csv").write_text("model,T,U,Mean\nP,12.3,45.6,29.0\n")
    config = parse_config(CONFIG, "c.yaml")
    for task in ("t", "u"):
        folder = Path("mine", task)
        folder.mkdir(parents=True)
        (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n')
        rows = [f'{{"_id": "q{n}", "text": "<b>question {n}</b>"}}\n' for n in range(3)]
        (folder / "queries.jsonl").write_text("".join(rows))
        (folder / "qrels.tsv").write_text("q0\td\t1\n")
    for model, values in {"bm25": (0.5, 0.5, 0.2), "x": (1.0, 0.5, 0.1)}.items():
        folder = Path("results/scores", model)
        folder.mkdir(parents=True)
        for task in ("t", "u"):
            lines = "".join(f",q{n},{value}\n" for n, value in enumerate(values))
            (folder / f"{task}.queries.csv").write_text(f"subset,query,ndcg_at_10\n{lines}")
            write_score(folder.parent, model, task, sum(values) / 3)
            manifest = {"git_commit": "abc<d>", "revision": "r1"}
            (folder / f"{task}.manifest.json").write_text(json.dumps(manifest))
    commands.table(config.table("a"), Path("results/scores"), Path("results/tables/a.csv"))
    return config


def test_scores_show_their_command_manifest_and_interval(config):
    page = write_page(config, "c.yaml")
    assert "Of &lt;two&gt; systems." in page
    assert ">40.0</summary>" in page
    assert "snakemake --cores all results/scores/bm25/t.json" in page
    assert "git_commit: abc&lt;d&gt;" in page
    assert "revision: r1" in page
    assert re.search(r'class="reported">\s*12.3', page)
    assert "later" not in page
    intervals = re.findall(r"<small title=\"(.*)\">(.*) to (.*)</small>", page)
    assert len(intervals) == 6  # two measured systems, two tasks and their mean
    assert all(float(low) <= float(high) for _, low, high in intervals)
    assert any(test.startswith("p = ") and test.endswith("against X") for test, *_ in intervals)
    assert not re.search(r"(src|href)=.(?!data:)", page)


def test_a_table_of_reported_figures_alone_has_a_cell_below_each_heading(config):
    commands.table(config.table("printed"), Path("none"), Path("results/tables/printed.csv"))
    page = write_page(config, "c.yaml")
    table = page[page.index('<h2 id="printed">') :]
    assert re.findall("<th>(.*?)</th>", table) == ["", "T", "U", "Mean"]
    assert re.findall(r'class="reported">\s*(\S+)', table) == ["12.3", "45.6", "29.0"]


def test_queries_with_the_largest_differences_are_listed(config):
    page = write_page(config, "c.yaml")
    assert "Printed against" not in page  # the last system, whose queries are unknown
    assert "T: X against BM25: better on 1 queries, worse on\n1, equal on 1" in page
    rows = re.findall(r'<td class="text">(.*)</td><td>(\d+)</td><td>(\d+)</td>', page)
    assert rows[:2] == [
        ("&lt;b&gt;question 0&lt;/b&gt;", "100", "50"),
        ("&lt;b&gt;question 2&lt;/b&gt;", "10", "20"),
    ]


def test_a_column_of_one_subset_is_compared_on_its_queries_and_equal_ids_are_two(config):
    task, subset = "BrightRetrieval", "standard/pony"
    for model, value in {"bm25": 0.5, "x": 1.0}.items():
        path = Path("results/scores", model, task)
        lines = f"standard/aops,q0,{value}\n{subset},q0,0.7\n{subset},q1,{value}\n"
        path.with_suffix(".queries.csv").write_text(f"subset,query,ndcg_at_10\n{lines}")
        scores = {"subsets": {subset: {"ndcg_at_10": value}}, "ndcg_at_10": value}
        path.with_suffix(".json").write_text(json.dumps(scores))
    rows = CONFIG["tables"]["a"]["rows"][:2]
    columns = {"Pony": f"{task}:{subset}", "Bright": task}
    changed = {
        "benchmarks": {"bright": {"source": "mteb", "tasks": [task]}},
        "tables": {"a": {"caption": "c", "columns": columns, "rows": rows}},
    }
    page = write_page(parse_config(CONFIG | changed, "c.yaml"), "c.yaml")
    assert "Pony: X against BM25: better on 1 queries, worse on\n0, equal on 1" in page
    assert "Bright: X against BM25: better on 2 queries, worse on\n0, equal on 1" in page
    assert '<td class="text">standard/aops q0</td><td>100</td><td>50</td>' in page


def test_what_cannot_be_shown_is_an_error(config):
    Path("results/scores/bm25/t.manifest.json").write_text("[1]")
    with pytest.raises(RevelaError, match=r"bm25/t\.manifest\.json: not a JSON object"):
        write_page(config, "c.yaml")
    Path("results/tables/a.csv").unlink()
    with pytest.raises(RevelaError, match=r"no tables or figures of c\.yaml yet"):
        write_page(config, "c.yaml")
