"""What the benchmarks use of sentence-transformers, for machines without it."""

import sys
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

modules = sys.modules[__name__]
import_from_string = None  # imported, not used


class SentenceTransformer(nn.Sequential):
    """Modules, one after the other."""

    truncate_dim = None
    prompts: ClassVar[dict[str, str]] = {}

    def __init__(self, modules: Any, similarity_fn_name: str, device: str) -> None:
        super().__init__(*modules)
        self.similarity_fn_name, self.device = similarity_fn_name, torch.device(device)
        self.tokenizer = modules[0].tokenizer


class Pooling(nn.Module):
    """The mean of a row's states, or the last one."""

    include_prompt = True

    def __init__(self, _: int, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add the pooled states."""
        states, mask = features["token_embeddings"], features["attention_mask"]
        rows, lengths = torch.arange(len(mask), device=mask.device), mask.sum(1)
        last = states[rows, lengths - 1]
        mean = (states * mask[..., None]).sum(1) / lengths[:, None]
        return features | {"sentence_embedding": mean if self.mode == "mean" else last}


class Normalize(nn.Module):
    """Division by the norm."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Normalize the pooled states."""
        features["sentence_embedding"] = functional.normalize(features["sentence_embedding"])
        return features
