"""Public names of a folder, whose modules are imported when a name is first used."""

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a public name of a package; `homes` says which of its modules defines it."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
