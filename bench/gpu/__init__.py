"""Benchmarks of a GPU: correctness and speed.

They need only torch, transformers and peft. Without pydantic the package's settings cannot be
imported; the benchmarks use namespaces with the same attributes.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import revela

_SETTINGS = ["names", "settings", "text", "encoding", "training", "evaluation"]


def _any_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


if importlib.util.find_spec("pydantic") is None:
    for missing in ("revela.config", *(f"revela.config.{name}" for name in _SETTINGS)):
        sys.modules[missing] = ModuleType(missing)
        vars(sys.modules[missing])["__getattr__"] = _any_class
    # The other modules are imported unchanged.
    vars(sys.modules["revela.config"])["__path__"] = [str(Path(revela.__file__).parent / "config")]
