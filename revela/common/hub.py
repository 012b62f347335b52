"""What the Hugging Face hub has; one line for what cannot be loaded and what to do about it."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError

_SECONDS = 10  # that the hub may take for an answer

# Having a model converted by a public service is for its user to ask.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


@contextlib.contextmanager
def explained(what: str, name: str) -> Iterator[None]:
    """Turn whatever loading `name` raises into a RevelaError; see `explain`."""
    try:
        yield
    except RevelaError:
        raise
    except Exception as error:
        raise RevelaError(explain(what, name, error)) from error


def explain(what: str, name: str, error: BaseException) -> str:
    """Return one line for an error that loading `name` from the hub or a folder raised.

    Args:
        what: "model", "adapter" or "data set".
        name: the hub name or folder.
        error: what the library raised, its causes included.
    """
    from datasets.exceptions import DatasetNotFoundError
    from datasets.table import CastError
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx

    causes = list(_causes(error))
    # datasets tells gated and missing sets apart only in its message.
    missing = " ".join(str(cause) for cause in causes if isinstance(cause, DatasetNotFoundError))

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(errors.GatedRepoError) or "gated" in missing:
        return (
            f"{what} {name!r} is gated: accept its terms on https://huggingface.co/{name} "
            "and set HF_TOKEN in the environment"
        )
    if caused_by(errors.RepositoryNotFoundError) or "doesn't exist on the Hub" in missing:
        return (
            f"{what} {name!r} does not exist on the hub, or is private: check the spelling, "
            "or set HF_TOKEN in the environment"
        )
    if caused_by(ConnectionError, errors.LocalEntryNotFoundError, httpx.TransportError):
        return (
            f"{what} {name!r} is not in the local cache and the hub cannot be reached: "
            "connect, or download it beforehand with `hf download`"
        )
    text = str(error).strip() or type(error).__name__
    if "does not appear to have a file named" in text and "safetensors" in text:
        return (
            f"{what} {name!r} has no weights in safetensors: ask for them at "
            "https://huggingface.co/spaces/safetensors/convert, or convert them yourself"
        )
    # Errors of a data set whose fields have changed hold no more than a name.
    if isinstance(error, KeyError) or caused_by(CastError):
        return f"{what} {name!r} lacks the fields that are expected: {' '.join(text.split())[:200]}"
    return f"{what} {name!r} cannot be loaded: {text.splitlines()[0]}"


def converted_revision(name: str) -> str | None:
    """Return the pull request in which the hub's own bot converted a model to safetensors."""
    from huggingface_hub import get_repo_discussions

    requests = get_repo_discussions(name, author="SFconvertbot", discussion_type="pull_request")
    numbers = [request.num for request in requests if "safetensors" in request.title]
    return f"refs/pr/{max(numbers)}" if numbers else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def commit(name: str, revision: str | None) -> str | None:
    """Return the commit at which a model of the hub is in the local cache, None for a folder."""
    from huggingface_hub import try_to_load_from_cache

    if Path(name).is_dir():
        return None
    for file in ("adapter_config.json", "config.json"):
        path = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(path, str):
            return Path(path).parent.name
    return None


class Hub:
    """Tells what of the hub can be read without reading it; offline, what its cache holds."""

    def __init__(self) -> None:
        from huggingface_hub import HfApi, constants

        self.api = HfApi()
        self.address = constants.ENDPOINT
        self.unreachable = not constants.HF_HUB_OFFLINE and not self._answers()
        self.offline = constants.HF_HUB_OFFLINE or self.unreachable

    def problems(
        self, what: str, repositories: Iterable[tuple[str, str | None]]
    ) -> list[str | None]:
        """Return what keeps each repository from being read, None if nothing.

        Args:
            what: "model" or "data set".
            repositories: name and revision of each.
        """
        look = self._in_cache if self.offline else self._on_hub
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda one: look(what, *one), repositories))

    def config(self, name: str) -> dict[str, Any] | None:
        """Return the `config.json` of a model of the hub or of a folder, None if there is none."""
        from transformers import PreTrainedConfig

        try:
            return PreTrainedConfig.get_config_dict(name, local_files_only=self.offline)[0]
        except (OSError, ValueError):  # `problems` says why
            return None

    def _answers(self) -> bool:
        from huggingface_hub.utils import get_session, httpx

        try:
            get_session().head(self.address, timeout=_SECONDS / 2)
        except httpx.HTTPError:
            return False
        return True

    def _on_hub(self, what: str, name: str, revision: str | None) -> str | None:
        model = what == "model"
        ask = self.api.model_info if model else self.api.dataset_info
        try:
            info = ask(name, revision=revision, timeout=_SECONDS)
            if info.gated:  # its description is public, its files are not
                self.api.auth_check(name, repo_type="model" if model else "dataset")
            weights = any(file.rfilename.endswith(".safetensors") for file in info.siblings or [])
            if model and not weights and (revision or not converted_revision(name)):
                return f"model {name!r} has no weights in safetensors"
        except Exception as error:
            return explain(what, name, error)
        return None

    def _in_cache(self, what: str, name: str, revision: str | None) -> str | None:
        from datasets import config
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        kind, needed = ("model", "*.safetensors") if what == "model" else ("dataset", "*")
        # Not scan_cache_dir, which looks at every file of every repository.
        folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind))
        commit = revision if revision and len(revision) == 40 else "*"
        if any(folder.glob(f"snapshots/{commit}/{needed}")):
            return None
        # datasets has a cache of its own for prepared data sets.
        prepared = Path(config.HF_DATASETS_CACHE, name.replace("/", "___").lower())
        if kind == "dataset" and prepared.is_dir():
            return None
        return explain(what, name, ConnectionError())
