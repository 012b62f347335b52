"""In-batch attention: a language model whose chunks attend to each other (paper, section 3).

A batch of B chunks goes through a stock causal language model as two sets of rows in one forward
pass, packed without padding. The *e rows* are chunks under plain causal self-attention; the *h
rows* are the same chunks, and at every layer each h row i adds to its self-attention what it reads
in the e rows of other chunks j, weighted by the retriever's similarity:

    h_i = causal(Q_i^h, K_i^h, V_i^h) + Σ_{j≠i} Sim(i, j) · full(Q_i^h, K_j^e, V_j^e)

with a softmax of its own over each document j's real tokens (equations 5 to 7). With *joint*
reading the prefix and all documents share one softmax instead, to which log Sim(i, j) is added.
Gradients reach the retriever through Sim and the language model through everything, K^e and V^e
included.

Nothing of transformers is replaced: one attention function is registered under a name, and the data
it needs from the batch is passed through the model's keyword arguments. Without them a model with
this attention behaves as before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from revela.inbatch.cross_document import (
    Exchange,
    Readers,
    Reads,
    checked,
    never_read,
    readers_of,
)
from revela.inbatch.decoder import causal_lm, run_packed, skip_last_mlp
from revela.inbatch.joint import Joint, joint_lm, joint_of
from revela.inbatch.losses import next_token_loss
from revela.inbatch.packing import (
    Packing,
    causal_attention,
    flash,
    flash_takes,
    starts_of,
    to_device,
)
from revela.inbatch.summed import add_at, cross_document, read_packed

Reading = Literal["sum", "joint"]


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
    joint: Joint | None = None  # in place of `readers`

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return (T, H, D): causal self-attention and, for h rows, what they read in others."""
        last = module.layer_idx == self.last_layer
        if last:
            skip_last_mlp(module, self.document_tokens)
        first = self.documents if last else 0  # of the rows that need an output
        if self.joint:
            return self._jointly(query, key, value, scale, first)
        if self.packing.flash:
            return self._flash(query, key, value, scale, first)
        return self._padded(query, key, value, first)

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, scale: float, first: int) -> Tensor:
        """Attend on packed rows; those before `first` need no output."""
        start, spans = sum(self.packing.lengths[:first]), self.packing.spans(first)
        own = flash(query[start:], key[start:], value[start:], spans, spans, scale, causal=True)
        output_THD = F.pad(own, (0,) * 4 + (start, 0)) if start else own
        key, value, unused = self._with_others(key, value)
        output_THD = output_THD + unused
        if not isinstance(self.readers, Reads):
            return output_THD
        read_MHD = read_packed(query, key, value, self.readers, scale, self.value_norm)
        return add_at(output_THD, self.readers.token_M, read_MHD)

    def _jointly(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, first: int
    ) -> Tensor:
        """Attend in one softmax per row; rows before `first` need no output."""
        assert self.joint
        key, value, unused = self._with_others(key, value)
        read = self.joint.attend(self.packing, first, query, key, value, scale)
        return F.pad(read, (0,) * 4 + (len(query) - len(read), 0)) + unused

    def _with_others(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Append the keys and values of other processes' documents; return a zero besides.

        Added to the output, it makes a process exchange gradients even if its chunks read nothing.
        """
        if self.exchange is None:
            return key, value, 0
        widths, both_TGD = [key.shape[-1], value.shape[-1]], torch.cat([key, value], dim=-1)
        sent = self.packing.pad(both_TGD)[: self.documents].transpose(1, 2)
        others_SGD = self.exchange(sent)[self.documents :].transpose(1, 2).flatten(0, 1)
        key, value = torch.cat([both_TGD, others_SGD]).split(widths, dim=-1)
        return key, value, 0 * others_SGD.sum()

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        """Attend on padded rows; those before `first` need no output."""
        start = self.document_tokens
        padded = [self.packing.pad(x).transpose(1, 2) for x in (query, key, value)]
        own = causal_attention(*(x[first:] for x in padded))
        output_THD = self.packing.pack(F.pad(own, (0,) * 6 + (first, 0)).transpose(1, 2))
        _, key_EGLD, value_EGLD = (x[: self.documents] for x in padded)
        if self.exchange is not None:
            both = self.exchange(torch.cat([key_EGLD, value_EGLD], dim=-1))
            output_THD = output_THD + 0 * both.sum()  # as in `_with_others`
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
    reading: Reading = "sum",
    value_norm: bool | None = None,
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
        reading: "sum" adds what a chunk reads in others, weighted, to its self-attention (the
            paper's); "joint" has one softmax over its prefix and all others, with the logarithm of
            the similarity added to their scores, and their positions before the chunk.
        value_norm: divide each pair's output by the attention-weighted norm of the values
            (V-normalisation, equation 8). The default is true for the sum, the only reading that
            has it.
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
            described, a model whose attention cannot be replaced or, with joint reading,
            that has no rotary positions for a document and a chunk, or `value_norm`.

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
        ...                      similarity)
        >>> loss.backward()
        >>> tuple(cosine.grad.shape)
        (4, 4)
    """
    sizes = sizes or [len(input_ids)]
    if reading == "joint" and value_norm:
        raise ValueError("joint reading has no value_norm: its values are those of one attention")
    kept, lengths = checked(input_ids, attention_mask, similarity, min_similarity, group, sizes)
    longest, joint = max(lengths), None
    readers: Sequence[Readers] | Reads = ()
    if reading == "joint":
        model = joint_lm(language_model, longest)
        fast = flash_takes(model, input_ids.device)
        documents, joint, exchange = joint_of(kept, lengths, similarity, dual_loss, group, fast)
    else:
        model = causal_lm(language_model, longest)
        fast = flash_takes(model, input_ids.device)
        documents, readers, exchange = readers_of(kept, lengths, similarity, dual_loss, group, fast)
    e_lengths = [lengths[j] for j in documents]
    in_batch = InBatch(
        packing=Packing([*e_lengths, *lengths], input_ids.device, fast),
        documents=len(e_lengths),
        document_tokens=sum(e_lengths),
        readers=readers,
        value_norm=value_norm is not False,
        last_layer=-1 if dual_loss else model.config.get_text_config().num_hidden_layers - 1,
        exchange=exchange,
        joint=joint,
    )
    (own,) = to_device([np.array(documents, np.int64)], input_ids.device)
    rows = torch.cat([input_ids[own], input_ids])[:, :longest]
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
    position_T = (rows.joint or rows.packing).position_T
    hidden_TD = run_packed(model, ids_T, position_T, rows)
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
