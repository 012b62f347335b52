"""In-batch attention: a language model whose chunks attend to each other (paper, section 3).

A batch of B chunks goes through a stock causal language model as two sets of rows in one forward
pass. The *e rows* are chunks under plain causal self-attention; the *h rows* are the same chunks,
and at every layer each h row i adds to its self-attention what it reads in the e rows of other
chunks j, weighted by the retriever's similarity:

    h_i = causal(Q_i^h, K_i^h, V_i^h) + Σ_{j≠i} Sim(i, j) · full(Q_i^h, K_j^e, V_j^e)

with a softmax of its own over each document j's real tokens (equations 6 to 8). Gradients reach
the retriever through Sim and the language model through everything, K^e and V^e included.

Nothing of transformers is replaced: one attention function is registered under a name, and the
batch's similarities travel to it through the model's keyword arguments.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

NAME = "revela_in_batch"
EPSILON = 1e-6  # of V-normalisation (paper, appendix C)
_TOKENS_PER_CHUNK = 1024  # tokens whose logits exist at a time


@dataclass(frozen=True)
class Readers:
    """N documents that R chunks each read: their queries share one axis, no padding between."""

    document_N: Tensor  # e rows
    reader_NR: Tensor  # h rows, in [0, B)
    weight_NR: Tensor  # similarity of each pair, with gradient


@dataclass(frozen=True)
class InBatch:
    """What the attention function has to know of a batch; worked out once a step."""

    documents: int  # E: the first E rows are e rows, the other B are h rows
    readers: list[Readers]  # one for each number of readers that a document has
    key_mask_EL: Tensor  # real tokens of the e rows
    value_norm: bool
    layers: list[Any] = field(default_factory=list)  # attention modules that got this far


class NotFinite(ValueError):
    """The retriever has diverged: its similarities are NaN or infinite."""


def in_batch_loss(
    language_model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    similarity: Tensor,
    *,
    value_norm: bool,
    min_similarity: float = 1e-12,
    dual_loss: bool = False,
) -> Tensor:
    """Return the mean next-token loss of chunks that attend to each other (equations 1 to 10).

    Args:
        language_model: a stock causal LM of transformers, with or without LoRA, of any
            architecture that uses the attention interface; its attention is set by this call.
        input_ids: (B, L) chunks, padded on the right.
        attention_mask: (B, L), 1 on real tokens.
        similarity: (B, B) float, row i weighs the documents that chunk i reads: zero on the
            diagonal, rows sum to one.
        value_norm: divide each pair's output by the attention-weighted norm of the values
            (V-normalisation, appendix C).
        min_similarity: pairs below are skipped; 0 skips none.
        dual_loss: add the e rows' own mean loss.

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
    _check_batch(input_ids, attention_mask, similarity)
    model = _prepared(language_model, input_ids.shape[1])
    kept_BB = (similarity.detach() >= min_similarity) & ~_diagonal(similarity)
    needed_E = (kept_BB.any(0) | dual_loss).nonzero().squeeze(1)
    context = InBatch(
        documents=len(needed_E),
        readers=_readers(kept_BB[:, needed_E], similarity[:, needed_E]),
        key_mask_EL=attention_mask[needed_E].bool(),
        value_norm=value_norm,
    )
    rows = torch.cat([input_ids[needed_E], input_ids])
    hidden = model.get_decoder()(
        input_ids=rows, use_cache=False, in_batch=context
    ).last_hidden_state
    if not context.layers:
        raise ValueError(f"{type(model).__name__} does not hand keyword arguments to its attention")
    head = model.get_output_embeddings()
    loss = next_token_loss(hidden[len(needed_E) :], head, input_ids, attention_mask)
    if dual_loss:
        loss = loss + next_token_loss(hidden[: len(needed_E)], head, input_ids, attention_mask)
    return loss


def plain_loss(language_model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean next-token loss without in-batch attention; shapes as `in_batch_loss`."""
    model = _prepared(language_model, input_ids.shape[1])
    hidden = model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
    return next_token_loss(hidden, model.get_output_embeddings(), input_ids, attention_mask)


def in_batch_similarity(cosine: Tensor, temperature: float) -> Tensor:
    """Return Sim (B, B): softmax of cosine / temperature over each row but its diagonal (3.3)."""
    scores = (cosine / temperature).masked_fill(_diagonal(cosine), float("-inf"))
    return scores.softmax(dim=-1)


# ---------------------------------------------------------------------------- attention


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    in_batch: InBatch | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' attention interface asks; rows (E + B), heads H, length L.

    Padding stands on the right, so causal self-attention needs no mask: real tokens never see it.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)  # RoPE leaves float32 under autocast
    output = F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=True
    )
    if in_batch is not None:
        in_batch.layers.append(module)
    if in_batch is not None and in_batch.readers:
        e, h = slice(None, in_batch.documents), slice(in_batch.documents, None)
        cross = _cross_document(query[h], key[e], value[e], scaling, in_batch)
        output = torch.cat([output[e], output[h] + cross])
    return output.transpose(1, 2).contiguous(), None


def _cross_document(
    query_BHLD: Tensor, key_EHLD: Tensor, value_EHLD: Tensor, scaling: float | None, batch: InBatch
) -> Tensor:
    """Return Σ_j Sim(i, j) · b_ij as (B, H, L, D) (equations 7 and 8; V-norm equation 11).

    V-norm divides Σ_t p_t v_t by Σ_t p_t ‖v_t‖ + ε. The divisor comes out of the same attention as
    one more column of the values; the zero column of query and key keeps the widths equal.
    """
    total_BHLD = torch.zeros_like(query_BHLD)
    scaling = query_BHLD.shape[-1] ** -0.5 if scaling is None else scaling
    if batch.value_norm:
        query_BHLD, key_EHLD = F.pad(query_BHLD, (0, 1)), F.pad(key_EHLD, (0, 1))
        norm = value_EHLD.float().norm(dim=-1, keepdim=True).to(value_EHLD.dtype)
        value_EHLD = torch.cat([value_EHLD, norm], dim=-1)
    _, heads, length, width = query_BHLD.shape
    groups = key_EHLD.shape[1]
    for readers in batch.readers:
        documents, count = readers.reader_NR.shape
        # Readers and the heads that share a key go into one query axis: no key is repeated.
        query = query_BHLD.index_select(0, readers.reader_NR.flatten())
        query = query.view(documents, count, groups, -1, length, width)
        read = F.scaled_dot_product_attention(
            query.transpose(1, 2).flatten(2, 4),
            key_EHLD.index_select(0, readers.document_N),
            value_EHLD.index_select(0, readers.document_N),
            attn_mask=batch.key_mask_EL[readers.document_N, None, None],
            scale=scaling,
        )
        read = read.view(documents, groups, count, -1, length, width).transpose(1, 2)
        if batch.value_norm:
            read = read[..., :-1] / (read[..., -1:] + EPSILON)
        weighted = read * readers.weight_NR.to(read.dtype)[..., None, None, None, None]
        total_BHLD = total_BHLD.index_add(
            0, readers.reader_NR.flatten(), weighted.reshape(-1, heads, length, read.shape[-1])
        )
    return total_BHLD


def _readers(kept_BE: Tensor, similarity_BE: Tensor) -> list[Readers]:
    """Group documents by how many chunks read them, with their readers and weights."""
    counts_E = kept_BE.sum(0)
    document_P, reader_P = kept_BE.T.nonzero(as_tuple=True)  # document by document
    count_P = counts_E[document_P]
    groups = []
    for count in sorted({count for count in counts_E.tolist() if count}):
        chosen = count_P == count
        document_NR = document_P[chosen].view(-1, count)
        reader_NR = reader_P[chosen].view(-1, count)
        groups.append(Readers(document_NR[:, 0], reader_NR, similarity_BE[reader_NR, document_NR]))
    return groups


AttentionInterface.register(NAME, _attention)


# ---------------------------------------------------------------------------- loss


def next_token_loss(
    hidden_BLD: Tensor, head: Any, input_ids: Tensor, attention_mask: Tensor
) -> Tensor:
    """Return the mean cross-entropy of each real token given those before it, in float32.

    The logits of a chunk of tokens are made, used and made again in the backward pass: they never
    exist for the whole batch.
    """
    real = attention_mask[:, 1:].bool()
    hidden_TD = hidden_BLD[:, :-1][real]
    targets_T = input_ids[:, 1:][real]
    total = hidden_BLD.new_zeros((), dtype=torch.float32)
    for hidden, targets in zip(
        hidden_TD.split(_TOKENS_PER_CHUNK), targets_T.split(_TOKENS_PER_CHUNK), strict=True
    ):
        total = total + checkpoint(_summed_loss, hidden, head, targets, use_reentrant=False)
    return total / max(1, len(targets_T))


def _summed_loss(hidden_TD: Tensor, head: Any, targets_T: Tensor) -> Tensor:
    logits_TV = head(hidden_TD)
    # Half precision is too coarse for a sum over the vocabulary; double stays double for tests.
    dtype = torch.promote_types(logits_TV.dtype, torch.float32)
    return F.cross_entropy(logits_TV.to(dtype), targets_T, reduction="sum")


# ---------------------------------------------------------------------------- checks


def _prepared(language_model: Any, length: int) -> Any:
    """Return the causal LM below any LoRA, with this module's attention set on it.

    Raises:
        ValueError: its attention cannot be replaced, or does more than plain attention.
    """
    adapted = hasattr(language_model, "peft_config")
    model = language_model.get_base_model() if adapted else language_model
    config, name = model.config, type(model).__name__
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and length > window:
        raise ValueError(f"{name} attends to {window} tokens only, the chunks have {length}")
    if config._attn_implementation == NAME:
        return model
    if getattr(config, "attn_logit_softcapping", None) or getattr(
        config, "final_logit_softcapping", None
    ):
        raise ValueError(f"{name} caps its logits, which in-batch attention does not")
    if not getattr(type(model), "_supports_attention_backend", False):
        raise ValueError(f"{name} does not use transformers' attention interface")
    model.set_attn_implementation(NAME)
    return model


def _check_batch(input_ids: Tensor, attention_mask: Tensor, similarity: Tensor) -> None:
    size = len(input_ids)
    if size < 2:
        raise ValueError("a batch needs at least two chunks")
    if tuple(similarity.shape) != (size, size):
        raise ValueError(f"similarity is {tuple(similarity.shape)}, expected {(size, size)}")
    values = similarity.detach()
    lengths = attention_mask.sum(1)
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    # One transfer for all checks: each would otherwise wait for the device.
    empty, left, nan, diagonal, sums = torch.stack(
        [
            (lengths == 0).any(),
            ((positions < lengths[:, None]) != attention_mask.bool()).any(),
            ~values.isfinite().all(),
            (values.diagonal() != 0).any(),
            ((values.sum(1) - 1).abs() > 1e-2).any(),
        ]
    ).tolist()
    if empty:
        raise ValueError("a chunk has no token")
    if left:
        raise ValueError("chunks must be padded on the right")
    if nan:
        raise NotFinite("similarity is not finite")
    if diagonal:
        raise ValueError("similarity has a nonzero diagonal: no chunk reads itself")
    if sums:
        raise ValueError("rows of similarity must sum to one")


def _diagonal(square: Tensor) -> Tensor:
    return torch.eye(len(square), dtype=torch.bool, device=square.device)
