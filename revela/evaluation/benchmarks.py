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
from revela.config.local import collection_files
from revela.config.text import FieldNames
from revela.text.corpora import document_of
from revela.text.rows import numbered_rows

_FIELDS = FieldNames(id="_id", title="title")
_JUDGEMENT = ["query-id", "corpus-id", "score"]
_QUERY_HEADINGS = ("query-id", "query_id", "queryid", "qid", "query")
_SCORE_HEADINGS = ("score", "relevance", "rel", "label", "grade")
_UNKNOWN_SHARE = 0.01  # of judgements; some published corpora lack a few documents
_ROWS_AT_A_TIME = 1_000

CORPUS = "corpus.arrow"
"""Memory-mapped copy of a local corpus in the cache of an evaluation."""


def load_task(benchmark: RetrievalBenchmark, task: str, folder: Path | None, cache: Path) -> Any:
    """Return a task for evaluation by mteb.

    A local task needs the folder of its collection, and a folder for `CORPUS`; mteb's tasks have
    none.

    Raises:
        RevelaError: mteb has no such task, or the collection is incomplete.
    """
    if isinstance(benchmark, MtebBenchmark):
        import mteb

        check_name("task", "mteb retrieval task", task, mteb_task_names())
        return mteb.get_task(task)
    check_name("task", "task", task, benchmark.tasks)
    if folder is None:
        raise RevelaError(f"task {task!r} of benchmark source {benchmark.source!r} needs --folder")
    return local_task(task, folder, cache, getattr(benchmark, "split", "test"))


def local_task(name: str, folder: Path, cache: Path, split: str = "test") -> Any:
    """Return a local collection as an mteb retrieval task, its corpus memory-mapped in `cache`.

    The folder holds corpus.jsonl (_id, title, text), queries.jsonl (_id, text), both optionally
    gzipped, and qrels/<split>.tsv (query-id, corpus-id, score, optionally with a header), for the
    split `test` also qrels.tsv;
    or Parquet files with these columns in corpus/, queries/ and qrels/, as mteb publishes them.
    A query that is a document of the collection, with its id and its text, does not retrieve
    itself, as in BEIR.

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
    same = {
        name: text.split() == documents[places[name]]["text"].split()
        for name, text in asked.items()
        if name in places
    }
    if any(same.values()):
        for name in (name for name, equal in same.items() if not equal):
            if data["relevant_docs"].get(name, {}).get(name):
                raise RevelaError(
                    f"{qrels[0]}: document {name!r} is relevant to query {name!r}, but it would be "
                    "excluded as the query itself, as other queries are documents of the "
                    "collection: rename the ids"
                )
        print(
            f"{sum(same.values())} queries are documents of the collection; none retrieves itself"
        )
        task.ignore_identical_ids = True
    return task


def check_collection(folder: Path) -> None:
    """Read all files of a local collection, and raise the errors that `local_task` would."""
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

    A document is its id, title and text; a query its id and text; a judgement the ids of a query
    and a document, and the relevance.
    """
    folder.mkdir(parents=True)
    counts = {"documents": 0, "queries": 0}
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for name, title, text in documents:
            stream.write(json.dumps({"_id": name, "title": title, "text": text}) + "\n")
            counts["documents"] += 1
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as stream:
        for name, text in queries:
            stream.write(json.dumps({"_id": name, "text": text}) + "\n")
            counts["queries"] += 1
    with (folder / "qrels.tsv").open("w", encoding="utf-8") as stream:
        stream.write("\t".join(_JUDGEMENT) + "\n")
        stream.writelines("\t".join(map(str, judgement)) + "\n" for judgement in judgements)
    return counts


def read_queries(paths: Sequence[Path]) -> dict[str, str]:
    """Return id → text of a collection's queries.

    Raises:
        RevelaError: see `read_rows`; or a query is empty.
    """
    found = {row["id"]: row["text"] for row in read_rows(paths)}
    for name, text in found.items():
        if not text.strip():
            raise RevelaError(f"{paths[0]}: query {name!r} is empty")
    return found


def read_rows(paths: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Yield id, text and title of each row of JSON lines or Parquet files, without duplicates.

    Raises:
        RevelaError: a row is invalid, or two rows have the same id and different texts.
    """
    seen: dict[str, bytes] = {}
    repeated = 0
    for place, row in chain.from_iterable(map(numbered_rows, paths)):
        if isinstance(row, dict):
            if "id" in row:
                row.setdefault("_id", row["id"])
            check_name(place, "field", "_id", row)
        try:
            one = vars(document_of("", row, _FIELDS))
        except ValueError as error:
            raise RevelaError(f"{place}: {error}") from error
        if one["id"].split() != [one["id"]]:
            raise RevelaError(
                f"{place}: _id {one['id']!r} must be non-empty and without spaces (TREC run format)"
            )
        whole = json.dumps([one["title"], one["text"]]).encode()
        digest = hashlib.blake2b(whole, digest_size=16).digest()
        if one["id"] not in seen:
            seen[one["id"]] = digest
            yield one
        elif seen[one["id"]] != digest:
            raise RevelaError(f"{place}: _id {one['id']!r} occurs before with a different text")
        else:
            repeated += 1
    if not seen:
        raise RevelaError(f"{paths[0]}: is empty")
    if repeated:
        print(f"{paths[0]}: {repeated} duplicate rows count once")


def _judgements(paths: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """Yield `path:line` and the fields of each judgement, without a header."""
    for path in paths:
        if path.suffix == ".parquet":
            for place, judged in numbered_rows(path, _JUDGEMENT):
                yield place, [str(judged[column]) for column in _JUDGEMENT]
            continue
        with reading(path, "text"), path.open(encoding="utf-8-sig") as stream:
            lines = [line.rstrip("\n") for line in stream]
        for number, line in enumerate(lines, start=1):
            row = line.split("\t")
            if line.strip() and not (number == 1 and _is_header(row)):
                yield f"{path}:{number}", row


def _is_header(row: list[str]) -> bool:
    """Return whether a first row has headings, in the order of the columns, not a judgement."""
    query, document, score = ([word.strip().lower() for word in row] + ["", "", ""])[:3]
    ordered = query in _QUERY_HEADINGS and document not in _SCORE_HEADINGS
    return ordered and not score.replace(".", "", 1).isdecimal()


def read_qrels(
    paths: Sequence[Path], queries: set[str], documents: set[str]
) -> dict[str, dict[str, int]]:
    """Return query → document → relevance, one below 0 as 0; missing documents are kept.

    Raises:
        RevelaError: see `local_task`.
    """
    relevant: dict[str, dict[str, int]] = {}
    unknown: list[str] = []
    repeated = count = 0
    for place, row in _judgements(paths):
        try:
            query, document, score = *map(str.strip, row[:2]), float(row[2])
            if len(row) > 3 or "_" in row[2] or not abs(score) < 2**31 or score % 1:
                raise ValueError
        except (IndexError, ValueError) as error:
            raise RevelaError(
                f"{place}: expected query-id, corpus-id and an integer score, separated by tabs; "
                f"got {chr(9).join(row)!r}"
            ) from error
        for kind, name, known in (("query", query, queries), ("document", document, documents)):
            if name not in known:
                unknown.append(f"{place}: no {kind} {name!r} in the collection")
        score = max(0, score)  # as in trec_eval; negative ones are given to spam
        judged = relevant.setdefault(query, {})
        if judged.get(document, score) != score:
            raise RevelaError(
                f"{place}: {query!r} and {document!r} have relevance {score:g} here "
                f"but {judged[document]} before"
            )
        repeated += document in judged
        judged[document] = int(score)
        count += 1
    if len(unknown) > _UNKNOWN_SHARE * count:
        raise RevelaError(f"{unknown[0]} ({len(unknown)} unknown ids in {count} judgements)")
    if not any(score for judged in relevant.values() for score in judged.values()):
        raise RevelaError(f"{paths[0]}: no relevance is above 0")
    in_vain = sum(not any(judged.values()) for judged in relevant.values())
    for what, found in (
        ("repeated judgements", repeated),
        ("unknown ids", len(unknown)),
        ("queries have no relevant document and score 0", in_vain),
    ):
        if found:
            print(f"{paths[0]}: {found} {what}")
    return {query: judged for query, judged in relevant.items() if query in queries}
