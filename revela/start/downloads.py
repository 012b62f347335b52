"""Models and evaluation data on the hub: how much is to download, and the download."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from revela.common.errors import RevelaError
from revela.common.hub import KINDS, converted_revision, explained, repository_files
from revela.config import Config
from revela.config.text import HubFiles
from revela.text.downloads import files_on_hub

_OF_A_MODEL = ["*.safetensors", "*.json", "*.txt", "*.model"]


class Repository(NamedTuple):
    """A model or data set on the hub."""

    what: str
    name: str
    revision: str | None = None
    files: str = "*"  # pattern of the files that are needed


def bytes_to_download(need: Repository | HubFiles) -> int | str:
    """Return how many bytes the hub's cache lacks, or why they cannot be downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import httpx

    try:
        if isinstance(need, HubFiles):
            at: Any = {"repo_id": need.dataset, "repo_type": "dataset"}
            commit, files = files_on_hub(need)
        else:
            what, name, revision, pattern = need
            at = {"repo_id": name, "repo_type": KINDS[what]}
            commit, every = repository_files(what, name, revision)
            files = {file: size for file, size in every.items() if fnmatch(file, pattern)}
            with explained(what, name):
                if what == "model" and not files and (revision or not converted_revision(name)):
                    return f"model {name!r} has no safetensors weights"
    except RevelaError as error:
        offline = isinstance(error.__cause__, ConnectionError | httpx.TransportError)
        cached = offline and isinstance(need, Repository) and _is_cached(need)
        return 0 if cached else str(error)
    new = [f for f in files if not try_to_load_from_cache(**at, filename=f, revision=commit)]
    return sum(files[file] for file in new)


def _is_cached(repository: Repository) -> bool:
    from huggingface_hub import constants, file_download

    what, name, revision, pattern = repository
    folder = file_download.repo_folder_name(repo_id=name, repo_type=KINDS[what])
    commit = revision if revision and len(revision) == 40 else "*"
    return any(Path(constants.HF_HUB_CACHE, folder).glob(f"snapshots/{commit}/{pattern}"))


def download_models(models: Iterable[Repository]) -> None:
    """Download models into the hub's cache."""
    from huggingface_hub import snapshot_download

    for model in models:
        with explained("model", model.name):
            snapshot_download(model.name, revision=model.revision, allow_patterns=_OF_A_MODEL)


def download_tasks(config: Config, tasks: Iterable[str]) -> None:
    """Load the data of mteb's and lm-eval's tasks into their caches."""
    for task in tasks:
        suite = config.task(task)
        if suite.source == "mteb":
            from revela.evaluation import benchmarks, measure

            measure.judgements(benchmarks.load_task(suite, task, None, Path()))
        elif suite.source == "lm-eval":
            from revela.evaluation import lm_eval

            lm_eval.load_task(suite, task)
