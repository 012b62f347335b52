"""Benchmarks: mteb's tasks by name, and local collections in BEIR layout as mteb tasks."""

import csv
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, unknown_name
from revela.config.catalogue import mteb_task_names
from revela.config.steps import MtebBenchmark, RetrievalBenchmark
from revela.text.rows import json_lines


def load_task(benchmark: RetrievalBenchmark, task: str, folder: Path | None) -> Any:
    """Return a task as mteb evaluates it.

    A local task needs the folder of its collection; one of mteb's has none.

    Raises:
        RevelaError: mteb has no such task, or the collection is incomplete.
    """
    if isinstance(benchmark, MtebBenchmark):
        import mteb

        try:
            return mteb.get_task(task)
        except KeyError as error:
            raise RevelaError(
                unknown_name("mteb retrieval task", task, mteb_task_names())
            ) from error
    if folder is None:
        raise RevelaError(f"task {task!r} of benchmark source {benchmark.source!r} needs a folder")
    return local_task(task, folder)


def local_task(name: str, folder: Path) -> Any:
    """Return a collection in BEIR layout as an mteb retrieval task.

    The folder holds corpus.jsonl (_id, title, text), queries.jsonl (_id, text), either perhaps
    gzipped, and qrels.tsv (query-id, corpus-id, score under a heading).

    Raises:
        RevelaError: a file is missing or broken, or a judgement names an unknown id.
    """
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name,
            dataset={"path": str(folder), "revision": "local"},
            description=f"{name}, a local collection in BEIR layout",
            type="Retrieval",
            category="t2t",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

    corpus, queries, qrels = collection_files(folder)
    documents, texts = _read_rows(corpus), _read_rows(queries)
    ids = {"document": {row["id"] for row in documents}, "query": {row["id"] for row in texts}}
    split = {
        "corpus": Dataset.from_list(documents),
        "queries": Dataset.from_list([{"id": row["id"], "text": row["text"]} for row in texts]),
        "relevant_docs": _read_qrels(qrels, ids),
        "top_ranked": None,
    }
    task = LocalTask()
    task.dataset = {"default": {"test": split}}
    task.data_loaded = True
    return task


def collection_files(folder: Path) -> list[Path]:
    """Return the three files of a collection: corpus, queries, judgements.

    Raises:
        RevelaError: one is missing.
    """
    files = []
    for name in ("corpus.jsonl", "queries.jsonl"):
        found = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
        if not found:
            raise RevelaError(f"{folder}: neither {name} nor {name}.gz in it")
        files.append(found[0])
    if not (folder / "qrels.tsv").exists():
        raise RevelaError(f"{folder}: no qrels.tsv in it")
    return [*files, folder / "qrels.tsv"]


def _read_rows(path: Path) -> list[dict[str, str]]:
    rows = []
    for place, row in json_lines(path):
        if isinstance(row, Exception):
            raise RevelaError(f"{place}: {row}")
        if not isinstance(row, dict):
            raise RevelaError(f"{place}: expected an object, got {type(row).__name__}")
        for field in ("_id", "text"):
            if field not in row:
                raise RevelaError(f"{place}: {unknown_name('field', field, row)}")
        title = row.get("title") or ""
        rows.append({"id": str(row["_id"]), "text": row["text"], "title": title})
    return rows


def _read_qrels(path: Path, known: dict[str, set[str]]) -> dict[str, dict[str, int]]:
    relevant: dict[str, dict[str, int]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        next(stream, None)
        for number, row in enumerate(csv.reader(stream, delimiter="\t"), start=2):
            place = f"{path}:{number}"
            try:
                query, document, score = row[0], row[1], int(row[2])
            except (IndexError, ValueError) as error:
                raise RevelaError(f"{place}: expected query-id, corpus-id, score") from error
            for kind, name in (("query", query), ("document", document)):
                if name not in known[kind]:
                    raise RevelaError(f"{place}: no {kind} {name!r} in the collection")
            relevant.setdefault(query, {})[document] = score
    return relevant
