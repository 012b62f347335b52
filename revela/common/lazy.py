"""Public names of a folder, whose modules are imported when a name is first used."""

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a public name of a package from the module that defines it.

    Args:
        package: the package's `__name__`.
        homes: public name → module.
        name: what is looked up.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
