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
        message = "the package ir_datasets is missing: pip install 'revela[ir-datasets]'"
        raise RevelaError(message) from error
    name = settings.tasks[task]
    where = f"ir_datasets {name!r}"
    try:
        data = ir_datasets.load(name)
        for part in ("docs", "queries", "qrels"):
            if not getattr(data, f"has_{part}")():
                raise RevelaError(f"{where}: has no {part}; one of its subsets may have them")
        return write_collection(
            folder,
            documents=((doc.doc_id, *_title_and_text(doc)) for doc in data.docs_iter()),
            queries=((query.query_id, query.default_text()) for query in data.queries_iter()),
            judgements=((row.query_id, row.doc_id, row.relevance) for row in data.qrels_iter()),
        )
    except KeyError as error:
        known = "https://ir-datasets.com lists them"
        raise RevelaError(f"{where}: no such data set; {known}") from error
    except (OSError, RuntimeError) as error:
        raise RevelaError(f"{where}: cannot be read: {error}") from error


def _title_and_text(document: Any) -> tuple[str, str]:
    if hasattr(document, "title") and hasattr(document, "text"):
        return document.title, document.text
    return "", document.default_text()
