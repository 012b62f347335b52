"""Why something of the Hugging Face hub cannot be had, in one sentence that says what to do."""

import os
from collections.abc import Iterator
from pathlib import Path

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
