"""A plain-loop transcription of the paper's equations, independent of the package."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen

_GROUPED = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


def in_batch_losses(
    model: Any,
    chunks: list[list[int]],
    similarity: Tensor,
    value_norm: bool = False,
    epsilon: float = 1e-6,
    reading: str = "sum",
) -> tuple[Tensor, Tensor]:
    """Return the mean next-token losses of the h rows and of the e rows of a Llama or Qwen2.

    One chunk, one head, one query token and one document at a time; no padding, no batching. Values
    are divided by their weighted norm + `epsilon`. With joint reading documents end where chunks
    begin.
    """
    joint, longest = reading == "joint", max(map(len, chunks))
    body = model.model
    e = [body.embed_tokens(torch.tensor(ids)) for ids in chunks]
    h = [states.clone() for states in e]
    for layer in body.layers:
        e_normed = [layer.input_layernorm(states) for states in e]
        h_normed = [layer.input_layernorm(states) for states in h]
        e_projected = [
            _project(model, layer.self_attn, states, longest - len(states) if joint else 0)
            for states in e_normed
        ]
        h_projected = [
            _project(model, layer.self_attn, states, longest if joint else 0) for states in h_normed
        ]
        new_e, new_h = [], []
        for i in range(len(chunks)):
            new_e.append(_block(layer, e[i], _causal(e_projected[i])))
            attended = _causal(h_projected[i])
            if joint:
                others = [j for j in range(len(chunks)) if j != i and similarity[i, j] > 0]
                documents = [(e_projected[j], similarity[i, j].log()) for j in others]
                attended = _causal(h_projected[i], documents)
            for j in range(0 if joint else len(chunks)):
                if j != i:
                    read = _read(h_projected[i], e_projected[j], value_norm, epsilon)
                    attended = attended + similarity[i, j] * read
            new_h.append(_block(layer, h[i], attended))
        e, h = new_e, new_h
    return _loss(model, h, chunks), _loss(model, e, chunks)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as by `torch.nn.attention.varlen.varlen_attn`, one row and one head at a time.

    It rejects the same inputs as the kernels, except for the precision.
    """
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
    assert query.shape[-1] % 8 == 0
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k)
    query_starts, key_starts = cu_seq_q.numpy(), cu_seq_k.numpy()
    assert len(query) == query_starts[-1]
    assert len(key) == len(value) == key_starts[-1]
    group, rest = divmod(query.shape[1], key.shape[1])
    assert not rest
    assert enable_gqa or group == 1 or not _GROUPED  # older versions have no such argument
    rows = []
    for row in range(len(query_starts) - 1):
        queries = slice(query_starts[row], query_starts[row + 1])
        keys = slice(key_starts[row], key_starts[row + 1])
        length, width = queries.stop - queries.start, keys.stop - keys.start
        assert 0 < length <= max_q
        assert 0 < width <= max_k
        seen = torch.ones(length, width, dtype=torch.bool)
        if window_size == (-1, 0):
            seen = seen.tril(width - length)  # the last queries are those of the last keys
        heads = []
        for head in range(query.shape[1]):
            scores = query[queries, head] @ key[keys, head // group].T * scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            heads.append(weights @ value[keys, head // group])
        rows.append(torch.stack(heads, dim=1))
    return torch.cat(rows)


def _project(
    model: Any, attention: Any, states: Tensor, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys, values (heads, tokens, width) with rotary positions from `start` on."""
    config = model.config
    width = attention.head_dim
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    length = len(states)

    def split(projected: Tensor, count: int) -> Tensor:
        return projected.view(length, count, width).transpose(0, 1)

    query = split(attention.q_proj(states), heads)
    key = split(attention.k_proj(states), key_heads)
    value = split(attention.v_proj(states), key_heads)
    base = config.rope_parameters["rope_theta"]
    half = width // 2
    rotated = []
    for tensor in (query, key):
        turned = torch.zeros_like(tensor)
        for position in range(length):
            for k in range(half):
                angle = (start + position) * base ** (-2 * k / width)
                a, b = tensor[:, position, k], tensor[:, position, k + half]
                turned[:, position, k] = a * math.cos(angle) - b * math.sin(angle)
                turned[:, position, k + half] = b * math.cos(angle) + a * math.sin(angle)
        rotated.append(turned)
    group = heads // key_heads
    key = torch.stack([rotated[1][n // group] for n in range(heads)])
    value = torch.stack([value[n // group] for n in range(heads)])
    return rotated[0], key, value


def _causal(projected: tuple[Tensor, Tensor, Tensor], documents: Any = ()) -> Tensor:
    """Attend to a chunk's prefix and, in the same softmax, to documents with a bias each."""
    query, key, value = projected
    heads, length, width = query.shape
    rows = []
    for t in range(length):
        parts = []
        for n in range(heads):
            scores, values = [key[n, : t + 1] @ query[n, t] / math.sqrt(width)], [value[n, : t + 1]]
            for (_, other, other_value), bias in documents:
                scores.append(other[n] @ query[n, t] / math.sqrt(width) + bias)
                values.append(other_value[n])
            parts.append(torch.cat(scores).softmax(0) @ torch.cat(values))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _read(
    reader: tuple[Tensor, Tensor, Tensor],
    document: tuple[Tensor, Tensor, Tensor],
    value_norm: bool,
    epsilon: float,
) -> Tensor:
    query, (_, key, value) = reader[0], document
    heads, length, width = query.shape
    rows = []
    for t in range(length):
        parts = []
        for n in range(heads):
            weights = (key[n] @ query[n, t] / math.sqrt(width)).softmax(0)
            read = weights @ value[n]
            if value_norm:
                read = read / (weights @ value[n].norm(dim=-1) + epsilon)
            parts.append(read)
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _block(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    states = states + layer.self_attn.o_proj(attended)
    return states + layer.mlp(layer.post_attention_layernorm(states))


def _loss(model: Any, states: list[Tensor], chunks: list[list[int]]) -> Tensor:
    losses = []
    for hidden, ids in zip(states, chunks, strict=True):
        logits = model.lm_head(model.model.norm(hidden))
        for t in range(len(ids) - 1):
            losses.append(-logits[t].log_softmax(0)[ids[t + 1]])
    return torch.stack(losses).mean()
