"""The paper's reading: a softmax for each document, summed by similarity (equations 5 to 8)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from revela.inbatch.cross_document import Readers, Reads
from revela.inbatch.packing import attend, biased, flash

EPSILON = 1e-6  # of V-normalisation (paper, appendix B.5)


def cross_document(
    query_THD: Tensor,
    key_EGLD: Tensor,
    value_EGLD: Tensor,
    readers: Sequence[Readers],
    value_norm: bool,
) -> Tensor:
    """Return Σ_j Sim(i, j) · b_ij as (T, H, D) (equations 5 and 6; V-norm equation 8).

    V-norm divides Σ_t p_t v_t by Σ_t p_t ‖v_t‖ + ε: the same attention computes the divisor, as one
    more column of the values.
    """
    width = value_EGLD.shape[-1]
    if value_norm:
        exact = torch.promote_types(value_EGLD.dtype, torch.float32)
        norm = value_EGLD.to(exact).norm(dim=-1, keepdim=True).to(value_EGLD.dtype)
        value_EGLD = torch.cat([value_EGLD, norm], dim=-1)
    total_THD = query_THD.new_zeros(*query_THD.shape[:2], width)
    for block in readers:
        # Recomputed in the backward pass: only one block's intermediates exist at a time.
        inputs = (query_THD, key_EGLD, value_EGLD, block, width if value_norm else None)
        read = checkpoint(_read, *inputs, use_reentrant=False, preserve_rng_state=False)
        total_THD = add_at(total_THD, block.token_NM.flatten(), read)
    return total_THD


def read_packed(
    query_THD: Tensor,
    key_TGD: Tensor,
    value_TGD: Tensor,
    reads: Reads,
    scale: float,
    value_norm: bool,
) -> Tensor:
    """Return Sim(i, j) · b_ij of each reading token, (M, H, D).

    V-norm is a key bias here: Σ_t p_t v_t / Σ_t p_t ‖v_t‖ is attention to unit values with
    log ‖v_t‖ added to the scores. ε, far below the rounding of bfloat16, is omitted.
    """
    query = query_THD.index_select(0, reads.token_M)
    key, value = (x.index_select(0, reads.key_token_K) for x in (key_TGD, value_TGD))
    if value_norm:
        exact = value.to(torch.promote_types(value.dtype, torch.float32))
        norm = exact.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(exact.dtype).tiny)
        value = (exact / norm).to(value.dtype)
        query, key = biased(query, key, norm.log(), scale)
    read_MHD = flash(query, key, value, reads.queries, reads.keys, scale, causal=False)
    return read_MHD * reads.weight_M.to(read_MHD.dtype)[:, None, None]


class _Add(torch.autograd.Function):
    """`index_add`; torch's own saves `added` for the backward pass just for its shape."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, index: Tensor, added: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return total.index_add(0, index, added)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return outer[0], None, outer[0].index_select(0, index)


add_at = _Add.apply


def _read(
    query_THD: Tensor, key_EGLD: Tensor, value_EGLD: Tensor, readers: Readers, norm: int | None
) -> Tensor:
    """Return the weighted outputs of a block's tokens, (N · M, H, D); `norm` is V-norm's column."""
    heads, width = query_THD.shape[1:]
    groups, length = key_EGLD.shape[1], readers.key_length
    query = query_THD.index_select(0, readers.token_NM.flatten())
    # Tokens, and the heads that share a key, form one query axis: no key is repeated.
    query = query.view(*readers.token_NM.shape, groups, -1, width).transpose(1, 2).flatten(2, 3)
    mask = None if readers.key_mask_NK is None else readers.key_mask_NK[:, None, None]
    key, value = (
        x[:, :, :length].index_select(0, readers.document_N) for x in (key_EGLD, value_EGLD)
    )
    read = attend(query, key, value, mask).unflatten(2, (readers.token_NM.shape[1], -1))
    weight = readers.weight_NM.to(read.dtype)[:, None, :, None, None]
    if norm is not None:
        weight = weight / (read[..., norm, None] + EPSILON)
        read = read[..., :norm]
    return (read * weight).transpose(1, 2).reshape(-1, heads, read.shape[-1])
