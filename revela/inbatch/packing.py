"""Ragged rows packed into one, and attention on them: linear layers see real tokens only.

On a GPU in bfloat16 flash attention supports packed rows. Everywhere else they are padded, for
attention only.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

_WIDEST = 256  # maximum columns of a head in flash attention, in multiples of 8
# Older versions have no argument for heads that share a key.
_GROUPED = "enable_gqa" in inspect.signature(varlen_attn).parameters


def flash_takes(model: Any, device: torch.device) -> bool:
    """Return whether flash attention supports a model's packed rows."""
    if device.type != "cuda":
        return False
    autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocast else model.dtype
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return dtype == torch.bfloat16 and width + 8 <= _WIDEST  # `biased` adds eight


@dataclass(frozen=True)
class Spans:
    """Where each of N rows starts among packed tokens, and where the last one ends."""

    starts: Tensor  # (N + 1,) int32
    longest: int


class Packing:
    """R rows of different lengths in one row of T tokens, without padding between them.

    `width` is L, the longest row's length; `position_T` is each token's position in its own row.
    With `flash`, attention runs on packed rows; otherwise they are padded for it.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, flash: bool = False) -> None:
        self.lengths, self.flash = list(lengths), flash
        sizes = np.asarray(lengths)
        self.rows, self.width, self.tokens = len(sizes), int(sizes.max()), int(sizes.sum())
        row_T = np.repeat(np.arange(self.rows), sizes)
        position_T = np.arange(self.tokens) - np.repeat(sizes.cumsum() - sizes, sizes)
        slot_T = row_T * self.width + position_T
        arrays = [position_T, slot_T, starts_of(lengths)]
        self.position_T, self._slot_T, starts = to_device(arrays, device)
        self.starts = starts.int()

    def pad(self, packed: Tensor) -> Tensor:
        """Return padded (R, L, …) from packed (T, …), with zeros after the end of a row."""
        padded = packed.new_zeros(self.rows * self.width, *packed.shape[1:])
        return padded.index_copy_(0, self._slot_T, packed).unflatten(0, (self.rows, self.width))

    def pack(self, padded: Tensor) -> Tensor:
        """Return packed (T, …) from padded (R, L, …)."""
        return padded.flatten(0, 1).index_select(0, self._slot_T)

    def spans(self, first: int = 0) -> Spans:
        """Return the starts of the rows from `first` on, counted from the first of them."""
        before = sum(self.lengths[:first])
        starts = self.starts[first:] - before if before else self.starts
        return Spans(starts, max(self.lengths[first:]))

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return causal self-attention (T, H, D) of queries, keys and values (T, G, D)."""
        if self.flash:
            return flash(query, key, value, self.spans(), self.spans(), scale, causal=True)
        padded = (self.pad(x).transpose(1, 2) for x in (query, key, value))
        return self.pack(causal_attention(*padded).transpose(1, 2))


def starts_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the starts of concatenated rows of these lengths, and the end of the last one."""
    return np.cumsum([0, *lengths])


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return integer arrays as tensors, copied in one asynchronous transfer."""
    flat = torch.from_numpy(np.concatenate([array.ravel().astype(np.int64) for array in arrays]))
    moved = (flat.pin_memory() if device.type == "cuda" else flat).to(device, non_blocking=True)
    split = moved.split([array.size for array in arrays])
    return [tensor.view(array.shape) for tensor, array in zip(split, arrays, strict=True)]


def flash(
    query_THD: Tensor,
    key_SGD: Tensor,
    value_SGE: Tensor,
    queries: Spans,
    keys: Spans,
    scale: float,
    causal: bool,
) -> Tensor:
    """Return attention (T, H, E) of queries, each row to its own row of keys.

    With more keys than queries, a causal row's queries are at its last positions, as after a
    prefix.
    """
    width = max(query_THD.shape[-1], value_SGE.shape[-1])
    width += -width % 8
    query, key, value = (
        F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
        for x in (query_THD, key_SGD, value_SGE)
    )
    options: dict[str, Any] = {"enable_gqa": True} if _GROUPED else {}
    output: Any = varlen_attn(
        query,
        key,
        value,
        cu_seq_q=queries.starts,
        cu_seq_k=keys.starts,
        max_q=queries.longest,
        max_k=keys.longest,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
        **options,
    )
    return output[..., : value_SGE.shape[-1]]


def biased(
    query_THD: Tensor, key_SGD: Tensor, bias_SG: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose scores have a bias for each key, whatever their precision.

    One column has the rounded bias and one the remainder; six are zero, because flash attention
    requires multiples of eight. The bias (S, G, 1) or (S, 1, 1) gets its gradient from the keys;
    `scale`, by which attention multiplies the scores, leaves it as it is.
    """
    rounded = bias_SG.to(key_SGD.dtype)
    rest = (bias_SG - rounded).to(key_SGD.dtype)
    columns = torch.cat([rounded, rest], dim=-1).expand(*key_SGD.shape[:2], 2)
    key = F.pad(torch.cat([key_SGD, columns], dim=-1), (0, 6))
    return F.pad(query_THD, (0, 8), value=1 / scale), key


def causal_attention(query_RHLD: Tensor, key_RGKD: Tensor, value_RGKD: Tensor) -> Tensor:
    """Return causal attention (R, H, L, D) of scaled queries on padded rows.

    With more keys than queries (K > L) the queries are at the last positions, as after a prefix.
    Padding is on the right: real tokens never attend to it.
    """
    length, keys = query_RHLD.shape[2], key_RGKD.shape[2]
    mask = torch.ones(length, keys, dtype=torch.bool, device=key_RGKD.device).tril(keys - length)
    query = query_RHLD.unflatten(1, (key_RGKD.shape[1], -1)).flatten(2, 3)
    output = attend(query, key_RGKD, value_RGKD, mask.repeat(query.shape[2] // length, 1))
    return output.unflatten(2, (-1, length)).flatten(1, 2)


def attend(query_NGMD: Tensor, key_NGKD: Tensor, value_NGKD: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(QKᵀ)V of scaled queries, where the mask is true, as (N, G, M, D').

    On a CPU the fused kernel takes two to three times as long as separate operations in bfloat16,
    and a tenth less in float32 (`bench/RESULTS.md`), where it is used without gradients.
    """
    if query_NGMD.dtype == torch.float32 and not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(
            query_NGMD, key_NGKD, value_NGKD, attn_mask=mask, scale=1.0
        )
    scores = query_NGMD @ key_NGKD.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1).to(value_NGKD.dtype) @ value_NGKD
