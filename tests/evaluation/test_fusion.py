"""Hybrids: BM25 and a retriever fused, with a weight that is chosen on other queries."""

import json
import math

import pytest

from revela.common.errors import RevelaError
from revela.config.evaluation import HybridModel
from revela.evaluation import commands
from revela.evaluation.fusion import WEIGHTS, choose, fuse, read_run
from tests.evaluation.common import QRELS, SUITE, ndcg, write_run

DENSE = {"a": 0.9, "b": 0.5, "c": 0.1}
BM25 = {"c": 20.0, "d": 10.0}


@pytest.mark.parametrize("weight", WEIGHTS)
def test_fused_scores_are_those_of_a_plain_loop(weight):
    expected = {"a": weight * 1.0, "b": weight * 0.5, "c": 1 - weight, "d": 0.0}
    found = fuse(DENSE, BM25, weight)
    assert found == pytest.approx(expected)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert fuse({"x": 3.0}, {}, weight) == {"x": weight}
    assert fuse({}, {}, weight) == {}


def test_the_best_retriever_and_weight_are_those_of_a_plain_loop():
    relevant = {"q0": {"b": 2, "d": 1}, "q1": {"a": 1}, "q2": {"c": 1}}
    bm25 = {"q0": BM25, "q1": {"c": 3.0, "a": 2.0, "b": 1.0}}  # finds nothing for q2
    runs = {
        "bad": {query: {"d": 1.0, "c": 0.5} for query in relevant},
        "good": {"q0": DENSE, "q1": {"a": 0.2, "b": 0.4, "c": 0.1}, "q2": {"c": 1.0, "a": 0.5}},
    }
    means = {}
    for name, dense in runs.items():
        for weight in WEIGHTS:
            of_queries = []
            for query, judged in relevant.items():
                fused = fuse(dense[query], bm25.get(query, {}), weight)
                ranked = sorted(fused, key=lambda d: (fused[d], d), reverse=True)
                of_queries.append(ndcg(ranked, judged))
            means[name, weight] = sum(of_queries) / 3
    ties = [key for key in means if math.isclose(means[key], max(means.values()))]
    assert choose([(relevant, bm25, runs)]) == min(ties, key=lambda key: key[1])


@pytest.fixture
def fused(collection, tmp_path):
    """Return what `revela fuse` writes for a task on which another weight than the tuned is best.

    On the task itself the retriever `wrong` finds nothing and BM25 everything; elsewhere, `right`
    finds more than BM25 does, and `wrong` nothing.
    """
    right = {query: [max(judged), "d1"] for query, judged in QRELS.items()}
    wrong = {"q0": ["d3"], "q1": ["d4"], "q2": ["d3"]}
    runs = {
        "bm25/tiny-task": right,
        "right/tiny-task": wrong,
        "wrong/tiny-task": right,
        "bm25/other": {"q0": ["d3"], "q1": ["d4"]},  # nothing for q2
        "right/other": right,
        "wrong/other": wrong,
    }

    def fuse_them(tuned=True, **changes):
        given = runs | {name.replace("_", "/"): run for name, run in changes.items()}
        inputs = {name: write_run(tmp_path / "runs" / name, run) for name, run in given.items()}
        (tmp_path / "other.json").write_text(json.dumps(QRELS))
        inputs |= {"other": tmp_path / "other.json"} if tuned else {}
        model = HybridModel(kind="hybrid", of=["bm25", "wrong", "right"])
        out = tmp_path / "out"
        made = commands.fuse(
            "tiny-task", model, SUITE, inputs, out, tmp_path / "c", tmp_path / "run",
            folder=collection, mteb=tmp_path / "mteb", name="best",
        )  # fmt: skip
        return json.loads(out.read_text()), read_run(tmp_path / "run"), made

    return fuse_them


def test_the_weight_is_chosen_on_other_queries_than_the_reported(fused, tmp_path):
    scores, run, made = fused()
    chosen = {"retriever": "right", "weight": 0.6, "tuned_on": ["other"]}
    assert scores["fused"] == made.facts["fused"] == chosen
    assert scores["ndcg_at_10"] < 0.7  # the choice by the task itself: 1
    assert run["q0"] == pytest.approx({"d3": 0.6, "d2": 0.4, "d1": 0.0})
    assert list(tmp_path.glob("mteb/results/revela__best/right-0.6/*.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"right_other": {"q0": ["d2"], "q1": ["d3"]}}, "runs/right/other: query 'q2' is missing"),
        ({"bm25_other": {"x": ["d2"]}}, "runs/bm25/other: query 'x' is not a query of the task"),
        ({"right_tiny-task": {q: ["x9"] for q in QRELS}}, "document 'x9' of query 'q0' is not"),
        ({"tuned": False}, "model 'best' needs judgements of tasks other than 'tiny-task'"),
    ],
)
def test_runs_that_cannot_be_fused(fused, changes, message):
    with pytest.raises(RevelaError, match=message):
        fused(**changes)


def test_judgements_are_those_of_the_task(collection, tmp_path):
    commands.judgements("tiny-task", SUITE, tmp_path / "j", tmp_path / "cache", folder=collection)
    assert json.loads((tmp_path / "j").read_text()) == QRELS
