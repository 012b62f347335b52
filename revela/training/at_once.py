"""What a GPU computes at once: batches of a forward pass, and activations kept or recomputed."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from revela.config.training import Experiment
from revela.retriever.source import Source

_TOKENS = 40_960  # of a forward pass: with fewer, small models wait for the host
_BYTES = 65  # of activations, a token, layer and column, with LoRA: measured on an H200
_SHARE = 0.65  # of a GPU's memory, for activations


def rows_at_once(
    experiment: Experiment, row: Mapping[str, Any], most: int, checkpointing: bool | None
) -> tuple[int, bool]:
    """Return the rows of a forward pass, and whether activations are recomputed.

    If they are not given (0, None), a GPU's memory decides: activations are recomputed only if
    those of one batch (on pairs, of all texts encoded together) do not fit, and a forward pass has
    as many batches as fit, up to 40,000 tokens, or half as many if it recomputes. `row` is one of
    the data. Revela's batches divide a process's share of a step.
    """
    objective = experiment.objective
    batch = 0.0  # bytes of activations
    if objective.on_pairs:
        texts = experiment.batches_per_device * (2 + len(row["negatives"]))
        texts = min(texts, getattr(objective, "encode_batch_size", None) or texts)
    else:
        texts = 2 * len(row["texts"])  # both forms of each chunk; its e and h rows
    tokens = texts * experiment.max_length
    if torch.cuda.is_available():
        trained = [experiment.retriever, experiment.language_model]
        names = filter(None, trained if objective.name == "revela" else trained[:1])
        room = _SHARE * torch.cuda.get_device_properties(0).total_memory
        batch = tokens * _BYTES * sum(_columns(str(name)) for name in names) / room
    checkpointing = batch > 1 if checkpointing is None else checkpointing
    if objective.name != "revela" or objective.gather_across_devices:
        return experiment.batches_per_device, checkpointing
    if not most and batch:
        most = _TOKENS // 2 // tokens if checkpointing else min(_TOKENS // tokens, int(1 / batch))
    share = experiment.batches_per_step // int(os.environ.get("WORLD_SIZE", "1"))
    return max([n for n in range(1, most + 1) if share % n == 0], default=1), checkpointing


def _columns(name: str) -> int:
    """Return the columns of all layers' hidden states of a model."""
    source = Source(name)
    config = (source.base or source).read("config.json") or {}
    config = config.get("text_config") or config
    return int(config.get("num_hidden_layers", 0) * config.get("hidden_size", 0))
