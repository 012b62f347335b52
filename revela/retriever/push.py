"""Uploads a retriever's folder to the Hugging Face hub."""

import os
import re
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.utils import HFValidationError, httpx, validate_repo_id

from revela.common.errors import RevelaError, reading
from revela.common.hub import explained
from revela.config.names import ModelRef
from revela.retriever.card import make_card, must_be_called_llama
from revela.retriever.save import check_folder, check_is_retriever
from revela.retriever.source import Source

_WEIGHTS = re.compile(r"adapter_|\.safetensors|\.bin$")


def push(folder: Path, repository: str, private: bool, dry_run: bool) -> dict[str, int]:
    """Upload a retriever in one commit, and return the size in bytes of each file.

    Raises:
        RevelaError: the folder is not a retriever, sentence-transformers encodes differently, its
            adapter belongs to a backbone that others cannot load, HF_TOKEN is not set, or the hub
            denies access.
    """
    check_is_retriever(folder)
    try:
        validate_repo_id(repository)
        if "/" not in repository:
            raise HFValidationError("the organisation or user is missing")
    except HFValidationError as error:
        raise RevelaError(f"{repository!r}: not ORGANISATION/NAME: {error}") from error
    token = os.environ.get("HF_TOKEN")
    if not (token or dry_run):
        raise RevelaError("set HF_TOKEN in the environment to upload")
    base = Source(str(folder)).base
    if base and not ModelRef(base.name).is_hub_name:
        raise RevelaError(
            f"{folder}: is an adapter of {base.name!r}, which is not on the hub: "
            "push the output of `revela export`"
        )
    check_folder(folder)
    card = make_card(folder, repository) or _card_at(folder / "README.md", repository)
    llama = must_be_called_llama(ModelCard(card).data.to_dict())
    if llama and not repository.rpartition("/")[2].startswith("Llama"):
        print(f"{repository}: the backbone's licence requires a name that begins with Llama")
    files: dict[str, Path | bytes] = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "/." not in f"/{path.relative_to(folder)}"  # .snakemake_timestamp
    }
    files["README.md"] = card.encode()
    if not dry_run:
        api = HfApi(token=token)
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        with explained("model", repository):
            try:
                api.create_repo(repository, private=private, exist_ok=True)
            except httpx.TransportError as error:
                raise RevelaError(f"{api.endpoint} cannot be reached") from error
            if private and not api.model_info(repository).private:
                raise RevelaError(f"{repository}: exists and is public; make it private first")
            # Weights of an earlier upload: an adapter that stays would be loaded on top.
            there = [name for name in api.list_repo_files(repository) if _WEIGHTS.search(name)]
            stale = [CommitOperationDelete(name) for name in there if name not in files]
            api.create_commit(repository, [*added, *stale], commit_message="Upload a retriever")
    return {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size
        for name, content in files.items()
    }


def _card_at(file: Path, repository: str) -> str:
    """Return a folder's card, with the usage example adapted to the hub."""
    with reading(file, "a model card"):
        text = file.read_text(encoding="utf-8")
    return re.sub(r'SentenceTransformer\("[^"]*"\)', f'SentenceTransformer("{repository}")', text)
