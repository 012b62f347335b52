"""Files of the Hugging Face hub, and its errors explained in one line."""

import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError

KINDS = {"model": "model", "data set": "dataset"}  # names used by the hub's client

_SECONDS = 10  # timeout of a request for a description

# Only the user should ask a public service to convert a model.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


@contextlib.contextmanager
def explained(what: str, name: str) -> Iterator[None]:
    """Turn any exception raised while loading `name` into a RevelaError; see `explain`."""
    try:
        yield
    except RevelaError:
        raise
    except Exception as error:
        raise RevelaError(explain(what, name, error)) from error


def explain(what: str, name: str, error: BaseException) -> str:
    """Explain in one line an error raised while loading `name` from the hub or a folder.

    `what` is "model", "adapter" or "data set"; the causes of the error are examined too.
    """
    from datasets.exceptions import DatasetNotFoundError
    from datasets.table import CastError
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx

    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    # datasets distinguishes gated from missing data sets only in its message.
    missing = " ".join(str(cause) for cause in causes if isinstance(cause, DatasetNotFoundError))
    text = str(error).strip() or type(error).__name__

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    it, token = f"{what} {name!r}", "set HF_TOKEN in the environment"
    if caused_by(errors.GatedRepoError) or "gated" in missing:
        return f"{it} is gated: accept its terms on https://huggingface.co/{name} and {token}"
    if caused_by(errors.RepositoryNotFoundError) or "doesn't exist on the Hub" in missing:
        return f"{it} does not exist on the hub, or is private: check the spelling, or {token}"
    if caused_by(ConnectionError, errors.LocalEntryNotFoundError, httpx.TransportError):
        advice = "connect"
        if not what.endswith("data set"):  # the cache of `datasets` is another one
            advice += ", or download it beforehand with `hf download`"
        return f"{it} is not in the local cache and the hub cannot be reached: {advice}"
    if "does not appear to have a file named" in text and "safetensors" in text:
        url = "https://huggingface.co/spaces/safetensors/convert"
        return f"{it} has no safetensors weights: request a conversion at {url}"
    # If the fields of a data set have changed, the error holds no more than a name.
    if isinstance(error, KeyError) or caused_by(CastError):
        return f"{it} lacks expected fields: {' '.join(text.split())[:200]}"
    if "ignore_mismatched_sizes" in text:
        return f"{it} cannot be loaded: the sizes of its weights differ from its config.json"
    return f"{it} cannot be loaded: {textwrap.shorten(text, 300, placeholder=' …')}"


def converted_revision(name: str) -> str | None:
    """Return the pull request in which the hub's own bot converted a model to safetensors."""
    from huggingface_hub import get_repo_discussions

    requests = get_repo_discussions(name, author="SFconvertbot", discussion_type="pull_request")
    numbers = [request.num for request in requests if "safetensors" in request.title]
    return f"refs/pr/{max(numbers)}" if numbers else None


def repository_files(
    what: str, name: str, revision: str | None = None
) -> tuple[str, dict[str, int]]:
    """Return the commit of a model or data set on the hub, and its files with their sizes in bytes.

    Raises:
        RevelaError: the hub cannot be reached or denies access.
    """
    from huggingface_hub import HfApi

    at: Any = {"repo_id": name, "repo_type": KINDS[what]}
    with explained(what, name):
        info: Any = HfApi().repo_info(
            **at, revision=revision, files_metadata=True, timeout=_SECONDS
        )
        if info.gated:  # its description is public, its files are not
            HfApi().auth_check(**at)
        return str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or []}


def find_file(
    name: str, file: str, revision: str | None = None, what: str = "model"
) -> Path | None:
    """Return the path of a file of a model or data set, by folder or hub name, or None."""
    from huggingface_hub import errors, hf_hub_download

    if Path(name).is_dir():
        path = Path(name, file)
        return path if path.is_file() else None
    with explained(what, name):
        try:
            return Path(hf_hub_download(name, file, revision=revision, repo_type=KINDS[what]))
        except errors.EntryNotFoundError as error:
            if isinstance(error, errors.LocalEntryNotFoundError):
                lacks = f"{file} is not in the local cache; assuming that there is none"
                print(f"{what} {name!r}: {lacks}", file=sys.stderr)
            return None


def commit(name: str, revision: str | None) -> str | None:
    """Return the commit of a hub model, or None for a folder; errors as `find_file`."""
    if Path(name).is_dir():
        return None
    files = (find_file(name, file, revision) for file in ("config.json", "adapter_config.json"))
    return next((path.parent.name for path in files if path), None)
