"""Test collections of ir_datasets in BEIR layout."""

from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError
from revela.config.evaluation import IrDatasetsBenchmark
from revela.evaluation.benchmarks import write_collection


def write_task(settings: IrDatasetsBenchmark, task: str, folder: Path) -> dict[str, int]:
    """Write a task in BEIR layout; return its sizes.

    Raises:
        RevelaError: ir_datasets is not installed, does not know or cannot load the collection, or
            it lacks documents, queries or judgements.
    """
    try:
        import ir_datasets
    except ImportError as error:
        raise RevelaError(
            "the package ir_datasets is missing: pip install 'revela[ir-datasets]'"
        ) from error
    name = settings.tasks[task]
    where = f"ir_datasets {name!r}"
    try:
        found = ir_datasets.load(name)
    except KeyError as error:
        raise RevelaError(
            f"{where}: no such data set; https://ir-datasets.com lists them"
        ) from error
    try:
        for part in ("docs", "queries", "qrels"):
            if not getattr(found, f"has_{part}")():
                raise RevelaError(f"{where}: has no {part}; one of its subsets may have them")
        return write_collection(
            folder,
            documents=((one.doc_id, *_title_and_text(one)) for one in found.docs_iter()),
            queries=((one.query_id, one.default_text()) for one in found.queries_iter()),
            judgements=((one.query_id, one.doc_id, one.relevance) for one in found.qrels_iter()),
        )
    except (OSError, RuntimeError) as error:
        raise RevelaError(f"{where}: cannot be read: {error}") from error


def _title_and_text(document: Any) -> tuple[str, str]:
    if hasattr(document, "title") and hasattr(document, "text"):
        return document.title, document.text
    return "", document.default_text()
