"""Which chunks attend to which: checks of a batch, kept pairs, exchange between processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor

from revela.inbatch.packing import Spans, starts_of, to_device


@dataclass(frozen=True)
class Readers:
    """N documents, each with the tokens of all chunks that read it, at most M."""

    document_N: Tensor  # rows of the keys
    key_length: int  # K, of the longest document
    key_mask_NK: Tensor | None  # real tokens; None where all documents have K
    token_NM: Tensor  # of the h rows, in [0, T); arbitrary where there are fewer than M
    weight_NM: Tensor  # similarity of reader and document, with gradient; zero for arbitrary tokens


@dataclass(frozen=True)
class Reads:
    """N documents, K tokens in total, each with the tokens of all chunks that read it, M in total.

    Flash attention uses it in place of `Readers`.
    """

    key_token_K: Tensor  # of all packed tokens
    keys: Spans
    token_M: Tensor  # of all packed tokens
    weight_M: Tensor  # similarity of reader and document, with gradient
    queries: Spans


class Exchange:
    """Gathers keys and values of the documents that other processes read (B per process)."""

    def __init__(self, sent: Tensor, most: int, width: int, group: Any) -> None:
        self.sent, self.most, self.width, self.group = sent, most, width, group
        self.lengths = [width] * most * distributed.get_world_size(group)  # of the rows gathered

    def __call__(self, states_EGLD: Tensor) -> Tensor:
        """Return own rows, then `most` rows of each process, (E + W · most, G, width, D)."""
        longer = (0, 0, 0, self.width - states_EGLD.shape[2])
        own = F.pad(states_EGLD, longer)
        rows = own.index_select(0, self.sent)
        rows = F.pad(rows, (0,) * 6 + (0, self.most - len(rows)))
        return torch.cat([own, all_gather(rows, self.group)])


def all_gather(tensor: Tensor, group: Any) -> Tensor:
    """Return the concatenated tensors of all processes; gradients flow back to each of them."""
    return _AllGather.apply(tensor.contiguous(), group)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.size = group, len(tensor)
        tensors = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(tensors, tensor, group=group)
        return torch.cat(tensors)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        gradient = outer[0].clone(memory_format=torch.contiguous_format)  # others may reference it
        distributed.all_reduce(gradient, group=ctx.group)  # gloo has no reduce_scatter
        start = distributed.get_rank(ctx.group) * ctx.size
        return gradient[start : start + ctx.size], None


def checked(
    input_ids: Tensor,
    attention_mask: Tensor,
    similarity: Tensor,
    min_similarity: float,
    group: Any,
    sizes: Sequence[int],
) -> tuple[np.ndarray, list[int]]:
    """Check a batch and return which pairs are kept (B, W · B) and the chunks' lengths.

    Everything the host needs comes in one transfer, because each one waits for the device.
    """
    size = len(input_ids)
    world = distributed.get_world_size(group) if group else 1
    if min(sizes) * world < 2:
        raise ValueError("a batch needs at least two chunks")
    if sum(sizes) != size or (group and len(sizes) > 1):
        raise ValueError(f"sizes {list(sizes)} do not sum to {size}, or span processes")
    shape = (size, size * world)
    if tuple(similarity.shape) != shape:
        raise ValueError(f"similarity is {tuple(similarity.shape)}, expected {shape}")
    values = similarity.detach()
    unread = never_read(values, group, sizes)
    length_B = attention_mask.sum(1)
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    flags = torch.stack(
        [
            ((positions < length_B[:, None]) != attention_mask.bool()).any(),
            (values.masked_fill(~unread, 0).abs() > 0).any(),
            ((values.sum(1) - 1).abs() > 1e-2).any(),
        ]
    )
    kept = (values >= min_similarity) & ~unread
    known = torch.cat([flags.long(), length_B.long(), kept.flatten().long()]).cpu().numpy()
    (left, diagonal, sums), lengths = known[:3], known[3 : 3 + size].tolist()
    if not all(lengths):
        raise ValueError(f"chunk {lengths.index(0)} has no tokens")
    if left:
        raise ValueError("chunks must be padded on the right")
    if diagonal:
        raise ValueError("similarity has a nonzero diagonal, or is nonzero between batches")
    if sums:
        raise ValueError("rows of similarity must sum to one")
    return known[3 + size :].reshape(shape).astype(bool), lengths


def never_read(similarity: Tensor, group: Any, sizes: Sequence[int]) -> Tensor:
    """Return where a pair is one chunk twice or spans two batches, (B, W · B)."""
    if group or len(sizes) < 2:
        columns = torch.arange(similarity.shape[1], device=similarity.device)
        rank = distributed.get_rank(group) if group else 0
        rows = torch.arange(len(similarity), device=similarity.device) + rank * len(similarity)
        return rows[:, None] == columns
    batch = np.repeat(np.arange(len(sizes)), sizes)
    unread = (batch[:, None] != batch) | np.eye(len(batch), dtype=bool)
    return to_device([unread], similarity.device)[0].bool()


def documents_of(
    kept: np.ndarray, lengths: list[int], all_own: bool, group: Any, device: torch.device
) -> tuple[list[int], dict[int, int], list[int], Exchange | None]:
    """Find the documents that need keys and values, here and in other processes.

    Returns:
        This process's chunks that any process reads, its e rows; for each column of the
        similarities its row of the keys, own rows before gathered ones; the lengths of all columns;
        and the exchange, None if no process reads another's documents.
    """
    size, wanted = len(kept), kept.sum(axis=0) > 0
    if not group:
        own = [j for j in range(size) if all_own or wanted[j]]
        return own, {column: row for row, column in enumerate(own)}, lengths, None
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    gathered: list[Any] = [None] * world
    distributed.all_gather_object(gathered, (wanted, lengths), group=group)
    all_lengths = [length for _, others in gathered for length in others]
    by_others = np.stack([wanted for wanted, _ in gathered]).reshape(world, world, size)
    by_others[np.arange(world), np.arange(world)] = False  # reader, owner: the same process
    sent = [np.flatnonzero(read).tolist() for read in np.any(by_others, axis=0)]  # by each owner
    mine = slice(rank * size, (rank + 1) * size)
    own = [j for j in range(size) if all_own or wanted[mine][j] or j in sent[rank]]
    rows = {rank * size + j: row for row, j in enumerate(own)}
    most = max(map(len, sent))
    for process in range(world):
        if process != rank:
            start = len(own) + process * most
            rows |= {process * size + j: start + n for n, j in enumerate(sent[process])}
    (rows_sent,) = to_device([np.array([own.index(j) for j in sent[rank]], np.int64)], device)
    exchange = Exchange(rows_sent, most, max(all_lengths), group)
    return own, rows, all_lengths, exchange if most else None


def readers_of(
    kept: np.ndarray,
    lengths: list[int],
    similarity: Tensor,
    all_own: bool,
    group: Any,
    flash: bool = False,
) -> tuple[list[int], Sequence[Readers] | Reads, Exchange | None]:
    """Find the tokens that read each document, for the `kept` pairs of the similarity (B, W · B).

    `lengths` are the token counts of the B reading chunks. With `all_own`, each own chunk has an e
    row, read or not. A `group` of processes, if any, is one whose chunks read each other.

    Returns:
        This process's chunks that are e rows, in order; their readers, none if no pair is kept; and
        the exchange with other processes, if any.
    """
    own, rows, all_lengths, exchange = documents_of(
        kept, lengths, all_own, group, similarity.device
    )
    sizes, starts = np.asarray(lengths), starts_of(lengths)
    read = []
    for column in np.flatnonzero(kept.any(axis=0)):
        readers = np.flatnonzero(kept[:, column])
        tokens = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in readers])
        pairs = np.repeat(readers * kept.shape[1] + column, sizes[readers])
        read.append(_Read(rows[int(column)], all_lengths[column], tokens, pairs))
    if not read:
        return own, (), exchange
    if flash:
        gathered = exchange.lengths if exchange else []
        return (
            own,
            _packed(read, [lengths[j] for j in own], lengths, gathered, similarity),
            exchange,
        )
    return own, _blocks(read, sum(lengths), similarity), exchange


@dataclass(frozen=True)
class _Read:
    """A document, M tokens that read it, and the pair of each among all similarities."""

    row: int  # of its keys
    length: int
    token_M: np.ndarray
    pair_M: np.ndarray


def _packed(
    read: list[_Read], own: list[int], readers: list[int], gathered: list[int], similarity: Tensor
) -> Reads:
    """Concatenate readers; keys are tokens of own e rows, h rows and gathered e rows, by length."""
    first_h, tokens = sum(own), sum(own) + sum(readers)
    key_starts = [*starts_of(own)[:-1], *tokens + starts_of(gathered)[:-1]]
    arrays = [
        np.concatenate([key_starts[one.row] + np.arange(one.length) for one in read]),
        np.concatenate([one.token_M for one in read]) + first_h,
        np.concatenate([one.pair_M for one in read]),
        starts_of([one.length for one in read]),
        starts_of([len(one.token_M) for one in read]),
    ]
    key_token_K, token_M, pair_M, keys, queries = to_device(arrays, similarity.device)
    return Reads(
        key_token_K=key_token_K,
        keys=Spans(keys.int(), max(one.length for one in read)),
        token_M=token_M,
        weight_M=similarity.flatten().index_select(0, pair_M),
        queries=Spans(queries.int(), max(len(one.token_M) for one in read)),
    )


def _blocks(read: list[_Read], room: int, similarity: Tensor) -> list[Readers]:
    """Group documents with about as many reading tokens into blocks of about `room` tokens."""
    blocks: list[list[_Read]] = []
    for one in sorted(read, key=lambda one: len(one.token_M), reverse=True):
        widest = len(blocks[-1][0].token_M) if blocks else 0
        full = (len(blocks[-1]) + 1) * widest > room if blocks else True
        if full or len(one.token_M) < 0.8 * widest:
            blocks.append([])
        blocks[-1].append(one)
    arrays = []  # of each block: rows (N,), key lengths (N,), tokens (N, M), their pairs (N, M)
    for block in blocks:
        tokens = np.zeros((len(block), len(block[0].token_M)), np.int64)
        pairs = np.full_like(tokens, similarity.numel())  # none
        for n, one in enumerate(block):
            tokens[n, : len(one.token_M)] = one.token_M
            pairs[n, : len(one.pair_M)] = one.pair_M
        arrays.append(np.array([one.row for one in block]))
        arrays.append(np.array([one.length for one in block]))
        arrays += [tokens, pairs]
    moved = iter(to_device(arrays, similarity.device))
    weights = F.pad(similarity.flatten(), (0, 1))  # the last one is for tokens without a pair
    found = []
    for key_lengths in arrays[1::4]:
        row_N, length_N, token_NM, pair_NM = (next(moved) for _ in range(4))
        width = int(key_lengths.max())
        real_NK = torch.arange(width, device=similarity.device) < length_N[:, None]
        found.append(
            Readers(
                document_N=row_N,
                key_length=width,
                key_mask_NK=None if key_lengths.min() == width else real_NK,
                token_NM=token_NM,
                weight_NM=weights.index_select(0, pair_NM.flatten()).view(pair_NM.shape),
            )
        )
    return found
