"""Turns scores and logs into tables and figures, compared with those of the paper."""

from functools import partial

from revela.common.lazy import find

_HOMES = {
    "compile_table": "tables",
    "analyse": "significance",
    "compare": "reported",
    "draw": "figures",
    "save": "figures",
}
__all__ = list(_HOMES)
__getattr__ = partial(find, __name__, _HOMES)
