"""Dense in-batch attention, as in the public implementation: the baseline.

The model runs twice, first on the chunks alone, then on chunks that read each other. All chunks
read all chunks: the scores are one tensor of B × B × heads × L × L, rows are padded to the longest,
and both passes hold the logits of the whole batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

NAME = "bench_dense"


def dense_loss(
    model: Any, input_ids: Tensor, attention_mask: Tensor, similarity: Tensor, value_norm: bool
) -> Tensor:
    """Return the same loss as `in_batch_loss`, by two passes that both compute logits."""
    model.set_attn_implementation(NAME)
    cached: list[tuple[Tensor, Tensor]] = []
    first = model(input_ids=input_ids, labels=input_ids, use_cache=False, collect=cached)
    first.loss.detach()  # computed, as by a model with labels, but not used
    second = model.get_decoder()(
        input_ids=input_ids,
        use_cache=False,
        dense=(iter(cached), attention_mask.bool(), similarity, value_norm),
    )
    return whole_loss(model, second.last_hidden_state, input_ids, attention_mask)


def plain_pass(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the loss of a plain padded pass over e and h rows, all logits at once."""
    model.set_attn_implementation("sdpa")
    output = model.get_decoder()(
        input_ids=torch.cat([input_ids, input_ids]),
        attention_mask=torch.cat([attention_mask, attention_mask]),
        use_cache=False,
    )
    return whole_loss(model, output.last_hidden_state[len(input_ids) :], input_ids, attention_mask)


def whole_loss(model: Any, hidden: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean next-token loss with all logits at once."""
    logits = model.get_output_embeddings()(hidden[:, :-1]).float()
    labels = input_ids[:, 1:].masked_fill(attention_mask[:, 1:] == 0, -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    collect: Any = None,
    dense: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    if collect is not None:
        collect.append((key, value))
    if dense is not None:
        cached, mask_BL, similarity_BB, value_norm = dense
        key, value = next(cached)
        scores = torch.einsum("ihqd,jhkd->ijhqk", query * scaling, key)
        weights = scores.masked_fill(~mask_BL[None, :, None, None], float("-inf")).softmax(-1)
        read = torch.einsum("ijhqk,jhkd->ijhqd", weights, value)
        if value_norm:
            norms = torch.einsum("ijhqk,jhk->ijhq", weights, value.norm(dim=-1))
            read = read / (norms[..., None] + 1e-6)
        output = output + torch.einsum("ij,ijhqd->ihqd", similarity_BB.to(read.dtype), read)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
