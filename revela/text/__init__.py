"""Corpora in; chunks, batches and query-document pairs out, as Parquet."""

from typing import Any

from revela.common.lazy import find

_HOMES = {
    "read_documents": "corpora",
    "chunk_corpus": "chunking",
    "chunk_text": "chunking",
    "make_batches": "batching",
    "read_batches": "batching",
    "make_pairs": "pairs",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
