"""Scores and logs in; what the paper prints out, beside what the paper printed."""

from typing import Any

from revela.common.lazy import find

_HOMES = {
    "compile_table": "tables",
    "analyse": "significance",
    "compare": "reported",
    "draw": "figures",
    "save": "figures",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    return find(__name__, _HOMES, name)
