"""Revela for the trainer of sentence-transformers: loss, data collator and batch sampler."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch import Tensor, nn

from revela.config.settings import parse_settings
from revela.config.training import RevelaObjective
from revela.inbatch.in_batch import Reading
from revela.retriever.encode import pack_where_possible
from revela.training.collators import chunk_tensors
from revela.training.objectives.revela import Revela


class RevelaLoss(nn.Module):
    """The loss of a language model whose chunks read each other, weighted by a retriever.

    It needs texts alone, in batches of chunks that may help to predict each other: one column of a
    data set, `NeighborBatchSampler` as `batch_sampler` and `RevelaCollator` as `data_collator`.
    Loss and gradients are those of the pipeline's objective (paper, section 3).

    Args:
        model: the retriever. Its prompts named `query` and `document` are those of the two roles;
            its transformer's hidden states become float32, so that cosines are exact.
        language_model: a causal LM of transformers; trained unless its weights are frozen
            (`language_model.requires_grad_(False)`).
        temperature: of the in-batch similarities.
        reading: "sum" as in the paper; with "joint" an untrained language model can read.
        value_norm: V-normalisation; by default on for the sum, the only reading that has it.
        min_similarity: pairs of chunks with a smaller weight are skipped.
        language_model_loss: add the language model's loss without in-batch attention.
        gather_across_devices: chunks read those of all processes.

    Raises:
        RevelaError: a setting is not allowed.
        ValueError: features that are not `RevelaCollator`'s, several processes with a language
            model that is not frozen, or as `in_batch_loss`.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> model = SentenceTransformer("data/backbones/1m")
        >>> language_model = AutoModelForCausalLM.from_pretrained("data/backbones/1m")
        >>> tokenizer = AutoTokenizer.from_pretrained("data/backbones/1m")
        >>> loss = RevelaLoss(model, language_model, temperature=0.05, reading="joint")
        >>> collate = RevelaCollator(model, tokenizer)
        >>> batch = collate([{"text": "Rivers carry water"}, {"text": "to the sea."}])
        >>> batch["retriever_input_ids"].shape, batch["language_model_input_ids"].shape
        (torch.Size([4, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        model: SentenceTransformer,
        language_model: Any,
        temperature: float = 1e-4,
        *,
        reading: Reading = "sum",
        value_norm: bool | None = None,
        min_similarity: float = 1e-12,
        language_model_loss: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.model = pack_where_possible(model)
        self.language_model = language_model
        settings = {
            "name": "revela",
            "temperature": temperature,
            "reading": reading,
            "min_similarity": min_similarity,
            "language_model_loss": language_model_loss,
            "gather_across_devices": gather_across_devices,
        } | ({} if value_norm is None else {"value_norm": value_norm})
        self.settings = parse_settings(RevelaObjective, json.dumps(settings), "RevelaLoss")

    def forward(
        self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch that `RevelaCollator` made; there are no labels."""
        features = list(sentence_features)
        if len(features) != 2 or "lengths" not in features[0]:
            raise ValueError("RevelaLoss: data_collator must be a RevelaCollator")
        retriever, chunks = features
        several = distributed.is_initialized() and distributed.get_world_size() > 1
        if several and any(weight.requires_grad for weight in self.language_model.parameters()):
            raise ValueError(
                "RevelaLoss: several processes share gradients of the model only; freeze the "
                "language model by language_model.requires_grad_(False)"
            )
        # Built anew: the trainer replaces `model` by its wrapper for several devices.
        objective = Revela(self.model, self.language_model, self.settings)
        ids, mask = retriever["input_ids"], retriever["attention_mask"]
        chunk_ids, chunk_mask = chunks["input_ids"], chunks["attention_mask"]
        loss: Tensor = objective(ids, mask, chunk_ids, chunk_mask, retriever["lengths"])["loss"]
        return loss


class RevelaCollator:
    """Turns rows of one column of texts into the ids of `RevelaLoss`.

    The retriever encodes each text twice, as a query and as a document behind the prompts of the
    model, and the language model gets it without a prompt; all are truncated at the model's
    `max_seq_length`.

    Args:
        model: the retriever.
        tokenizer: that of the language model.
        first_half: encode the first half of a text as its query (paper, appendix B.5).
    """

    valid_label_columns: Sequence[str] = ()  # the trainer asks for it

    def __init__(
        self, model: SentenceTransformer, tokenizer: Any, *, first_half: bool = False
    ) -> None:
        self.model, self.tokenizer, self.first_half = model, tokenizer, first_half

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, Any]:
        """Return ids and masks: retriever (2B, L), all queries first; language model (B, L')."""
        if len(rows[0]) != 1:
            raise ValueError(f"RevelaLoss needs one column of texts, not {', '.join(rows[0])}")
        texts = [text for row in rows for text in row.values()]
        length = int(self.model.max_seq_length or 0)
        made = chunk_tensors(self.model, self.tokenizer, [(texts, self.first_half)], length)
        names = {"ids": "input_ids", "mask": "attention_mask", "lengths": "lengths"}
        parts = ((*key.rpartition("_"), value) for key, value in made.items())
        return {f"{role}_{names[kind]}": value for role, _, kind, value in parts}


class NeighborBatchSampler(DefaultBatchSampler):
    """Batches of consecutive rows, in random order: rows are chunks in the order of their texts.

    For `batch_sampler` of `SentenceTransformerTrainingArguments`. A last batch of one row, which
    has nothing to read, is dropped.
    """

    def __iter__(self) -> Iterator[list[int]]:
        if self.generator and self.seed is not None:
            self.generator.manual_seed(self.seed + self.epoch)
        rows = len(self.sampler)  # type: ignore[arg-type]
        for batch in torch.randperm(len(self), generator=self.generator).tolist():
            start = batch * self.batch_size
            yield list(range(start, min(start + self.batch_size, rows)))

    def __len__(self) -> int:
        """Return the number of batches."""
        batches, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return batches + (rest > 1 and not self.drop_last)
