"""`revela check`: a config, and what targets need: the hub, API keys, packages, disk space."""

import importlib.util
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from revela.common.errors import RevelaError, check_name, errors_at
from revela.common.hub import KINDS, converted_revision, explain, explained
from revela.config import Config, load_config, paths
from revela.config.catalogue import lm_eval_data_set, lm_eval_task_files
from revela.config.names import ModelName, ModelRef, references
from revela.config.text import HubFiles
from revela.retriever.source import Source
from revela.start.local import check_local
from revela.text.downloads import files_on_hub

_SECONDS = 10  # timeout of a request to the hub
_GB = 1024**3
_OF_A_MODEL = ["*.safetensors", "*.json", "*.txt", "*.model"]
_MADE_BY_ALL = ("tables", "listings", "costs", "figures")


class Repository(NamedTuple):
    """A model or data set on the hub."""

    what: str
    name: str
    revision: str | None = None
    files: str = ""  # pattern of the files that are needed
    wanted: HubFiles | None = None  # or the files that a corpus or a batch set needs


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
    repositories = [need for need in needs if isinstance(need, Repository)]
    size = 0
    with ThreadPoolExecutor(16) as pool:
        for repository, answer in zip(repositories, pool.map(_look_up, repositories), strict=True):
            if isinstance(answer, str):
                problems[answer] = needs[repository]
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
    print(f"{len(repositories)} models and data sets can be read, {size / _GB:.1f} GB to download")
    if download:
        _download(checked, needs)


def _download(config: Config, needs: dict[Repository | str, list[str]]) -> None:
    """Load models and evaluation data into the caches; the rule `download` does so for corpora."""
    from huggingface_hub import snapshot_download

    for need in needs:
        if isinstance(need, Repository) and need.what == "model":
            with explained(need.what, need.name):
                snapshot_download(need.name, revision=need.revision, allow_patterns=_OF_A_MODEL)
    users = (user.split() for names in needs.values() for user in names)
    for task in dict.fromkeys(task for section, _, *rest in users for task in rest):
        suite = config.task(task)
        if suite.source == "mteb":
            from revela.evaluation import benchmarks, measure

            measure.judgements(benchmarks.load_task(suite, task, None, Path()))
        elif suite.source == "lm-eval":
            from revela.evaluation import lm_eval

            lm_eval.load_task(suite, task)


def _needs(config: Config, targets: list[str]) -> dict[Repository | str, list[str]]:
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
        table = config.table(name)
        models = [model for row in table.rows for model in row.model]
        return [paths.scores(model, task) for model in models for task in table.tasks()]
    if section == "scores" and name in config.hybrids:
        tasks = [task, *config.tuning_tasks(name, task)]
        return [paths.scores(part, other) for part in config.hybrids[name].of for other in tasks]
    if section == "scores":
        made = config.inputs("models", name) | config.inputs("benchmarks", config.tasks[task])
        return list(made.values())
    return list(config.inputs(section, name).values())


def _needs_of(
    config: Config, section: str, name: str, task: str = ""
) -> Iterator[Repository | str]:
    """Yield the repositories that an entry's step loads, and what this machine lacks for it."""
    entry: Any = config.model(name) if section == "scores" else getattr(config, section)[name]
    if wanted := getattr(entry, "hub_files", None):
        if not Path(paths.download(section, name)).exists():
            yield Repository("data set", wanted.dataset, wanted.revision, wanted=wanted)
    elif section == "corpora" and entry.source == "python-packages":
        yield from _not_installed(*entry.packages)
    elif section == "experiments":
        yield from _weights(entry)
    elif section == "scores":
        yield from _needs_of_model(config, name, entry)
        yield from _needs_of_task(config.task(task), task)


def _needs_of_model(config: Config, name: str, entry: Any) -> Iterator[Repository | str]:
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


def _needs_of_task(suite: Any, task: str) -> Iterator[Repository | str]:
    if suite.source == "mteb":
        import mteb

        described = mteb.get_task(task).metadata.dataset
        yield Repository("data set", described["path"], described.get("revision"), "*")
    elif suite.source == "ir_datasets":
        yield from _not_installed("ir_datasets")
    elif suite.source == "lm-eval":
        yield from _not_installed("lm_eval")
        file = lm_eval_task_files(suite.path).get(task)
        if file and "/" in (path := lm_eval_data_set(file) or ""):
            yield Repository("data set", path, None, "*")


def _not_installed(*packages: str) -> Iterator[str]:
    for package in packages:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            yield f"the package {package} is not installed"


def _look_up(repository: Repository) -> int | str:
    """Return how many bytes of a repository the cache lacks, or why it cannot be read."""
    from huggingface_hub import HfApi, constants, file_download, try_to_load_from_cache
    from huggingface_hub.utils import httpx

    what, name, revision, pattern, wanted = repository
    at: Any = {"repo_id": name, "repo_type": KINDS[what]}
    try:
        asked: Any = {"revision": revision, "files_metadata": True, "timeout": _SECONDS}
        info: Any = HfApi().repo_info(**at, **asked)
        if info.gated:  # its description is public, its files are not
            HfApi().auth_check(**at)
        files = {file.rfilename: file.size or 0 for file in info.siblings or []}
        kept = [file for file in files if fnmatch(file, pattern)]
        if wanted:
            _, files = files_on_hub(wanted)
            kept = [*files]
        if what == "model" and not kept and (revision or not converted_revision(name)):
            return f"model {name!r} has no safetensors weights"
        new = [f for f in kept if not try_to_load_from_cache(**at, filename=f, revision=info.sha)]
        return sum(files[file] for file in new)
    except (ConnectionError, httpx.TransportError) as error:
        folder = Path(constants.HF_HUB_CACHE, file_download.repo_folder_name(**at))
        commit = revision if revision and len(revision) == 40 else "*"
        there = any(folder.glob(f"snapshots/{commit}/{pattern}")) if pattern else False
        return 0 if there else explain(what, name, error)
    except RevelaError as error:
        return str(error)
    except Exception as error:
        return explain(what, name, error)
