"""Exact search: the best documents of each query, over embeddings that come a block at a time."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

_QUERIES_AT_A_TIME = 4_096


def exact_search(
    queries_QD: Tensor,
    blocks: Iterable[Tensor],
    depth: int,
    allowed: Sequence[np.ndarray | None] | None = None,
    device: str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return each query's documents of largest dot product, best first.

    Memory is one block's embeddings and its scores for some thousand queries.

    Args:
        queries_QD: embeddings (Q, D).
        blocks: embeddings (N, D) of consecutive documents.
        depth: documents of a query to return, K at most.
        allowed: for each query the sorted numbers of the documents it may find; None: all.
        device: where to multiply, in float32.

    Returns:
        Scores (Q, K), -inf where a query has fewer documents, and document numbers (Q, K).
    """
    count = len(queries_QD)
    queries = queries_QD.to(device, torch.float32)
    scores_QK = torch.empty((count, 0), device=device)
    numbers_QK = torch.empty((count, 0), dtype=torch.long, device=device)
    start = 0
    for stored in blocks:
        block_ND = stored.to(device, torch.float32)
        merged = []
        for first in range(0, count, _QUERIES_AT_A_TIME):
            part = slice(first, min(first + _QUERIES_AT_A_TIME, count))
            scores = queries[part] @ block_ND.T
            if allowed is not None:
                permitted = _permitted(allowed[part], start, len(block_ND))
                scores.masked_fill_(~permitted.to(device), -torch.inf)
            # The block's best first: the merge then sorts 2 K and not N + K.
            best, where = scores.topk(min(depth, len(block_ND)))
            best = torch.cat([scores_QK[part], best], dim=1)
            where = torch.cat([numbers_QK[part], where + start], dim=1)
            best, order = best.topk(min(depth, best.shape[1]))
            merged.append((best, where.gather(1, order)))
        scores_QK = torch.cat([best for best, _ in merged])
        numbers_QK = torch.cat([where for _, where in merged])
        start += len(block_ND)
    return scores_QK.cpu(), numbers_QK.cpu()


def _permitted(allowed: Sequence[np.ndarray | None], start: int, size: int) -> Tensor:
    """Return which documents (Q, N) of the block from `start` on each query may find."""
    permitted = np.zeros((len(allowed), size), dtype=bool)
    for row, numbers in enumerate(allowed):
        if numbers is None:
            permitted[row] = True
        else:
            low, high = np.searchsorted(numbers, [start, start + size])
            permitted[row, numbers[low:high] - start] = True
    return torch.from_numpy(permitted)
