"""Turns corpora into Parquet files of chunks, batches and query-document pairs."""

from functools import partial

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
__getattr__ = partial(find, __name__, _HOMES)
