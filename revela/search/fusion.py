"""Fuses two rankings into one: BM25's and a retriever's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Ranking = Literal["hybrid", "dense", "bm25"]
Fusion = Literal["weighted-sum", "reciprocal-rank"]
DENSE_WEIGHT = 0.2  # of the weighted sum; `python -m bench.search.fusion` compares alternatives
_RANK_OFFSET = 60  # of reciprocal rank fusion (Cormack et al., 2009)


@dataclass(frozen=True)
class Hit:
    """A search result: the number of a chunk in the index, and its score."""

    chunk: int
    score: float


def fuse(
    dense: Sequence[Hit], bm25: Sequence[Hit], fusion: Fusion, dense_weight: float = DENSE_WEIGHT
) -> list[Hit]:
    """Return the chunks of two rankings, best first, by a combined score.

    `weighted-sum`: each ranking's scores are scaled to [0, 1]; the score is BM25's plus
    `dense_weight` times the dense one. `reciprocal-rank`: the sum of 1 / (60 + rank). A chunk that
    is not in a ranking scores 0 there.
    """
    scores: dict[int, float] = {}
    for hits, weight in ((bm25, 1.0), (dense, dense_weight)):
        if fusion == "reciprocal-rank":
            parts = [1 / (_RANK_OFFSET + rank) for rank in range(1, len(hits) + 1)]
        else:
            parts = [weight * share for share in _scaled([hit.score for hit in hits])]
        for hit, part in zip(hits, parts, strict=True):
            scores[hit.chunk] = scores.get(hit.chunk, 0.0) + part
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(chunk, score) for chunk, score in best]


def _scaled(scores: Sequence[float]) -> list[float]:
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
