"""What a GPU is asked to show: that it computes the same, and how fast.

It runs with torch, transformers and peft alone. Without pydantic the package's settings cannot be
imported; the benches pass on namespaces of the same attributes.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import revela


def _any_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


if importlib.util.find_spec("pydantic") is None:
    for missing in ("revela.config", "revela.config.names", "revela.config.steps"):
        sys.modules[missing] = ModuleType(missing)
        vars(sys.modules[missing])["__getattr__"] = _any_class
    # Its other modules are imported as they are.
    vars(sys.modules["revela.config"])["__path__"] = [str(Path(revela.__file__).parent / "config")]
