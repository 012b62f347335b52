"""Revela: dense retriever learning via language modeling."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("revela")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
