"""In-batch attention: a language model whose chunks attend to each other (paper, section 3).

A batch of B chunks goes through a stock causal language model as two sets of rows in one forward
pass, packed without padding. The *e rows* are chunks under plain causal self-attention; the *h
rows* are the same chunks, and at every layer each h row i adds to its self-attention what it reads
in the e rows of other chunks j, weighted by the retriever's similarity:

    h_i = causal(Q_i^h, K_i^h, V_i^h) + Σ_{j≠i} Sim(i, j) · full(Q_i^h, K_j^e, V_j^e)

with a softmax of its own over each document j's real tokens (equations 6 to 8). Gradients reach
the retriever through Sim and the language model through everything, K^e and V^e included.

Nothing of transformers is replaced: one attention function is registered under a name, and what it
has to know of the batch travels to it through the model's keyword arguments. Called without that, a
model with this attention behaves as it always did.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from revela.decoder import NAME, last_layer, prepared, skip_last_mlp
from revela.losses import next_token_loss
from revela.packing import Packing
from revela.reading import Exchange, Readers, checked, documents_read, own_columns, readers_of

EPSILON = 1e-6  # of V-normalisation (paper, appendix C)


@dataclass(frozen=True)
class InBatch:
    """What the attention function has to know of a batch; worked out once a step."""

    packing: Packing  # of E e rows, then B h rows
    documents: int  # E
    document_tokens: int  # of all e rows
    readers: list[Readers]
    value_norm: bool
    last_layer: int  # from whose attention on e rows serve nothing any more; -1: they do
    exchange: Exchange | None = None
    seen: list[Any] = field(default_factory=list)  # attention modules that got this far


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
) -> Tensor:
    """Return the mean next-token loss of chunks that attend to each other (equations 1 to 10).

    Args:
        language_model: a stock causal LM of transformers, with or without LoRA, of any
            architecture that uses the attention interface; its attention is set by this call.
        input_ids: (B, L) chunks, padded on the right.
        attention_mask: (B, L), 1 on real tokens.
        similarity: (B, B) float, row i weighs the documents that chunk i reads: zero on the
            diagonal, rows sum to one. With W processes (B, W · B), its columns in their order.
        value_norm: divide each pair's output by the attention-weighted norm of the values
            (V-normalisation, appendix C).
        min_similarity: pairs below are skipped; 0 skips none.
        dual_loss: add the e rows' own mean loss.
        group: processes (of torch.distributed) whose chunks read each other, B each. Keys and
            values of the pairs kept travel between them, with gradients.

    Returns:
        A scalar: the mean over all real tokens but each chunk's first, of the h rows.

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
    kept, lengths = checked(input_ids, attention_mask, similarity, min_similarity, group)
    model = prepared(language_model, max(lengths))
    documents = documents_read(kept, lengths, dual_loss, group)
    e_lengths = [lengths[j] for j in documents.own]
    context = InBatch(
        packing=Packing([*e_lengths, *lengths], input_ids.device),
        documents=len(e_lengths),
        document_tokens=sum(e_lengths),
        readers=readers_of(kept, documents, lengths, similarity),
        value_norm=value_norm,
        last_layer=-1 if dual_loss else last_layer(model),
        exchange=documents.exchange,
    )
    rows = torch.cat([input_ids[documents.own], input_ids])[:, : max(lengths)]
    return _loss(model, rows, e_lengths, lengths, context, dual_loss)


def plain_loss(language_model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean next-token loss without in-batch attention; shapes as `in_batch_loss`."""
    lengths = attention_mask.sum(1).tolist()
    model = prepared(language_model, max(lengths))
    context = InBatch(
        packing=Packing(lengths, input_ids.device),
        documents=0,
        document_tokens=0,
        readers=[],
        value_norm=False,
        last_layer=-1,
    )
    return _loss(model, input_ids[:, : max(lengths)], [], lengths, context, False)


def in_batch_similarity(cosine: Tensor, temperature: float, group: Any = None) -> Tensor:
    """Return Sim (B, W · B): softmax of cosine / temperature over each row but itself (3.3)."""
    scores = (cosine / temperature).masked_fill(own_columns(cosine, group), float("-inf"))
    return scores.softmax(dim=-1)


def _loss(
    model: Any,
    input_ids_RL: Tensor,
    e_lengths: list[int],
    h_lengths: list[int],
    context: InBatch,
    dual_loss: bool,
) -> Tensor:
    """Run the packed rows through the model and return the loss of the h rows, or of both."""
    ids_T = context.packing.pack(input_ids_RL)
    hidden_TD = model.get_decoder()(
        input_ids=ids_T[None],
        position_ids=context.packing.position_T[None],
        attention_mask=ids_T.new_zeros(1, 1, 1, 1),  # four axes: the model makes none itself
        use_cache=False,
        in_batch=context,
    ).last_hidden_state[0]
    if not context.seen:
        raise ValueError(f"{type(model).__name__} does not hand keyword arguments to its attention")
    head = model.get_output_embeddings()

    def loss_of(lengths: list[int], start: int) -> Tensor:
        predicting: list[int] = []  # all tokens but each row's last
        for length in lengths:
            predicting.extend(range(start, start + length - 1))
            start += length
        index = torch.tensor(predicting, device=ids_T.device)
        return next_token_loss(hidden_TD[index], head, ids_T[index + 1])

    loss = loss_of(h_lengths, context.document_tokens)
    return loss + loss_of(e_lengths, 0) if dual_loss else loss


# ---------------------------------------------------------------------------- attention


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    in_batch: InBatch | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' attention interface asks, without a batch as its SDPA does."""
    if in_batch is None:
        stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return stock(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    return _packed_attention(module, query, key, value, scaling, in_batch), None


@torch.compiler.disable  # what it does depends on who reads whom: no two steps are alike
def _packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    in_batch: InBatch,
) -> Tensor:
    """Return (1, T, heads, D) of packed queries, keys and values (1, heads, T, D)."""
    in_batch.seen.append(module)
    last = module.layer_idx == in_batch.last_layer
    if last:
        skip_last_mlp(module, in_batch.document_tokens)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # RoPE leaves float32 under autocast. Scaling the queries here spares scaling the scores.
    query, key = (query * scale).to(value.dtype), key.to(value.dtype)
    query_THD, key_THD, value_THD = (x[0].transpose(0, 1) for x in (query, key, value))
    packing, documents = in_batch.packing, in_batch.documents
    query, key, value = (packing.pad(x).transpose(1, 2) for x in (query_THD, key_THD, value_THD))
    first = documents if last else 0
    output = _causal(query[first:], key[first:], value[first:])
    output_THD = packing.pack(F.pad(output, (0,) * 6 + (first, 0)).transpose(1, 2))
    if in_batch.readers:
        start = in_batch.document_tokens
        key, value = key[:documents], value[:documents]
        if in_batch.exchange is not None:
            both = in_batch.exchange(torch.cat([key, value], dim=-1))
            key, value = both.split([key.shape[-1], value.shape[-1]], dim=-1)
        cross = _cross_document(query_THD[start:], key, value, in_batch)
        output_THD = torch.cat([output_THD[:start], output_THD[start:] + cross])
    return output_THD[None]


def _causal(query_RHLD: Tensor, key_RGLD: Tensor, value_RGLD: Tensor) -> Tensor:
    """Return causal self-attention. Padding stands on the right: real tokens never see it."""
    if query_RHLD.is_cuda:
        return F.scaled_dot_product_attention(
            query_RHLD, key_RGLD, value_RGLD, is_causal=True, scale=1.0, enable_gqa=True
        )
    groups, length = key_RGLD.shape[1:3]
    mask_LL = torch.ones(length, length, dtype=torch.bool, device=key_RGLD.device).tril()
    query = query_RHLD.unflatten(1, (groups, -1)).flatten(2, 3)
    output = _attend(query, key_RGLD, value_RGLD, mask_LL.repeat(query.shape[2] // length, 1))
    return output.unflatten(2, (-1, length)).flatten(1, 2)


def _cross_document(
    query_THD: Tensor, key_EGLD: Tensor, value_EGLD: Tensor, batch: InBatch
) -> Tensor:
    """Return Σ_j Sim(i, j) · b_ij as (T, H, D) (equations 7 and 8; V-norm equation 11).

    V-norm divides Σ_t p_t v_t by Σ_t p_t ‖v_t‖ + ε: the divisor comes out of the same attention as
    one more column of the values.
    """
    if batch.value_norm:
        exact = torch.promote_types(value_EGLD.dtype, torch.float32)
        norm = value_EGLD.to(exact).norm(dim=-1, keepdim=True).to(value_EGLD.dtype)
        # Kernels of a GPU want a multiple of eight columns.
        norm = F.pad(norm, (0, 7)) if norm.is_cuda else norm
        value_EGLD = torch.cat([value_EGLD, norm], dim=-1)
    total_THD = torch.zeros_like(query_THD)
    for readers in batch.readers:
        # What a block makes on its way is made again in the backward pass: at any time one exists.
        read = checkpoint(
            _read, query_THD, key_EGLD, value_EGLD, readers, batch.value_norm, use_reentrant=False
        )
        total_THD = total_THD.index_add(0, readers.token_NM.flatten(), read)
    return total_THD


def _read(
    query_THD: Tensor, key_EGLD: Tensor, value_EGLD: Tensor, readers: Readers, value_norm: bool
) -> Tensor:
    """Return the weighted outputs of a block's tokens, (N · M, H, D)."""
    heads, width = query_THD.shape[1:]
    groups, length = key_EGLD.shape[1], readers.key_length
    query = query_THD.index_select(0, readers.token_NM.flatten())
    # Tokens, and the heads that share a key, form one query axis: no key is repeated.
    query = query.view(*readers.token_NM.shape, groups, -1, width).transpose(1, 2).flatten(2, 3)
    mask = None if readers.key_mask_NK is None else readers.key_mask_NK[:, None, None]
    key, value = (
        x[:, :, :length].index_select(0, readers.document_N) for x in (key_EGLD, value_EGLD)
    )
    read = _attend(query, key, value, mask).unflatten(2, (readers.token_NM.shape[1], -1))
    weight = readers.weight_NM.to(read.dtype)[:, None, :, None, None]
    if value_norm:
        weight = weight / (read[..., width, None] + EPSILON)
    return (read[..., :width] * weight).transpose(1, 2).reshape(-1, heads, width)


def _attend(
    query_NGMD: Tensor, key_NGKD: Tensor, value_NGKD: Tensor, mask: Tensor | None
) -> Tensor:
    """Return softmax(QKᵀ)V of scaled queries, where the mask is true, as (N, G, M, D').

    On a CPU the fused kernel's backward pass is slower than its parts (`bench/attention.py`).
    """
    if query_NGMD.is_cuda:
        return F.scaled_dot_product_attention(
            query_NGMD, key_NGKD, value_NGKD, attn_mask=mask, scale=1.0
        )
    scores = query_NGMD @ key_NGKD.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1).to(value_NGKD.dtype) @ value_NGKD


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
