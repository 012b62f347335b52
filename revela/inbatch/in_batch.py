"""In-batch attention: a language model whose chunks attend to each other (paper, section 3).

A batch of B chunks goes through a stock causal language model as two sets of rows in one forward
pass, packed without padding. The *e rows* are chunks under plain causal self-attention; the *h
rows* are the same chunks, and at every layer each h row i adds to its self-attention what it reads
in the e rows of other chunks j, weighted by the retriever's similarity:

    h_i = causal(Q_i^h, K_i^h, V_i^h) + Σ_{j≠i} Sim(i, j) · full(Q_i^h, K_j^e, V_j^e)

with a softmax of its own over each document j's real tokens (equations 5 to 7). Gradients reach
the retriever through Sim and the language model through everything, K^e and V^e included.

Nothing of transformers is replaced: one attention function is registered under a name, and the data
it needs from the batch is passed through the model's keyword arguments. Without them a model with
this attention behaves as before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from revela.inbatch.cross_document import (
    Exchange,
    Readers,
    Reads,
    checked,
    never_read,
    readers_of,
)
from revela.inbatch.decoder import causal_lm, run_packed, skip_last_mlp
from revela.inbatch.losses import next_token_loss
from revela.inbatch.packing import (
    Packing,
    attend,
    causal_attention,
    flash,
    flash_takes,
    starts_of,
    to_device,
)

EPSILON = 1e-6  # of V-normalisation (paper, appendix B.5)


@dataclass(frozen=True)
class InBatch:
    """E e rows and B h rows, packed one after the other; computed once per step."""

    packing: Packing
    documents: int = 0  # E
    document_tokens: int = 0  # of all e rows
    readers: Sequence[Readers] | Reads = ()
    value_norm: bool = False
    last_layer: int = -1  # whose e rows need no output; -1: none
    exchange: Exchange | None = None

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return (T, H, D): causal self-attention plus, for h rows, what they read in others."""
        last = module.layer_idx == self.last_layer
        if last:
            skip_last_mlp(module, self.document_tokens)
        attend = self._flash if self.packing.flash else self._padded
        return attend(query, key, value, self.documents if last else 0)

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        """Attend on packed rows; those before `first` need no output."""
        start, spans = sum(self.packing.lengths[:first]), self.packing.spans(first)
        own = flash(query[start:], key[start:], value[start:], spans, spans, causal=True)
        output_THD = F.pad(own, (0,) * 4 + (start, 0)) if start else own
        if not isinstance(self.readers, Reads):
            return output_THD
        read_MHD = read_packed(query, key, value, self.readers, self.value_norm)
        return _Add.apply(output_THD, self.readers.token_M, read_MHD)

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        """Attend on padded rows; those before `first` need no output."""
        start = self.document_tokens
        padded = [self.packing.pad(x).transpose(1, 2) for x in (query, key, value)]
        own = causal_attention(*(x[first:] for x in padded))
        output_THD = self.packing.pack(F.pad(own, (0,) * 6 + (first, 0)).transpose(1, 2))
        _, key_EGLD, value_EGLD = (x[: self.documents] for x in padded)
        if self.exchange is not None:
            both = self.exchange(torch.cat([key_EGLD, value_EGLD], dim=-1))
            # All processes exchange gradients too, even one whose chunks read nothing.
            output_THD = output_THD + 0 * both.sum()
            key_EGLD, value_EGLD = both.split([key.shape[-1], value.shape[-1]], dim=-1)
        if isinstance(self.readers, Reads) or not self.readers:
            return output_THD
        cross = cross_document(query[start:], key_EGLD, value_EGLD, self.readers, self.value_norm)
        return torch.cat([output_THD[:start], output_THD[start:] + cross])


def in_batch_loss(
    language_model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    similarity: Tensor,
    *,
    value_norm: bool,
    min_similarity: float = 1e-12,
    dual_loss: bool = False,
    group: Any = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Return the mean next-token loss of chunks that attend to each other (equations 1 to 7).

    Args:
        language_model: a stock causal LM of transformers, with or without LoRA, of any
            architecture that uses the attention interface.
        input_ids: (B, L) chunks, padded on the right.
        attention_mask: (B, L), 1 on real tokens.
        similarity: (B, B) float; row i has the weights of the chunks that chunk i reads. Its
            diagonal is zero and its rows sum to one. With W processes it is (B, W · B), with the
            columns in the order of the processes.
        value_norm: divide each pair's output by the attention-weighted norm of the values
            (V-normalisation, equation 8).
        min_similarity: pairs with a smaller weight are skipped; 0 skips none.
        dual_loss: add the mean loss of the e rows.
        group: torch.distributed group of processes whose chunks read each other, B each. Keys and
            values of the remaining pairs are exchanged between them, with gradients.
        sizes: sizes of several batches whose chunks are concatenated; they sum to B, and
            similarities between batches are zero. By default all B chunks are one batch.

    Returns:
        A scalar: the mean loss of the h rows over all real tokens except the first of each chunk,
        averaged over batches; NaN if the similarity is.

    Raises:
        ValueError: B < 2, an empty chunk, left padding, a similarity matrix that is not as
            described, or a model whose attention cannot be replaced.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=99, hidden_size=16, intermediate_size=32,
        ...                      num_hidden_layers=2, num_attention_heads=2)
        >>> language_model = LlamaForCausalLM(config)
        >>> input_ids = torch.randint(0, 99, (4, 8))
        >>> cosine = torch.randn(4, 4, requires_grad=True)
        >>> similarity = in_batch_similarity(cosine, temperature=0.1)
        >>> loss = in_batch_loss(language_model, input_ids, torch.ones_like(input_ids),
        ...                      similarity, value_norm=True)
        >>> loss.backward()
        >>> tuple(cosine.grad.shape)
        (4, 4)
    """
    sizes = sizes or [len(input_ids)]
    kept, lengths = checked(input_ids, attention_mask, similarity, min_similarity, group, sizes)
    model = causal_lm(language_model, max(lengths))
    # Keys from other processes are padded.
    fast = flash_takes(model, input_ids.device) and not group
    documents, readers, exchange = readers_of(kept, lengths, similarity, dual_loss, group, fast)
    e_lengths = [lengths[j] for j in documents]
    in_batch = InBatch(
        packing=Packing([*e_lengths, *lengths], input_ids.device, fast),
        documents=len(e_lengths),
        document_tokens=sum(e_lengths),
        readers=readers,
        value_norm=value_norm,
        last_layer=-1 if dual_loss else model.config.get_text_config().num_hidden_layers - 1,
        exchange=exchange,
    )
    (own,) = to_device([np.array(documents, np.int64)], input_ids.device)
    rows = torch.cat([input_ids[own], input_ids])[:, : max(lengths)]
    loss = _loss(model, rows, in_batch, sizes, dual_loss)
    # NaN where a similarity is NaN, since none of its pairs is kept. Other processes also wait for
    # this one's share of the similarities' gradient, even if it is zero.
    return loss + 0 * similarity.sum()


def plain_loss(
    language_model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Return the mean next-token loss without in-batch attention; arguments as `in_batch_loss`."""
    lengths = attention_mask.sum(1).tolist()
    model = causal_lm(language_model, max(lengths))
    packing = Packing(lengths, input_ids.device, flash_takes(model, input_ids.device))
    rows = input_ids[:, : max(lengths)]
    return _loss(model, rows, InBatch(packing), sizes or [len(rows)])


def in_batch_similarity(
    cosine: Tensor, temperature: float, group: Any = None, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return Sim (B, W · B): each row's softmax of cosine / temperature, its own chunk excluded.

    With several batches it is block-diagonal: see `in_batch_loss` (paper, section 3.3).
    """
    unread = never_read(cosine, group, sizes or [len(cosine)])
    return (cosine / temperature).masked_fill(unread, float("-inf")).softmax(dim=-1)


def _loss(
    model: Any, input_ids_RL: Tensor, rows: InBatch, sizes: Sequence[int], dual_loss: bool = False
) -> Tensor:
    """Run the packed rows through the model and return the loss of the h rows, or of both."""
    ids_T = rows.packing.pack(input_ids_RL)
    hidden_TD = run_packed(model, ids_T, rows.packing.position_T, rows)
    starts = rows.documents + starts_of(sizes)
    batches = [range(start, end) for start, end in pairwise(starts)]
    if dual_loss:  # all chunks have an e row
        batches += [range(start, end) for start, end in pairwise(starts_of(sizes))]
    ends = starts_of(rows.packing.lengths)
    # The last token of a row predicts nothing.
    predict = [
        np.concatenate([np.arange(ends[row], ends[row + 1] - 1) for row in batch])
        for batch in batches
    ]
    head = model.get_output_embeddings()
    losses = [
        next_token_loss(hidden_TD.index_select(0, index), head, ids_T[index + 1])
        for index in to_device(predict, ids_T.device)
    ]
    return sum(losses[1:], losses[0]) / len(sizes)


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
        total_THD = _Add.apply(total_THD, block.token_NM.flatten(), read)
    return total_THD


def read_packed(
    query_THD: Tensor, key_TGD: Tensor, value_TGD: Tensor, reads: Reads, value_norm: bool
) -> Tensor:
    """Return Sim(i, j) · b_ij of each reading token, (M, H, D).

    V-norm is a key bias here: Σ_t p_t v_t / Σ_t p_t ‖v_t‖ is attention to unit values with
    log ‖v_t‖ added to the scores, through one column for its rounded value and one for the
    remainder. ε, far below the rounding of bfloat16, is omitted.
    """
    query = query_THD.index_select(0, reads.token_M)
    key, value = (x.index_select(0, reads.key_token_K) for x in (key_TGD, value_TGD))
    if value_norm:
        exact = value.to(torch.promote_types(value.dtype, torch.float32))
        norm = exact.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(exact.dtype).tiny)
        value, bias = (exact / norm).to(value.dtype), norm.log()
        rounded = bias.to(key.dtype)
        rest = (bias - rounded).to(key.dtype)
        # Eight columns, six of them zero, because the kernel requires multiples of eight.
        key = F.pad(torch.cat([key, rounded, rest], dim=-1), (0, 6))
        query = F.pad(query, (0, 8), value=1.0)
    read_MHD = flash(query, key, value, reads.queries, reads.keys, causal=False)
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
