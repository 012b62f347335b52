"""Saves an encoder as a sentence-transformers model, and checks that it comes back the same."""

import functools
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from revela.common.errors import RevelaError
from revela.common.memory import return_freed_memory
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef
from revela.retriever.encode import encode
from revela.retriever.load import load_encoder, unsharded

_LONGEST = 2048  # tokens of a text in evaluation, as in the paper
_SAME = 0.9999  # cosine
_SENTENCE = "The queue holds jobs until a worker is free; naïve workers take the oldest (作业 №7)."


def save_encoder(encoder: SentenceTransformer, folder: Path, state: dict[str, Tensor]) -> None:
    """Write an encoder with the weights `state`, gathered from all processes if they are sharded.

    Of its transformer they are an adapter's, if it has one.
    """
    transformer: Any
    transformer, *rest = encoder
    transformer.model.save_pretrained(folder, state_dict=_below("0.model.", state))
    transformer.processor.save_pretrained(folder)
    vars(transformer)["save"] = transformer.save_config  # the rest is written above
    for place, module in enumerate(rest, start=1):
        vars(module)["state_dict"] = functools.partial(_below, f"{place}.", state)
    try:
        encoder.save(str(folder), create_model_card=False)
    finally:
        del vars(transformer)["save"]
        for module in rest:
            del vars(module)["state_dict"]


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a part of an encoder by their names within it."""
    return {name[len(prefix) :]: w for name, w in state.items() if name.startswith(prefix)}


def limit_length(encoder: SentenceTransformer, max_length: int) -> None:
    """Limit the texts of a model without a limit of its own to 2048 tokens or those of training."""
    encoder.max_seq_length = min(encoder.max_seq_length or _LONGEST, max(max_length, _LONGEST))


def check_is_retriever(folder: Path) -> None:
    """Raise a `RevelaError` if a folder was not written by a training or an export."""
    if not (folder / "modules.json").is_file():
        raise RevelaError(f"{folder}: not a retriever of `revela train`: missing modules.json")


def check_folder(folder: Path, original: Path | None = None) -> float:
    """Encode a few texts by sentence-transformers alone and here; return the smallest cosine.

    Here the `original` is loaded, if given, instead. Both compute in float32 on the CPU.

    Raises:
        RevelaError: sentence-transformers cannot load the folder or gives a text another vector.
    """
    kind: Any = EncoderModel(kind="encoder", retriever=ModelRef(str(original or folder)))
    with unsharded():
        ours = load_encoder(kind, "float32", "cpu")
        longest = ours.max_seq_length or _LONGEST
        texts = ["jobs", "  how to close a socket \n", _SENTENCE, "1 " * min(longest, _LONGEST)]
        expected = {role: encode(ours, texts, role, longest) for role in ("query", "passage")}
        del ours  # the weights are loaded once more
        return_freed_memory()
        try:
            options: Any = {"device": "cpu", "model_kwargs": {"dtype": torch.float32}}
            theirs = SentenceTransformer(str(folder), **options)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            problem = f"{folder}: sentence-transformers cannot load it: {reason}"
            raise RevelaError(problem) from error
    smallest = math.inf
    for role, encode_theirs in (
        ("query", theirs.encode_query),
        ("passage", theirs.encode_document),
    ):
        ours_ND, theirs_ND = expected[role], encode_theirs(texts, convert_to_tensor=True)
        if theirs.similarity_fn_name == "cosine":  # as `encode` here does
            theirs_ND = F.normalize(theirs_ND, dim=1)
        squares = ours_ND.square().sum(1) + theirs_ND.square().sum(1)
        # The cosine, but smaller where the lengths differ.
        alike_N = 2 * (ours_ND * theirs_ND).sum(1) / squares
        smallest = min(smallest, float(alike_N.min()))
        if not smallest >= _SAME:  # also for NaN
            problem = f"gives a text another vector (cosine {smallest:.5f})"
            raise RevelaError(f"{folder}: sentence-transformers {problem}")
    return smallest
