"""Turns scores and logs into tables and figures, compared with those of the paper."""

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
