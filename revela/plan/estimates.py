"""Estimates a job's needs from shapes: parameters, memory, floating-point operations.

They only show in advance what cannot fit or finish in time. The memory of a training was compared
with `bench/RESULTS.md`: a complete step of SmolLM2-135M on a CPU took 12.2 GB at B = 64 and 12.8 at
B = 128, where these formulas give 8.9 and 16.1 (UNCERTAINTY).
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from revela.config.training import Experiment, Lora

GB = 1024**3
UNCERTAINTY = 1.4  # a factor, either way

# 10¹² operations per second of one GPU. The paper's 44 hours (Wikipedia) and 48 (code) on 4 A100
# give 28 and 33; another GPU is assumed to reach the same share of its peak (bfloat16, dense: 312
# and 989 by NVIDIA's data sheets of the A100 and the H200).
PAPER_TFLOPS = 30.0
TFLOPS = {"A100": PAPER_TFLOPS, "H200": PAPER_TFLOPS * 989 / 312}

_CHARACTERS_PER_TOKEN = 4
_TOKENS_AT_A_TIME = 65_536  # when encoding on a GPU
_LOGITS_GB = 0.6


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer that determine its costs."""

    parameters: int  # without a head
    matrices: int  # weights of its linear layers, which each token is multiplied with
    head: int  # weights of a language model's head
    tied: bool  # whether the head shares the weights of the embedding
    layers: int
    hidden: int
    widest: int  # outputs of the widest linear layer
    keys: int  # total width of all heads' keys
    linear: dict[str, int]  # inputs + outputs of all layers' linear maps, by their names
    file_bytes: int  # of its published weights

    @classmethod
    def of(cls, described: dict[str, Any]) -> Self:
        """Return the shape described by a `config.json`, without loading weights.

        Raises:
            ValueError, KeyError, TypeError: it does not describe a model known to transformers.
        """
        import torch
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(**described)
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        maps = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        linear: Counter[str] = Counter()
        for name, one in maps.items():
            linear[name.rpartition(".")[2]] += one.in_features + one.out_features
        keys = {one.out_features for name, one in maps.items() if name.endswith(".k_proj")}
        parameters = model.num_parameters()
        return cls(
            parameters=parameters,
            matrices=sum(one.weight.numel() for one in maps.values()),
            head=config.vocab_size * config.hidden_size,
            tied=getattr(config, "tie_word_embeddings", True),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            widest=max(one.out_features for one in maps.values()),
            keys=max(keys, default=config.hidden_size),
            linear=dict(linear),
            file_bytes=parameters * (2 if config.dtype in (torch.bfloat16, torch.float16) else 4),
        )

    def weights(self, head: bool = False) -> int:
        """Return the number of parameters, with or without a language model's head."""
        return self.parameters + (self.head if head and not self.tied else 0)

    def adapter(self, lora: Lora) -> int:
        """Return the number of weights of low-rank adapters."""
        return lora.rank * sum(self.linear.get(name, 0) for name in lora.targets)

    def layer_width(self) -> int:
        """Return how many numbers per token a layer keeps for its backward pass."""
        return 16 * self.hidden + 8 * self.widest


Models = Sequence[Shape]
"""The shape of a retriever and, if one is used, of a language model."""


def _weights(models: Models) -> int:
    retriever, *language_model = models
    return retriever.weights() + sum(shape.weights(head=True) for shape in language_model)


def trained_parameters(experiment: Experiment, models: Models) -> int:
    """Return the number of weights that an experiment trains."""
    objective = experiment.objective
    both = objective.name == "revela" and not objective.freeze_language_model
    trained = models if both else models[:1]
    if experiment.lora:
        return sum(shape.adapter(experiment.lora) for shape in trained)
    return _weights(trained)


def training_memory(
    experiment: Experiment,
    models: Models,
    row: int,
    half: bool,
    gradient_checkpointing: bool = False,
) -> float:
    """Return the bytes of device memory that one process of a training needs.

    Weights, gradients and AdamW's two moments; the activations kept for the backward pass or, with
    gradient checkpointing, each layer's input and one layer's activations; some logits at a time.

    Args:
        experiment, models: the training.
        row: texts per batch (B), or per pair: its query, positive and negatives.
        half: whether the device supports bfloat16.
        gradient_checkpointing: whether activations are recomputed in the backward pass.
    """
    width = 2 if half and experiment.precision == "bfloat16" else 4
    trained = trained_parameters(experiment, models)
    frozen = _weights(models) - (0 if experiment.lora else trained)
    states = frozen * width + trained * 16  # weight, gradient, two moments in float32

    texts = row * experiment.batches_per_device
    forms = 1 if experiment.objective.on_pairs else 2  # query and passage; e and h
    at_once = getattr(experiment.objective, "encode_batch_size", None) or forms * texts
    tokens = min(forms * texts, at_once) * experiment.max_length
    kept, working = 0.0, 0.0
    for shape, is_language_model in zip(models, (False, True), strict=False):
        if is_language_model and experiment.objective.name == "replug":
            # Without gradients: the keys and values of all prefixes, and part of one layer.
            kept += tokens // 2 * shape.layers * 2 * shape.keys * width
            working = max(working, tokens // 2 * shape.layer_width() / 4 * width)
        elif gradient_checkpointing:
            kept += 10 * tokens * shape.layers * shape.hidden
            working = max(working, tokens * shape.layer_width() * width)
        else:
            kept += tokens * shape.layers * shape.layer_width() * width
    logits = _LOGITS_GB * GB * (len(models) - 1)
    return states + kept + working + logits


def encoding_memory(shape: Shape, half: bool, gpu: bool) -> float:
    """Return the bytes needed to encode texts: weights, and one layer of a batch of texts.

    `half` is whether the device supports bfloat16; a GPU encodes more texts at a time.
    """
    width = 2 if half else 4
    tokens = _TOKENS_AT_A_TIME if gpu else _TOKENS_AT_A_TIME // 16
    return shape.weights(head=True) * width + tokens * shape.layer_width() / 4 * width


def training_flops(experiment: Experiment, models: Models, row: int, rows: float) -> float:
    """Return the floating-point operations of a training on `rows` batches (pairs) of `row` texts.

    Per token and weight: two in the forward pass and two for the gradient of the input, two more if
    the weight is trained, and two for a second forward pass with gradient checkpointing. All texts
    count with full length; the rate was derived from the paper's hours in the same way.
    """
    tokens = rows * row * experiment.max_length
    each = 6.0 + (0 if experiment.lora else 2)
    forms = 1.0 if experiment.objective.on_pairs else 1.5 if experiment.first_half else 2.0
    retriever, *language_model = models
    operations = each * forms * retriever.matrices
    for model in language_model:
        if experiment.objective.name == "replug":  # every text after every other, forward only
            operations += 2.0 * (1 + row) * (model.matrices + model.head)
        else:  # e rows, which need no head, and h rows
            operations += each * (2 * model.matrices + model.head)
    return tokens * operations


@dataclass(frozen=True)
class Collection:
    """The size of a task: documents and queries."""

    documents: int
    queries: int
    characters: int  # of both

    @classmethod
    @functools.cache
    def of(cls, task: str) -> Self | None:
        """Return the size of a task from mteb's metadata, or None if it is missing."""
        import mteb

        found = mteb.get_task(task)
        described = found.metadata.descriptive_stats or {}
        splits = [described[split] for split in found.eval_splits if split in described]
        counts, characters = [], 0
        for kind in ("documents", "queries"):
            texts = [of_kind for one in splits if (of_kind := one[f"{kind}_text_statistics"])]
            counts.append(sum(t["total_text_length"] / t["average_text_length"] for t in texts))
            characters += sum(t["total_text_length"] for t in texts)
        documents, queries = map(round, counts)
        return cls(documents, queries, characters) if documents else None

    def tokens(self, max_length: int) -> int:
        """Return the number of tokens if texts are truncated at `max_length`."""
        texts = self.documents + self.queries
        return min(self.characters // _CHARACTERS_PER_TOKEN, texts * max_length)
