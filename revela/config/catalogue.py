"""Tasks of mteb and lm-eval by their names."""

import functools
import importlib.util
import re
from pathlib import Path

from revela.common.errors import reading

RETRIEVAL_MEASURES = frozenset(
    f"{measure}_at_{cutoff}"
    for measure in ("ndcg", "map", "mrr", "recall", "precision", "hit_rate")
    for cutoff in (1, 3, 5, 10, 20, 100, 1000)
)
"""The measures of a retrieval task's scores that a table can show, as mteb names them."""


@functools.cache
def mteb_task_names() -> frozenset[str]:
    """Return the names of mteb's retrieval tasks."""
    import mteb

    return frozenset(
        task.metadata.name
        for task in mteb.get_tasks(task_types=["Retrieval"], exclude_superseded=False)
    )


def mteb_subsets(task: str) -> set[str]:
    """Return the subsets of an mteb task, named as in scores; empty if there is only one."""
    import mteb

    if task not in mteb_task_names():
        return set()
    loaded = mteb.get_task(task)
    subsets = {f"{split}/{subset}" for split in loaded.eval_splits for subset in loaded.hf_subsets}
    return subsets if len(subsets) > 1 else set()


@functools.cache
def lm_eval_task_files(folder: str | None = None) -> dict[str, Path]:
    """Return the YAML files of lm-eval's tasks, or of a folder of your own, by task name.

    The files are searched, not parsed: a tenth of the time that lm-eval's own index takes. Empty if
    lm-eval is not installed.
    """
    root = Path(folder) if folder else None
    if root is None and (spec := importlib.util.find_spec("lm_eval")) and spec.origin:
        root = Path(spec.origin).parent / "tasks"  # located without importing it
    task = re.compile(rb"""^["']?task["']?: *["']?([^\s"']+)""", re.MULTILINE)
    return {
        match[1].decode(): path
        for path in (root.rglob("*.yaml") if root else ())
        if (match := task.search(path.read_bytes()))
    }


def lm_eval_data_set(file: Path) -> str | None:
    """Return the data set named by a task's YAML file or by a file that it includes.

    Raises:
        RevelaError: a file cannot be read.
    """
    with reading(file, "a task"):
        text = file.read_text(encoding="utf-8")
    named = re.search(r"""^dataset_path: *["']?([^\s"']+)""", text, re.MULTILINE)
    included = re.search(r"""^include: *["']?([^\s"']+)""", text, re.MULTILINE)
    if named:
        return named[1]
    return lm_eval_data_set(file.parent / included[1]) if included else None
