"""Material of miniatures: Python's own documentation and source; files of rows."""

import ast
import gzip
import json
import random
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Function:
    """A function of the standard library."""

    name: str
    summary: str  # the first line of its docstring
    description: str  # the rest of the docstring
    source: str


@cache
def functions() -> list[Function]:
    """Return the documented functions of a part of the standard library, in a fixed order."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-p]*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            summary, _, description = (ast.get_docstring(node) or "").partition("\n")
            if len(description.split()) > 30:
                source = ast.get_source_segment(text, node) or ""
                name = f"{path.stem}.{node.name}"
                found.append(Function(name, summary, description.strip(), source))
    random.Random(0).shuffle(found)
    return found


def articles() -> list[tuple[str, str]]:
    """Return (title, text) of long texts in English."""
    return sorted(topics.items())


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as JSON lines, compressed according to the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_parquet(path: Path, rows: Rows) -> None:
    """Write rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_card(folder: Path, configs: dict[str, dict[str, str]]) -> None:
    """Write a data set's card with its configurations and the files of their splits."""
    listed = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for name, splits in configs.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"configs": listed}, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{text}---\nA miniature.\n")
