"""Evaluates models on tasks; writes scores and ranked lists."""

from functools import partial

from revela.common.lazy import find

_HOMES = {"load_task": "benchmarks", "load_searcher": "measure", "evaluate": "measure"}
__all__ = list(_HOMES)
__getattr__ = partial(find, __name__, _HOMES)
