"""Indexes texts with a retriever, for search from the shell or in a browser."""

from functools import partial

from revela.common.lazy import find

_HOMES = {"Index": "index", "build": "index"}
__all__ = list(_HOMES)
__getattr__ = partial(find, __name__, _HOMES)
