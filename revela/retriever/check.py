"""Checks that a retriever's folder gives the same vectors in sentence-transformers and here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from revela.attention import zero
from revela.common.errors import RevelaError
from revela.common.memory import return_freed_memory
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef
from revela.retriever.encode import load_encoder, load_encoding, token_ids

_SAME = 0.9999  # cosine
_TIED = 1e-4  # relative to the largest similarity; smaller differences are ties
_ROLES: tuple[Literal["query", "passage"], ...] = ("query", "passage")
_SENTENCE = "The queue holds jobs until a worker is free; naïve workers take the oldest (作业 №7)."
_LENGTH = 8192  # tokens of the longest text, for models without a maximum length


def texts_to_compare(length: int) -> dict[str, str]:
    """Return texts of several kinds by description; the last one has more tokens than `length`."""
    return {
        "short": "jobs",
        "with spaces around it": "  how to close a socket \n",
        "of one sentence": _SENTENCE,
        "of whitespace": " \n\t ",
        "that is empty": "",
        "that is code": "def first(rows):\n    return rows[0] if rows else None\n",
        "long": " ".join(f"{n}. {_SENTENCE}" for n in range(12)),
        "that is truncated": " ".join(map(str, range(length))),
    }


def check_is_retriever(folder: Path) -> None:
    """Raise a `RevelaError` if a folder was not written by a training or an export."""
    if not folder.is_dir():
        raise RevelaError(f"{folder}: no such folder")
    if not (folder / "modules.json").is_file():
        raise RevelaError(f"{folder}: not a retriever of `revela train`: missing modules.json")


def check_folder(folder: Path, reference: EncoderModel | None = None) -> dict[str, float]:
    """Encode a few texts here and in a process with sentence-transformers only.

    Both compute in float32 on the CPU, since the GPUs of a training may be full. Here the folder
    itself is loaded, or the `reference` if given. Return the cosine of each text's two vectors,
    lower where their lengths differ.

    Raises:
        RevelaError: sentence-transformers cannot load the folder, gives a text a different vector,
            or ranks the texts differently.
    """
    model = reference or EncoderModel(kind="encoder", retriever=ModelRef(str(folder)))
    with zero.unsharded():
        encoder = load_encoder(model, "float32", "cpu")
    length = load_encoding(model)[2] or _LENGTH
    texts = texts_to_compare(length)
    for role in _ROLES:  # neither encodes a text without tokens
        ids = token_ids(encoder.tokenizer, list(texts.values()), role, encoder.encoding, length)
        texts = {name: text for (name, text), row in zip(texts.items(), ids, strict=True) if row}
    ours = {role: encoder.encode(list(texts.values()), role, length) for role in _ROLES}
    del encoder  # the other process loads the weights as well
    return_freed_memory()
    (theirs,) = encode_alone([folder], list(texts.values()))
    cosines = {
        f"{role} {name}": value
        for role in _ROLES
        for name, value in zip(texts, _alike(ours[role], theirs[role]).tolist(), strict=True)
    }
    for text, cosine in cosines.items():
        if not cosine >= _SAME:  # also for NaN
            raise RevelaError(
                f"{folder}: sentence-transformers gives the {text} a different vector than Revela "
                f"(cosine {cosine:.5f})"
            )
    order = (ours["query"] @ ours["passage"].T).argsort(dim=1, descending=True)
    scores = theirs["similarity"].gather(1, order)
    risen = (scores.diff(dim=1) > _TIED * scores.abs().max()).any(dim=1)
    if bool(risen.any()):
        query = list(texts)[int(risen.nonzero()[0])]
        raise RevelaError(
            f"{folder}: sentence-transformers ranks passages for the query {query} differently "
            "from Revela"
        )
    return cosines


def _alike(ours_ND: Tensor, theirs_ND: Tensor) -> Tensor:
    """Return (N,) cosines, multiplied by the ratio of the lengths."""
    squares = ours_ND.square().sum(1) + theirs_ND.square().sum(1)
    return 2 * (ours_ND * theirs_ND).sum(1) / squares


def encode_alone(folders: list[Path], texts: list[str]) -> list[dict[str, Tensor]]:
    """Return the output of `alone.py` for each folder: embeddings (N, D), similarities (N, N).

    Raises:
        RevelaError: it fails.
    """
    script = Path(__file__).with_name("alone.py")
    # -P: this folder is not importable
    command = [sys.executable, "-P", str(script), *map(str, folders)]
    ran = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    if ran.returncode:
        why = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        raise RevelaError(f"{folders[-1]}: sentence-transformers cannot load it: {why[-1]}")
    lines = ran.stdout.splitlines()[-len(folders) :]
    return [{k: torch.tensor(v) for k, v in json.loads(line).items()} for line in lines]
