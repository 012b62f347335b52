"""Imports within the package point down its layers, never up."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "revela"
# Each may import from the lower floors, and from its own folder.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"start"},
    {"report"},
    {"search"},
    {"evaluation"},
    {"training"},
    {"retriever"},
    {"text"},
    {"inbatch"},
    {"step"},
    {"config"},
    {"common"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def arrows() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
                if node.module == "revela":
                    modules = [f"revela.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                there = folder_of(module)
                if module.split(".")[0] == "revela" and there in FLOOR and there != here:
                    where = f"{path.relative_to(PACKAGE)}:{node.lineno} {module}"
                    found.setdefault((here, there), []).append(where)
    return found


def test_imports_point_down():
    up = [
        where
        for (here, there), places in arrows().items()
        if FLOOR.get(here, len(FLOORS)) >= FLOOR[there]
        for where in places
    ]
    assert not up, "\n".join(up)


def test_every_folder_has_a_floor():
    names = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert names - {"__init__"} == set(FLOOR)
