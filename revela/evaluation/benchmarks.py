"""Benchmarks: mteb's tasks by name, and local collections as mteb tasks."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, check_name, reading
from revela.common.outputs import atomic_output
from revela.config.catalogue import mteb_task_names
from revela.config.evaluation import MtebBenchmark, RetrievalBenchmark
from revela.config.text import FieldNames
from revela.evaluation.collections import collection_files
from revela.text.corpora import document_of
from revela.text.rows import numbered_rows

_FIELDS = FieldNames(id="_id", title="title")
_JUDGEMENT = ["query-id", "corpus-id", "score"]
_QUERY_HEADINGS = ("query-id", "query_id", "queryid", "qid", "query")
_UNKNOWN_SHARE = 0.01  # of judgements; some published corpora lack a few documents
_ROWS_AT_A_TIME = 1_000

CORPUS = "corpus.arrow"
"""Memory-mapped copy of a local corpus in the cache of an evaluation."""


def load_task(benchmark: RetrievalBenchmark, task: str, folder: Path | None, cache: Path) -> Any:
    """Return a task for evaluation by mteb; for a local one see `local_task`."""
    if isinstance(benchmark, MtebBenchmark):
        import mteb

        check_name("task", "mteb retrieval task", task, mteb_task_names())
        return mteb.get_task(task)
    check_name("task", "task", task, benchmark.tasks)
    if folder is None:
        where = f"task {task!r} of benchmark source {benchmark.source!r}"
        raise RevelaError(f"{where} needs the folder of its collection (see --help)")
    return local_task(task, folder, cache, getattr(benchmark, "split", "test"))


def data_commits(benchmark: RetrievalBenchmark, task: Any) -> dict[str, str]:
    """Return the commit at which mteb reads a task's data set on the hub, by its name."""
    data = task.metadata.dataset
    return {data["path"]: data["revision"]} if isinstance(benchmark, MtebBenchmark) else {}


def local_task(name: str, folder: Path, cache: Path, split: str = "test") -> Any:
    """Return a local collection as an mteb retrieval task, its corpus memory-mapped in `cache`.

    A query that is a document of the collection, with its id and text, does not retrieve itself, as
    in BEIR.

    Raises:
        RevelaError: a file is missing or broken, ids or judgements contradict each other, or more
            than one judgement in a hundred names an unknown id.
    """
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name,
            dataset={"path": str(folder), "revision": "local"},
            description=f"{name}, a local collection",
            type="Retrieval",
            category="t2t",
            eval_splits=[split],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

    corpus, queries, qrels = collection_files(folder, split)
    asked = read_queries(queries)
    documents = _memory_mapped(read_rows(corpus), cache / CORPUS)
    places = {name: place for place, name in enumerate(documents["id"])}
    task = LocalTask()
    data = {
        "corpus": documents,
        "queries": Dataset.from_dict({"id": list(asked), "text": list(asked.values())}),
        "relevant_docs": read_qrels(qrels, set(asked), set(places)),
        "top_ranked": None,
    }
    task.dataset, task.data_loaded = {"default": {split: data}}, True
    # Equal ids alone may be a coincidence, such as numbers.
    alike = {name for name in asked if name in places}
    same = {n for n in alike if asked[n].split() == documents[places[n]]["text"].split()}
    if same:
        for name in sorted(alike - same):
            if data["relevant_docs"].get(name, {}).get(name):
                both = f"document {name!r} is relevant to query {name!r}"
                reason = (
                    "but it would be excluded, as other queries that are documents: rename them"
                )
                raise RevelaError(f"{qrels[0]}: {both}, {reason}")
        print(f"{len(same)} queries are documents of the collection; none retrieves itself")
        task.ignore_identical_ids = True
    return task


def check_collection(folder: Path) -> None:
    """Read all files of a local collection; errors as `local_task`."""
    corpus, queries, qrels = collection_files(folder)
    asked = read_queries(queries)
    read_qrels(qrels, set(asked), {row["id"] for row in read_rows(corpus)})


def _memory_mapped(rows: Iterator[dict[str, str]], path: Path) -> Any:
    """Write a corpus to a file and return it as a data set: it may not fit into memory."""
    import pyarrow as pa
    from datasets import Dataset

    # A column of strings would end at 2 GB.
    schema = pa.schema([(field, pa.large_string()) for field in ("id", "text", "title")])
    with atomic_output(path) as file, pa.ipc.new_stream(str(file), schema) as writer:
        while some := list(islice(rows, _ROWS_AT_A_TIME)):
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema))
    return Dataset.from_file(str(path))


def write_collection(
    folder: Path,
    documents: Iterable[tuple[str, str, str]],
    queries: Iterable[tuple[str, str]],
    judgements: Iterable[tuple[str, str, int]],
) -> dict[str, int]:
    """Write a collection in BEIR layout; return the numbers of `documents` and `queries`.

    A document is (id, title, text), a query (id, text), a judgement (query, document, relevance).
    """
    folder.mkdir(parents=True)

    def write(file: str, lines: Iterable[str]) -> int:
        with (folder / file).open("w", encoding="utf-8") as stream:
            return sum(bool(stream.write(f"{line}\n")) for line in lines)

    corpus = ({"_id": name, "title": title, "text": text} for name, title, text in documents)
    asked = ({"_id": name, "text": text} for name, text in queries)
    sizes = {
        "documents": write("corpus.jsonl", map(json.dumps, corpus)),
        "queries": write("queries.jsonl", map(json.dumps, asked)),
    }
    write("qrels.tsv", ("\t".join(map(str, row)) for row in (_JUDGEMENT, *judgements)))
    return sizes


def read_queries(paths: Sequence[Path]) -> dict[str, str]:
    """Return id → text of a collection's queries; errors as `read_rows`, or a query is empty."""
    queries = {row["id"]: row["text"] for row in read_rows(paths)}
    for name, text in queries.items():
        if not text.strip():
            raise RevelaError(f"{paths[0]}: query {name!r} is empty")
    return queries


def read_rows(paths: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Yield id, text and title of each row of JSON lines or Parquet files, without duplicates.

    Raises:
        RevelaError: a row is invalid, or two rows have the same id and different texts.
    """
    seen: dict[str, bytes] = {}
    for place, row in chain.from_iterable(map(numbered_rows, paths)):
        if isinstance(row, dict):
            if "id" in row:
                row.setdefault("_id", row["id"])
            check_name(place, "field", "_id", row)
        try:
            document = vars(document_of("", row, _FIELDS))
        except ValueError as error:
            raise RevelaError(f"{place}: {error}") from error
        name = document["id"]
        if name.split() != [name]:
            allowed = "must be non-empty and without spaces (TREC run format)"
            raise RevelaError(f"{place}: _id {name!r} {allowed}")
        whole = json.dumps([document["title"], document["text"]]).encode()
        digest = hashlib.blake2b(whole, digest_size=16).digest()
        if name not in seen:
            seen[name] = digest
            yield document
        elif seen[name] != digest:
            raise RevelaError(f"{place}: _id {name!r} occurs before with a different text")
    if not seen:
        raise RevelaError(f"{paths[0]}: is empty")


def _judgements(paths: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """Yield `path:line` and the fields of each judgement, without a header."""
    for path in paths:
        if path.suffix == ".parquet":
            for place, judged in numbered_rows(path, _JUDGEMENT):
                yield place, [str(judged[column]) for column in _JUDGEMENT]
            continue
        with reading(path, "text"):
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        for number, line in enumerate(lines, start=1):
            row = [word.strip() for word in line.split("\t")]
            # A query may be called `query`.
            headed = row[0].lower() in _QUERY_HEADINGS and not row[-1][:1].isdigit()
            if any(row) and not (number == 1 and headed):
                yield f"{path}:{number}", row


def read_qrels(
    paths: Sequence[Path], queries: set[str], documents: set[str]
) -> dict[str, dict[str, int]]:
    """Return query → document → relevance; missing documents are kept. Errors as `local_task`."""
    relevant: dict[str, dict[str, int]] = {}
    unknown: list[str] = []
    count = 0
    for place, row in _judgements(paths):
        try:
            query, document, score = row[0], row[1], float(row[2])
            if len(row) > 3 or "_" in row[2] or not abs(score) < 2**31 or score % 1:
                raise ValueError
        except (IndexError, ValueError) as error:
            expected = "expected query-id, corpus-id and an integer score, separated by tabs"
            raise RevelaError(f"{place}: {expected}; got {chr(9).join(row)!r}") from error
        for kind, name, known in (("query", query, queries), ("document", document, documents)):
            if name not in known:
                unknown.append(f"{place}: no {kind} {name!r} in the collection")
        score = max(0, int(score))  # as in trec_eval; negative ones are given to spam
        before = relevant.setdefault(query, {}).setdefault(document, score)
        if before != score:
            twice = f"relevance {score} here but {before} before"
            raise RevelaError(f"{place}: {query!r} and {document!r} have {twice}")
        count += 1
    if len(unknown) > _UNKNOWN_SHARE * count:
        raise RevelaError(f"{unknown[0]} ({len(unknown)} unknown ids in {count} judgements)")
    if unknown:
        print(f"{paths[0]}: {len(unknown)} unknown ids")
    if not any(score for judged in relevant.values() for score in judged.values()):
        raise RevelaError(f"{paths[0]}: no relevance is above 0")
    return {query: judged for query, judged in relevant.items() if query in queries}
