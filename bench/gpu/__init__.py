"""Benchmarks of a GPU: correctness and speed.

They need only torch, transformers, peft and accelerate. Without pydantic the package's settings
cannot be imported, and without sentence-transformers its encoder: others with the same attributes
take their place.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import revela
from bench.gpu import stand_ins

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

try:
    import sentence_transformers  # noqa: F401
except ImportError:
    for name in ("", ".sentence_transformer", ".sentence_transformer.modules", ".util"):
        sys.modules[f"sentence_transformers{name}"] = stand_ins
