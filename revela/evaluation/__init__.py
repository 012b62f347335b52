"""Evaluates models on tasks; writes scores and ranked lists."""

from typing import Any

from revela.common.lazy import find

_HOMES = {
    "load_task": "benchmarks",
    "load_searcher": "measure",
    "evaluate": "measure",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
