"""What the Hugging Face hub has; why something cannot be had, in one line that says what to do."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_SECONDS = 10  # that the hub may take for an answer

# Having a model converted by a public service is for its user to ask.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


def explain(what: str, name: str, error: BaseException) -> str:
    """Return one line for an error that loading `name` from the hub or a folder raised.

    Args:
        what: "model" or "data set".
        name: the hub name or folder asked for.
        error: what the library raised; its causes are looked at as well.
    """
    causes = list(_causes(error))
    kinds = {type(cause).__name__ for cause in causes}
    # datasets tells gated and missing sets apart only in its message.
    told = " ".join(str(c) for c in causes if type(c).__name__ == "DatasetNotFoundError").lower()
    if "GatedRepoError" in kinds or "gated" in told:
        return (
            f"{what} {name!r} is gated: accept its terms on https://huggingface.co/{name} "
            "and set HF_TOKEN in the environment"
        )
    if "RepositoryNotFoundError" in kinds or "doesn't exist on the hub" in told:
        return (
            f"{what} {name!r} does not exist on the hub, or is private: check the spelling, "
            "or set HF_TOKEN in the environment"
        )
    text = " ".join(map(str, causes)).lower()
    offline = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError"}
    phrases = ("offline", "couldn't connect", "couldn't reach", "cached files")
    if kinds & offline or any(phrase in text for phrase in phrases):
        return (
            f"{what} {name!r} is not in the local cache and the hub cannot be reached: "
            "connect, or download it beforehand with `hf download`"
        )
    if "does not appear to have a file named" in text and "safetensors" in text:
        return (
            f"{what} {name!r} has no weights in safetensors: ask for them at "
            "https://huggingface.co/spaces/safetensors/convert, or convert them yourself"
        )
    # What a changed set of fields raises says no more than a name.
    if isinstance(error, KeyError) or "CastError" in kinds:
        text = " ".join(str(error).split())[:200]
        return f"{what} {name!r} has not the fields that are expected: {text}"
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{what} {name!r} cannot be loaded: {first_line}"


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
    """What of the hub can be read, found without reading it; offline, what its cache holds."""

    def __init__(self) -> None:
        from huggingface_hub import HfApi, constants

        self.api = HfApi()
        self.address = constants.ENDPOINT
        self.offline = constants.HF_HUB_OFFLINE
        self.unreachable = not self.offline and not self._answers()
        if self.unreachable:
            self.offline = True

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
        """Return the `config.json` of a model or of a folder, None where it cannot be had."""
        from huggingface_hub import hf_hub_download

        wanted: dict[str, Any] = {"etag_timeout": _SECONDS, "local_files_only": self.offline}
        try:
            folder = Path(name)
            path = folder / "config.json"
            if not folder.is_dir():
                path = Path(hf_hub_download(name, "config.json", **wanted))
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # why it cannot be had is told elsewhere
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
        ask: Callable[..., Any] = self.api.model_info if model else self.api.dataset_info
        try:
            info = ask(name, revision=revision, timeout=_SECONDS)
            if getattr(info, "gated", False):  # its description is public, its files are not
                self.api.auth_check(name, repo_type="model" if model else "dataset")
            weights = any(f.rfilename.endswith(".safetensors") for f in info.siblings or [])
            if model and not weights and (revision or not converted_revision(name)):
                return f"model {name!r} has no weights in safetensors"
        except Exception as error:  # explained, whatever it is
            return explain(what, name, error)
        return None

    def _in_cache(self, what: str, name: str, revision: str | None) -> str | None:
        from huggingface_hub import constants

        model = what == "model"
        kind, needed = ("models", "*.safetensors") if model else ("datasets", "*")
        folder = Path(constants.HF_HUB_CACHE, f"{kind}--{name.replace('/', '--')}", "snapshots")
        commit = revision if revision and len(revision) == 40 else "*"
        # Prepared data sets stand apart from what was downloaded.
        prepared = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets")
        if any(folder.glob(f"{commit}/{needed}")):
            return None
        if not model and Path(prepared, name.replace("/", "___").lower()).is_dir():
            return None
        return explain(what, name, ConnectionError())
