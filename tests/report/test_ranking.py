"""The first documents of runs, as text."""

import pytest

from revela.common.errors import RevelaError
from revela.evaluation.benchmarks import write_collection
from revela.report.ranking import first_ranked
from tests.evaluation.common import write_run


@pytest.fixture
def collection(tmp_path):
    texts = {
        "c0": "a mountain",
        "c1": "a  river\nwith mud",
        "c2": "x" * 200,
        "null": "a",
        '"c': "b",
    }
    documents = [(name, "", text) for name, text in texts.items()]
    write_collection(tmp_path / "t", documents, [("q0", "mud?")], [("q0", "c1", 1)])
    return tmp_path / "t"


def test_ranking_prints_the_first_documents_and_marks_relevant_ones(collection):
    paths = [
        write_run(collection / name, {"q0": documents})
        for name, documents in {"bm25": ["c2", "c0", "c1"], "dense": ["c1", "c2"]}.items()
    ]
    assert first_ranked(collection, paths, None, 2).split("\n") == [
        "query: mud?",
        f"{paths[0]}:",
        f"    {'x' * 88} …",
        "    a mountain",
        f"{paths[1]}:",
        "  ✓ a river with mud",
        f"    {'x' * 88} …",
    ]
    with pytest.raises(RevelaError, match=r"queries\.jsonl: unknown query 'q7'"):
        first_ranked(collection, paths, "q7", 2)


def test_ids_may_look_like_missing_values_or_have_quotes(collection):
    run = write_run(collection / "bm25", {"q0": ["null", '"c']})
    assert first_ranked(collection, [run], None, 9).split("\n")[2:] == ["    a", "    b"]
