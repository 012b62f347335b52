"""Public names of a package, whose modules are imported on first use."""

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a public name of a package; `homes` maps names to the modules that define them."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
