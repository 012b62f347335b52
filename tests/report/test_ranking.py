"""The first documents of runs, as text."""

import json

import pytest

from revela.common.errors import RevelaError
from revela.report.ranking import first_ranked


@pytest.fixture
def collection(tmp_path):
    rows = {"corpus": ["a mountain", "a  river\nwith mud", "x" * 200], "queries": ["mud?"]}
    for file, texts in rows.items():
        lines = [json.dumps({"_id": f"{file[0]}{n}", "text": t}) for n, t in enumerate(texts)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels.tsv").write_text("q0\tc1\t1\n")
    return tmp_path


def write_run(folder, name, documents):
    lines = [f"q0 Q0 {one} {n} {9 - n} {name}" for n, one in enumerate(documents, 1)]
    (folder / name).mkdir()
    (folder / name / "t.trec").write_text("\n".join(lines))
    return folder / name / "t.trec"


def test_ranking_prints_the_first_documents_and_marks_relevant_ones(collection):
    runs = {"bm25": ["c2", "c0", "c1"], "dense": ["c1", "c2"]}
    paths = [write_run(collection, *run) for run in runs.items()]
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
    ids = ["null", "NA", '"c', "nan"]
    with (collection / "corpus.jsonl").open("a") as stream:
        for one in ids:
            stream.write("\n" + json.dumps({"_id": one, "text": f"text of {one}"}))
    _, _, *lines = first_ranked(collection, [write_run(collection, "bm25", ids)], None, 9).split(
        "\n"
    )
    assert lines == [f"    text of {one}" for one in ids]
