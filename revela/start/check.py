"""`revela check`: a config, and what targets need: the hub, API keys, packages, disk space."""

import importlib.util
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from revela.common.errors import RevelaError, check_name, errors_at
from revela.config import Config, load_config, paths
from revela.config.catalogue import lm_eval_data_set, lm_eval_task_files
from revela.config.names import ModelName, ModelRef, references
from revela.config.text import HubFiles
from revela.retriever.source import Source
from revela.start.downloads import (
    Repository,
    bytes_to_download,
    download_models,
    download_tasks,
)
from revela.start.local import check_local

_GB = 1024**3
_MADE_BY_ALL = ("tables", "listings", "figures")


Need = Repository | HubFiles | str
"""What a step needs from outside; a text says what this machine lacks."""


def check(
    config: Path,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files to make, or `all`: check their needs too.")
    ] = None,
    download: Annotated[
        bool, typer.Option(help="Download models and evaluation data of the targets.")
    ] = False,
) -> None:
    """Check the keys, values, references between entries and local files of a config.

    With targets, also check what their jobs need: that models and data sets can be read from the
    hub or, offline, from its cache; keys of APIs, packages and Java; disk space for the downloads.
    Files that exist in `results/` need nothing.
    """
    checked = load_config(config)
    with errors_at(str(config)):
        check_local(checked)
    for target in targets or ():
        check_name(str(config), "target", target, [*checked.targets(), "all"])
    counts = {name: len(getattr(checked, name)) for name in type(checked).model_fields}
    print(f"{config}: valid:", ", ".join(f"{n} {name}" for name, n in counts.items() if n))
    if not targets:
        return
    from huggingface_hub import constants

    needs = _needs(checked, targets)
    problems = {need: users for need, users in needs.items() if isinstance(need, str)}
    on_hub = [need for need in needs if not isinstance(need, str)]
    size = 0
    with ThreadPoolExecutor(16) as pool:
        for need, answer in zip(on_hub, pool.map(bytes_to_download, on_hub), strict=True):
            if isinstance(answer, str):
                problems[answer] = needs[need]
            else:
                size += answer
    cache = Path(constants.HF_HOME).absolute()
    disk = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if (free := shutil.disk_usage(disk).free) < size:
        lack = f"the downloads need {size / _GB:.1f} GB of disk space, {free / _GB:.1f} GB are free"
        problems[lack] = ["all targets"]
    for problem, (first, *others) in problems.items():
        more = f" and {len(others)} more" if others else ""
        print(f"{problem} (needed by {first}{more})", file=sys.stderr)
    if problems:
        raise RevelaError(f"{config}: {len(problems)} needs of the targets are not met, see above")
    print(f"{len(on_hub)} models and data sets can be read, {size / _GB:.1f} GB to download")
    if download:
        models = [need for need in on_hub if isinstance(need, Repository) and need.what == "model"]
        users = (user.split() for names in needs.values() for user in names)
        tasks = dict.fromkeys(task for _, _, *rest in users for task in rest)
        download_models(models)
        download_tasks(checked, tasks)


def _needs(config: Config, targets: list[str]) -> dict[Need, list[str]]:
    """Return repositories, and what this machine lacks, each with the entries that need it."""
    known, needs = config.targets(), defaultdict(list)
    every = [path for path, (section, *_) in known.items() if section in _MADE_BY_ALL]
    waiting, seen = every if "all" in targets else list(targets), set()
    while waiting:
        path = waiting.pop()
        # The log of a training is made with its retriever.
        entry = known.get(path) or known.get(paths.made("experiments", paths.trained(path) or ""))
        if entry and entry not in seen and not Path(path).exists():
            seen.add(entry)
            waiting += _inputs(config, *entry)
            for need in dict.fromkeys(_needs_of(config, *entry)):
                needs[need].append(" ".join(entry))
    return needs


def _inputs(config: Config, section: str, name: str, task: str = "") -> list[str]:
    if section == "tables":
        return [paths.scores(*pair) for pair in config.measured(name)]
    if section == "scores" and name in config.hybrids:
        return [paths.scores(*pair) for pair in config.fused_of(name, task)]
    if section == "scores":
        made = config.inputs("models", name) | config.inputs("benchmarks", config.tasks[task])
        return list(made.values())
    return list(config.inputs(section, name).values())


def _needs_of(config: Config, section: str, name: str, task: str = "") -> Iterator[Need]:
    """Yield the repositories that an entry's step loads, and what this machine lacks for it."""
    entry: Any = config.model(name) if section == "scores" else getattr(config, section)[name]
    if wanted := getattr(entry, "hub_files", None):
        if not Path(paths.download(section, name)).exists():
            yield wanted
    elif section == "corpora" and entry.source == "python-packages":
        yield from _not_installed(*entry.packages)
    elif section == "experiments":
        yield from _weights(entry)
    elif section == "scores":
        yield from _needs_of_model(config, name, entry)
        yield from _needs_of_task(config.task(task), task)


def _needs_of_model(config: Config, name: str, entry: Any) -> Iterator[Need]:
    if entry.kind == "api" and not os.environ.get(entry.key):
        yield f"{entry.key} is not in the environment"
    if entry.kind == "lucene":
        from revela.evaluation.lucene import java_and_jar

        try:
            java_and_jar()
        except RevelaError as error:
            yield str(error)
    yield from _weights(entry)
    # LoRA's weights are applied to the backbone again.
    trained = getattr(entry, "language_model", name)
    yield from _weights(config.experiments.get(ModelName.parse(trained).training))


def _weights(entry: Any) -> Iterator[Repository]:
    revision, adapter = getattr(entry, "revision", None), getattr(entry, "adapter", None)
    for model in references(entry):
        if isinstance(model, ModelRef) and model.is_hub_name:
            source = Source(model, None if adapter and model != adapter else revision)
            yield Repository("model", source.name, source.revision, "*.safetensors")


def _needs_of_task(suite: Any, task: str) -> Iterator[Need]:
    if suite.source == "mteb":
        import mteb

        described = mteb.get_task(task).metadata.dataset
        yield Repository("data set", described["path"], described.get("revision"))
    elif suite.source == "ir_datasets":
        yield from _not_installed("ir_datasets")
    elif suite.source == "lm-eval":
        yield from _not_installed("lm_eval")
        file = lm_eval_task_files(suite.path).get(task)
        if file and "/" in (path := lm_eval_data_set(file) or ""):
            yield Repository("data set", path)


def _not_installed(*packages: str) -> Iterator[str]:
    for package in packages:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            yield f"the package {package} is not installed"
