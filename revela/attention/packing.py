"""Ragged rows packed into one, and attention on them: linear layers see real tokens only."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from revela.common.sdpa import disable_cudnn_attention

disable_cudnn_attention()


class Packing:
    """R rows of different lengths in one row of T tokens, without padding between them.

    `width` is L, the longest row's length; `position_T` is each token's position in its own row.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = list(lengths)
        sizes = np.asarray(lengths)
        self.rows, self.width, self.tokens = len(sizes), int(sizes.max()), int(sizes.sum())
        row_T = np.repeat(np.arange(self.rows), sizes)
        position_T = np.arange(self.tokens) - np.repeat(sizes.cumsum() - sizes, sizes)
        slot_T = row_T * self.width + position_T
        self.position_T, self._slot_T = to_device([position_T, slot_T], device)

    def pad(self, packed: Tensor) -> Tensor:
        """Return (R, L, …) of packed (T, …), zero where a row has ended."""
        padded = packed.new_zeros(self.rows * self.width, *packed.shape[1:])
        return padded.index_copy(0, self._slot_T, packed).unflatten(0, (self.rows, self.width))

    def pack(self, padded: Tensor) -> Tensor:
        """Return (T, …) of padded (R, L, …)."""
        return padded.flatten(0, 1).index_select(0, self._slot_T)


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return integer arrays as tensors, in one transfer that the host does not wait for."""
    flat = torch.from_numpy(np.concatenate([array.ravel().astype(np.int64) for array in arrays]))
    moved = (flat.pin_memory() if device.type == "cuda" else flat).to(device, non_blocking=True)
    split = moved.split([array.size for array in arrays])
    return [tensor.view(array.shape) for tensor, array in zip(split, arrays, strict=True)]


def causal_attention(query_RHLD: Tensor, key_RGKD: Tensor, value_RGKD: Tensor) -> Tensor:
    """Return causal attention (R, H, L, D) of scaled queries on padded rows.

    With more keys than queries (K > L) the queries are the last ones, as after a prefix. Padding is
    on the right: real tokens never see it.
    """
    length, keys = query_RHLD.shape[2], key_RGKD.shape[2]
    if query_RHLD.is_cuda and length == keys:
        return F.scaled_dot_product_attention(
            query_RHLD, key_RGKD, value_RGKD, is_causal=True, scale=1.0, enable_gqa=True
        )
    mask = torch.ones(length, keys, dtype=torch.bool, device=key_RGKD.device).tril(keys - length)
    query = query_RHLD.unflatten(1, (key_RGKD.shape[1], -1)).flatten(2, 3)
    output = attend(query, key_RGKD, value_RGKD, mask.repeat(query.shape[2] // length, 1))
    return output.unflatten(2, (-1, length)).flatten(1, 2)


def attend(query_NGMD: Tensor, key_NGKD: Tensor, value_NGKD: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(QKᵀ)V of scaled queries, where the mask is true, as (N, G, M, D').

    On a CPU the fused kernel takes two to three times as long as its parts in bfloat16, and a tenth
    less in float32 (`bench/attention/kernels.py`); there, without gradients, it is the one to take.
    """
    fused_wins = query_NGMD.dtype == torch.float32 and not torch.is_grad_enabled()
    if query_NGMD.is_cuda or fused_wins:
        return F.scaled_dot_product_attention(
            query_NGMD, key_NGKD, value_NGKD, attn_mask=mask, scale=1.0
        )
    scores = query_NGMD @ key_NGKD.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1).to(value_NGKD.dtype) @ value_NGKD
