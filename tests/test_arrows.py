"""Imports within the package point down its layers, never up."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "revela"
# Each may import from those below it, and from its own folder.
LAYERS = [
    *("__init__", "__main__", "cli", "start", "report", "search", "evaluation", "training"),
    *("retriever", "text", "inbatch", "step", "config", "common"),
]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the layer of each import from this package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for package, _, rest in (module.partition(".") for module in modules):
            if package == "revela" and rest.split(".")[0] in LAYERS:
                yield node.lineno, rest.split(".")[0]


def test_imports_point_down():
    up = []
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        below = LAYERS[LAYERS.index(here) :] if here in LAYERS else []
        up += [f"{path}:{line} {there}" for line, there in imported(path) if there not in below]
    assert not up, "\n".join(up)


def test_every_folder_has_a_layer():
    names = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert names == set(LAYERS)
