"""Planned jobs and files in; what they need, what they will take and where they stand out."""

from typing import Any

from revela.common.lazy import find

_HOMES = {"Plan": "costs", "check": "checks"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
