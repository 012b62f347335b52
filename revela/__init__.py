"""Revela: dense retriever learning via language modeling."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from revela.inbatch import in_batch_loss, in_batch_similarity
    from revela.training.loss import NeighborBatchSampler, RevelaCollator, RevelaLoss
else:
    _LOSS = "NeighborBatchSampler", "RevelaCollator", "RevelaLoss"
    _HOMES = dict.fromkeys(_LOSS, "revela.training.loss")
    _HOMES |= dict.fromkeys(("in_batch_loss", "in_batch_similarity"), "revela.inbatch")

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used, because the command line needs no torch."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


__all__ = [
    "NeighborBatchSampler",
    "RevelaCollator",
    "RevelaLoss",
    "in_batch_loss",
    "in_batch_similarity",
]

try:
    __version__ = version("revela")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
