"""Evaluation along mteb's path, pydocs, and collections that a user brings."""

import gzip
import json
import math

import ir_measures
import pytest
from ir_measures import nDCG

from revela import evaluation
from revela.benchmarks import load_task, local_task
from revela.encoder import load_encoder
from revela.errors import RevelaError
from revela.pydocs import standard_library_functions, write_task
from revela.settings import Bm25Model, Encoding, MtebBenchmark, PydocsBenchmark
from tests.conftest import TEXTS


@pytest.fixture
def collection(tmp_path):
    """Five documents and three queries in BEIR layout, the corpus gzipped."""
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as stream:
        for n, text in enumerate(TEXTS):
            stream.write(json.dumps({"_id": f"d{n}", "title": f"Title {n}", "text": text}) + "\n")
    queries = ["rivers and mud", "jobs and workers", "transpose of a matrix"]
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": q}) + "\n" for n, q in enumerate(queries))
    )
    (tmp_path / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td2\t1\nq1\td3\t2\nq1\td0\t1\nq2\td4\t1\n"
    )
    return tmp_path


def run_of(lines):
    rows = [line.split() for line in lines]
    return [ir_measures.ScoredDoc(q, d, float(score)) for q, _, d, _, score, _ in rows]


def test_scores_equal_those_of_the_saved_run(backbone, collection):
    encoder = load_encoder(str(backbone), Encoding())
    model = evaluation.MtebEncoder(encoder, "tiny", "r1", 64)
    scores, lines = evaluation.evaluate(model, local_task("tiny-task", collection))
    qrels = [
        ir_measures.Qrel("q0", "d2", 1),
        ir_measures.Qrel("q1", "d3", 2),
        ir_measures.Qrel("q1", "d0", 1),
        ir_measures.Qrel("q2", "d4", 1),
    ]
    expected = ir_measures.calc_aggregate([nDCG @ 10], qrels, run_of(lines))[nDCG @ 10]
    assert scores["ndcg_at_10"] == pytest.approx(expected, abs=1e-4)
    assert lines[0].split()[1] == "Q0"
    assert [int(line.split()[3]) for line in lines[:5]] == [1, 2, 3, 4, 5]


def test_rankings_are_those_of_the_cosines(backbone, collection):
    encoder = load_encoder(str(backbone), Encoding())
    model = evaluation.MtebEncoder(encoder, "tiny", "r1", 64)
    _, lines = evaluation.evaluate(model, local_task("tiny-task", collection))
    query = encoder.encode(["rivers and mud"], "query", 64)
    passages = encoder.encode([f"Title {n} {t}" for n, t in enumerate(TEXTS)], "passage", 64)
    order = (passages @ query[0]).argsort(descending=True).tolist()
    assert [line.split()[2] for line in lines[:5]] == [f"d{n}" for n in order]


def test_bm25_finds_what_shares_words(collection):
    model = evaluation.load_for_mteb(Bm25Model(kind="bm25s"), "bm25", "none", 64)
    scores, lines = evaluation.evaluate(model, local_task("tiny-task", collection))
    assert scores["ndcg_at_10"] > 0.9
    assert lines[0].split()[2] == "d2"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels.tsv", "h\nq0\td9\t1\n", r"qrels\.tsv:2: no document 'd9'"),
        ("qrels.tsv", "h\nq9\td1\t1\n", r"qrels\.tsv:2: no query 'q9'"),
        ("qrels.tsv", "h\nq0\td1\n", r"qrels\.tsv:2: expected query-id, corpus-id, score"),
        ("queries.jsonl", '{"id": 1}\n', r"queries\.jsonl:1: unknown field '_id'"),
        ("queries.jsonl", "{\n", r"queries\.jsonl:1: broken JSON"),
    ],
)
def test_a_broken_collection_is_refused(collection, file, content, message):
    (collection / file).write_text(content)
    with pytest.raises(RevelaError, match=message):
        local_task("tiny-task", collection)


def test_an_incomplete_collection_is_refused(collection):
    (collection / "corpus.jsonl.gz").unlink()
    with pytest.raises(RevelaError, match=r"neither corpus\.jsonl nor corpus\.jsonl\.gz"):
        local_task("tiny-task", collection)


def test_an_mteb_task_by_name():
    suite = MtebBenchmark(source="mteb", tasks=["CosQA"])
    assert load_task(suite, "CosQA", None).metadata.name == "CosQA"
    with pytest.raises(RevelaError, match=r"unknown mteb retrieval task 'CosQAA'.*'CosQA'"):
        load_task(suite, "CosQAA", None)


# ---------------------------------------------------------------------------- pydocs

TASKS = ["docstring-to-function", "function-to-docstring", "first-to-second-half"]


@pytest.mark.parametrize("task", TASKS)
def test_pydocs_is_deterministic_and_complete(tmp_path, task):
    settings = PydocsBenchmark(source="pydocs", tasks=TASKS)
    for name in ("a", "b"):
        counts = write_task(settings, task, tmp_path / name)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert counts["queries"] >= 500
    split = local_task(task, tmp_path / "a")
    split.load_data()
    data = split.dataset["default"]["test"]
    assert len(data["queries"]) == len(data["relevant_docs"]) == counts["queries"]


def test_pydocs_functions_have_lost_their_docstring():
    functions = list(standard_library_functions())
    assert len(functions) > 1000
    assert len({function.id for function in functions}) == len(functions)
    for function in functions:
        assert function.docstring not in function.code
        assert function.code.lstrip("@").split()[0] != '"""'
    by_id = {function.id.rpartition(":")[0]: function for function in functions}
    function = by_id["textwrap.dedent"]
    assert function.docstring.startswith("Remove any common leading whitespace")
    assert function.code.startswith("def dedent(text):\n    # Look for")


def test_trec_lines_are_sorted_and_bounded(monkeypatch):
    monkeypatch.setattr(evaluation, "_RUN_DEPTH", 2)
    predictions = {"default": {"test": {"q": {"a": 0.1, "b": 0.9, "c": 0.5}}}}
    lines = evaluation._run_lines({"mteb_model_meta": {}, **predictions}, "tag")
    assert lines == ["q Q0 b 1 0.900000 tag", "q Q0 c 2 0.500000 tag"]
    assert not math.isnan(float(lines[0].split()[4]))
