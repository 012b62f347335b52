"""Batches or pairs in; a trained retriever out, with its log and its manifest."""

from typing import Any

from revela.common.lazy import find

_HOMES = {
    "train": "trainer",
    "pretrain": "pretraining",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
