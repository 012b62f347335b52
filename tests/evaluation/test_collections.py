"""Collections in BEIR layout and those of pydocs."""

import json
import lzma
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from revela.common.errors import RevelaError
from revela.config.evaluation import PydocsBenchmark
from revela.evaluation.benchmarks import CORPUS, local_task, write_collection
from revela.evaluation.pydocs import FUNCTIONS, write_task
from tests.evaluation.common import QRELS, task_of


def test_a_query_called_query_is_no_header(collection):
    with (collection / "queries.jsonl").open("a") as stream:
        stream.write(json.dumps({"_id": "query", "text": "what"}) + "\n")
    (collection / "qrels.tsv").write_text("query\td2\t1\nq1\td3\t1\n")
    task = task_of(collection)
    assert task.dataset["default"]["test"]["relevant_docs"]["query"] == {"d2": 1}


def test_a_query_with_the_id_of_its_answer_is_not_taken_for_a_document(tmp_path):
    """If another query is a document of the collection, equal ids would be excluded."""
    documents = [(str(n), "", f"answer {n}") for n in range(3)]
    queries = [("0", "answer 0"), ("1", "question 1")]
    write_collection(tmp_path / "x", documents, queries, [("0", "2", 1), ("1", "1", 1)])
    with pytest.raises(RevelaError, match="document '1' is relevant to query '1', but it would be"):
        local_task("x", tmp_path / "x", tmp_path)


@pytest.mark.parametrize("heading", ["", "query-id\tcorpus-id\tscore\n", "Query-ID\td\trel\n"])
def test_judgements_are_read_with_or_without_a_header(collection, heading):
    (collection / "qrels.tsv").write_text(f"{heading}q0\td2\t1\nq1\td3\t2.0\n")
    task = task_of(collection)
    assert task.dataset["default"]["test"]["relevant_docs"] == {"q0": {"d2": 1}, "q1": {"d3": 2}}


def test_judgements_of_another_split_are_chosen_by_its_name(collection):
    (collection / "qrels").mkdir()
    (collection / "qrels.tsv").rename(collection / "qrels/dev.tsv")
    with pytest.raises(RevelaError, match=r"unknown split 'test'; allowed: dev$"):
        task_of(collection)
    task = task_of(collection, "dev")
    assert task.metadata.eval_splits == ["dev"]
    assert task.dataset["default"]["dev"]["relevant_docs"] == QRELS


def test_a_collection_as_beir_publishes_it(collection):
    (collection / "qrels").mkdir()
    (collection / "qrels.tsv").write_text("q0\td0\t1\n")
    (collection / "qrels.tsv").rename(collection / "qrels/test.tsv")
    (collection / "corpus.jsonl.gz").unlink()
    row = {"_id": "d0", "title": None, "text": "x", "metadata": {"url": "u"}}
    (collection / "corpus.jsonl").write_text(json.dumps(row))
    data = task_of(collection).dataset["default"]["test"]
    assert data["corpus"][0] == {"id": "d0", "title": "", "text": "x"}
    assert data["relevant_docs"] == {"q0": {"d0": 1}}


def test_a_corpus_is_on_disk_and_may_be_larger_than_two_gigabytes(collection, tmp_path):
    corpus = local_task("tiny-task", collection, tmp_path).dataset["default"]["test"]["corpus"]
    assert [Path(file["filename"]).name for file in corpus.cache_files] == [CORPUS]
    assert {feature.dtype for feature in corpus.features.values()} == {"large_string"}


def test_a_collection_as_mteb_publishes_it(collection, monkeypatch, tmp_path):
    """As written by mteb itself, in two shards."""
    plain = task_of(collection).dataset["default"]["test"]
    published = tmp_path / "published"

    def push(self, repo, config_name, **_):
        for split, rows in self.items():
            for n in range(2):
                name = f"{split}-{n:05d}-of-00002.parquet"
                rows.shard(2, n).to_parquet(published / repo / config_name / name)

    monkeypatch.setattr(datasets.DatasetDict, "push_to_hub", push)
    task_of(collection)._push_dataset_to_hub("tiny")
    found = local_task("tiny-task", published / "tiny", published).dataset["default"]["test"]
    assert [*found["corpus"]] == [*plain["corpus"]]
    assert [*found["queries"]] == [*plain["queries"]]
    assert found["relevant_docs"] == QRELS

    pq.write_table(pa.table({"query-id": ["q0"]}), published / "tiny/qrels/test-0.parquet")
    with pytest.raises(RevelaError, match=r"qrels/test-0\.parquet: .*corpus-id"):
        local_task("tiny-task", published / "tiny", published)


def test_duplicates_count_once_and_a_few_unknown_ids_are_reported(collection, capsys):
    queries = [json.dumps({"_id": f"q{n}", "text": f"query {n}"}) for n in range(200)]
    (collection / "queries.jsonl").write_text("\n".join([*queries, queries[0]]))
    lines = [f"q{n}\td1\t1" for n in range(200)]
    (collection / "qrels.tsv").write_text("\n".join([*lines, lines[7], "q8\tlost\t1"]))
    data = task_of(collection).dataset["default"]["test"]
    assert len(data["queries"]) == 200
    # As in trec_eval, a relevant document that is missing counts in the ideal ranking.
    assert data["relevant_docs"]["q8"] == {"d1": 1, "lost": 1}
    assert "qrels.tsv: 1 unknown ids" in capsys.readouterr().out


TASKS = ["docstring-to-function", "function-to-docstring", "first-to-second-half"]


def pydocs_functions():
    return {row["id"]: row for row in map(json.loads, lzma.open(FUNCTIONS))}


def test_pydocs_functions_have_no_docstring():
    functions = pydocs_functions()
    assert len(functions) == 2608
    assert not any(row["docstring"] in row["code"] for row in functions.values())


@pytest.mark.parametrize("task", TASKS)
def test_pydocs_asks_what_its_task_says(tmp_path, task):
    settings = PydocsBenchmark(source="pydocs", tasks=TASKS, max_documents=30, max_queries=20)
    assert write_task(settings, task, tmp_path / "a") == {"documents": 30, "queries": 20}
    functions = pydocs_functions()
    data = local_task(task, tmp_path / "a", tmp_path).dataset["default"]["test"]
    documents = {row["id"]: row["text"] for row in data["corpus"]}
    for row in data["queries"]:
        ((name, _),) = data["relevant_docs"][row["id"]].items()
        doc, code = functions[name]["docstring"], functions[name]["code"]
        if task == TASKS[2]:
            assert f"{row['text']}\n{documents[name]}" == code.rstrip("\n")
        else:
            pair = (doc, code) if task == TASKS[0] else (code, doc)
            assert (row["text"], documents[name]) == pair
    for name, seed in (("b", 0), ("c", 1)):
        write_task(settings.model_copy(update={"seed": seed}), task, tmp_path / name)
    read = [(tmp_path / name / "corpus.jsonl").read_text() for name in "abc"]
    assert read[0] == read[1] != read[2]
