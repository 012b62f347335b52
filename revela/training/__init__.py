"""Trains a retriever on batches or pairs; writes it with its log and its manifest."""

from functools import partial

from revela.common.lazy import find

_HOMES = {"train": "trainer"}
__all__ = list(_HOMES)
__getattr__ = partial(find, __name__, _HOMES)
