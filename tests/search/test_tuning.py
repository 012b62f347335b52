"""The weight of an index's hybrid: queries made of its chunks, and what is chosen on them."""

import json
import shutil

import pytest

from revela.search.index import Index
from revela.search.tuning import Tuning
from tests.conftest import TEXTS, encoder_of, make_encoder
from tests.search.test_index import run

FIRST, SECOND = "parsers read many lines", "rivers carry water down"


def chunks(count, title="", heading=True):
    return [
        {"document": str(n // 2), "position": n % 2, "title": title and f"{title} {n // 2}"}
        | {"text": f"# Head {n // 2}\n" * (heading and n % 2 == 0) + f"{n} {FIRST} {n} {SECOND}"}
        for n in range(count)
    ]


@pytest.mark.parametrize("rows", [chunks(40), chunks(40, "Head", heading=False)])
def test_no_query_is_part_of_what_it_is_to_find(rows):
    """Titles are first lines or fields; both chunks of a document answer its title."""
    tuning = Tuning(rows)
    assert tuning.chosen_on == "20 titles and 40 half chunks"
    assert sorted(tuning.titles.queries) == sorted(f"Head {n}" for n in range(20))
    for task, answers in ((tuning.titles, 2), (tuning.halves, 1)):
        assert not any("Head" in text for text in task.passages) or task is tuning.halves
        for number, query in enumerate(task.queries):
            found = [task.passages[int(p)] for p in task.relevant[str(number)]]
            assert len(found) == answers
            assert not any(query in text for text in found)


def test_the_weight_is_that_of_the_better_ranking(backbone, monkeypatch):
    tuning = Tuning(chunks(40))
    relevant = tuning.halves.relevant
    best = {query: {p: 1.0 for p in relevant[query]} | {"39": 0.5} for query in relevant}
    wrong = {query: {"38": 1.0, "39": 0.5} for query in best}
    monkeypatch.setattr(tuning, "titles", type(tuning.titles)([], [], {}))
    for dense, bm25, weight in ((best, wrong, 0.6), (wrong, best, 0.0)):
        monkeypatch.setattr("revela.search.tuning._dense", lambda *_, run=dense: run)
        monkeypatch.setattr("revela.search.tuning._bm25", lambda *_, run=bm25: run)
        assert abs(tuning.weight(encoder_of(backbone), "english", 64) - weight) <= 0.1


def test_an_index_says_and_keeps_its_weight(texts, backbone, tmp_path):
    arguments = ["index", texts, "--model", backbone, "--output", tmp_path / "index"]
    assert "weight of the retriever: 0.5, as the texts are few\n" in run(*arguments)[0]
    for n in range(30):
        (texts / f"more {n}.md").write_text(f"# On {n}\n\n{TEXTS[n % 5]} Number {n} of them.")
    out, _ = run(*arguments)
    weights = json.loads((tmp_path / "index/index.json").read_text())["dense_weights"]
    assert f"weight of the retriever: {weights[0]}, chosen on 30 titles and 3" in out
    assert run(*arguments)[0].count(f"weight of the retriever: {weights[0]},") == 1


def test_models_are_shown_side_by_side(index, tmp_path):
    (tmp_path / "q.tsv").write_text("a\trivers\nb\tjobs\n")
    arguments = ["search", index.folder, "--queries", tmp_path / "q.tsv", "--compare", "--depth", 1]
    out, _ = run(*arguments)
    titles = [line.split() for line in out.splitlines() if line[0].isalpha()]
    assert titles == [["a", "rivers"], ["b", "jobs"]]
    (heads,) = {line for line in out.splitlines() if line.startswith("┃")}
    assert heads.replace("┃", "").split() == index.labels
    rows = [json.loads(line) for line in run(*arguments, "--json")[0].splitlines()]
    assert [(row["model"], row["query"]) for row in rows] == [
        (label, query) for label in index.labels for query in "ab"
    ]
    for row in rows:
        query, number = {"a": "rivers", "b": "jobs"}[row["query"]], index.labels.index(row["model"])
        assert row["chunk"] == index.search([query], 1, "dense", number)[0][0].chunk


def test_a_short_model_has_short_chunks(texts, backbone, tmp_path):
    retriever = shutil.copytree(backbone, tmp_path / "short")
    make_encoder(retriever, 24)
    run("index", texts, "--model", retriever, "--output", tmp_path / "index")
    made = Index(tmp_path / "index").described
    assert (made["max_length"], made["corpus"]["max_words"]) == (24, 12)
