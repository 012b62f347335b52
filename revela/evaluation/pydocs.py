"""`pydocs`: three retrieval tasks cut from Python's standard library.

    docstring-to-function   a docstring finds its function, the docstring removed
    function-to-docstring   the reverse
    first-to-second-half    the first half of a function's lines finds the second half

The tasks resemble CodeSearchNet and CodeSearchNet-CC. The embedded training corpus consists of
installed packages and contains none of this text.
"""

import ast
import inspect
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from revela.config.evaluation import PydocsBenchmark
from revela.evaluation.benchmarks import write_collection

_Node = ast.FunctionDef | ast.AsyncFunctionDef
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo"}
_MIN_DOCSTRING_WORDS = 6
_MIN_LINES = 6  # of a function, without its docstring


@dataclass(frozen=True)
class Function:
    """A documented function of the standard library."""

    id: str
    docstring: str
    code: str  # without the docstring


def write_task(settings: PydocsBenchmark, task: str, folder: Path) -> dict[str, int]:
    """Write a task in BEIR layout; return its sizes."""
    functions = list(standard_library_functions())
    random.Random(settings.seed).shuffle(functions)
    texts = {one.id: _query_and_document(one, task) for one in functions[: settings.max_documents]}
    asked = list(texts.items())[: settings.max_queries]
    return write_collection(
        folder,
        documents=[(name, "", document) for name, (_, document) in sorted(texts.items())],
        queries=[(f"q:{name}", query) for name, (query, _) in asked],
        judgements=[(f"q:{name}", name, 1) for name, _ in asked],
    )


def _query_and_document(function: Function, task: str) -> tuple[str, str]:
    if task == "docstring-to-function":
        return function.docstring, function.code
    if task == "function-to-docstring":
        return function.code, function.docstring
    lines = function.code.splitlines()
    middle = len(lines) // 2
    return "\n".join(lines[:middle]), "\n".join(lines[middle:])


def standard_library_functions() -> Iterator[Function]:
    """Yield the documented functions of this Python's standard library in file order.

    Functions with a docstring of fewer than six words or a body of fewer than six lines are
    skipped, as are duplicates of a docstring or of code.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED & set(path.relative_to(root).parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        lines = source.splitlines()
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue  # templates with the suffix of modules
        module = str(path.relative_to(root)).removesuffix(".py").replace("/", ".")
        for name, node in _functions(tree, module):
            function = _function(name, node, lines)
            if function and not {function.docstring, function.code} & seen:
                seen |= {function.docstring, function.code}
                yield function


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, _Node]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Node):
            yield f"{prefix}.{node.name}:{node.lineno}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}.{node.name}")


def _function(name: str, node: _Node, lines: list[str]) -> Function | None:
    docstring = ast.get_docstring(node) or ""
    literal = node.body[0]
    before = lines[node.lineno - 1 : literal.lineno - 1]
    after = lines[(literal.end_lineno or literal.lineno) : node.end_lineno]
    code = textwrap.dedent("\n".join([*before, *after])).strip()
    is_short = len(docstring.split()) < _MIN_DOCSTRING_WORDS or len(code.splitlines()) < _MIN_LINES
    return Function(name, inspect.cleandoc(docstring), code) if before and not is_short else None
