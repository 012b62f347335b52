"""Extracts the documented functions of a Python's standard library into `functions.jsonl.xz`.

    python3.11 data/pydocs/make.py

The file in this repository is that of Python 3.11.7.
"""

import ast
import inspect
import json
import lzma
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

_Node = ast.FunctionDef | ast.AsyncFunctionDef
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo"}
_MIN_DOCSTRING_WORDS = 6
_MIN_LINES = 6  # of a function, without its docstring


def functions(root: Path) -> Iterator[dict[str, str]]:
    """Yield the documented functions of a library in file order: id, docstring, code without it.

    Functions with a docstring of fewer than six words or a body of fewer than six lines are
    skipped, as are duplicates of a docstring or of code.
    """
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
        for name, node in _nodes(tree, module):
            docstring, code = _cut(node, lines)
            if docstring and not {docstring, code} & seen:
                seen |= {docstring, code}
                yield {"id": name, "docstring": docstring, "code": code}


def _nodes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, _Node]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Node):
            yield f"{prefix}.{node.name}:{node.lineno}", node
        elif isinstance(node, ast.ClassDef):
            yield from _nodes(node, f"{prefix}.{node.name}")


def _cut(node: _Node, lines: list[str]) -> tuple[str, str]:
    """Return a function's docstring and its code without it; empty if one is too short."""
    docstring = ast.get_docstring(node) or ""
    literal = node.body[0]
    before = lines[node.lineno - 1 : literal.lineno - 1]
    after = lines[(literal.end_lineno or literal.lineno) : node.end_lineno]
    code = textwrap.dedent("\n".join([*before, *after])).strip()
    is_short = len(docstring.split()) < _MIN_DOCSTRING_WORDS or len(code.splitlines()) < _MIN_LINES
    return (inspect.cleandoc(docstring), code) if before and not is_short else ("", "")


def main() -> None:
    """Write the file beside this script."""
    rows = functions(Path(sysconfig.get_paths()["stdlib"]))
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    output = Path(__file__).with_name("functions.jsonl.xz")
    output.write_bytes(lzma.compress("".join(lines).encode()))
    print(f"{output}: {len(lines)} functions")


if __name__ == "__main__":
    main()
