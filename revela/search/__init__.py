"""Indexes texts with a retriever, for search from the shell or in a browser."""

from typing import Any

from revela.common.lazy import find

_HOMES = {"Index": "index", "build": "index"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
