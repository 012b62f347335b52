"""`pydocs`: three retrieval tasks cut from Python's standard library.

    docstring-to-function   a docstring finds its function, the docstring removed
    function-to-docstring   the reverse
    first-to-second-half    the first half of a function's lines finds the second half

The tasks resemble CodeSearchNet and CodeSearchNet-CC. The embedded training corpus consists of
installed packages and contains none of this text.
"""

import random
from pathlib import Path

import revela
from revela.config.evaluation import PydocsBenchmark
from revela.evaluation.benchmarks import write_collection
from revela.text.rows import json_lines

# In the repository, since the libraries of two Pythons differ in a few functions.
FUNCTIONS = Path(revela.__file__).parents[1] / "data/pydocs/functions.jsonl.xz"


def write_task(settings: PydocsBenchmark, task: str, folder: Path) -> dict[str, int]:
    """Write a task in BEIR layout; return its sizes."""
    functions = [function for _, function in json_lines(FUNCTIONS)]
    random.Random(settings.seed).shuffle(functions)
    drawn = functions[: settings.max_documents]
    texts = {function["id"]: _query_and_document(function, task) for function in drawn}
    asked = list(texts.items())[: settings.max_queries]
    return write_collection(
        folder,
        documents=[(name, "", document) for name, (_, document) in sorted(texts.items())],
        queries=[(f"q:{name}", query) for name, (query, _) in asked],
        judgements=[(f"q:{name}", name, 1) for name, _ in asked],
    )


def _query_and_document(function: dict[str, str], task: str) -> tuple[str, str]:
    if task == "docstring-to-function":
        return function["docstring"], function["code"]
    if task == "function-to-docstring":
        return function["code"], function["docstring"]
    lines = function["code"].splitlines()
    middle = len(lines) // 2
    return "\n".join(lines[:middle]), "\n".join(lines[middle:])
