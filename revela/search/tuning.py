"""The weight of a retriever in an index's hybrid, chosen on queries made of the index's own chunks.

They are those of `revela.evaluation.texts`: a title must find the chunks of its document, and the
first half of a chunk the second. The words of a query are never part of what it is to find, which
would favour BM25.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bm25s
from sentence_transformers import SentenceTransformer

from revela.config.evaluation import Language
from revela.evaluation.bm25 import tokenizer
from revela.evaluation.fusion import Run, choose
from revela.evaluation.texts import halves, titles
from revela.retriever.encode import encode
from revela.search.index import DEPTH, Hit, dense_hits, lexical_hits

_PASSAGES = 500  # among which a query must find its own
_QUERIES = 200  # at most half of them titles
_FEWEST = 20  # queries that a weight is chosen on
_WITHOUT = 0.5  # the weight if there are fewer


@dataclass(frozen=True)
class _Task:
    queries: list[str]
    passages: list[str]
    relevant: dict[str, dict[str, int]]  # number of a query → number of a passage → 1


class Tuning:
    """Queries made of chunks, and their answers."""

    def __init__(self, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Draw a sample of chunks, rows of `chunks.parquet`, and make queries of it."""
        draw = random.Random(0)

        def sample(items: Sequence[Any]) -> list[Any]:
            return draw.sample(items, min(_PASSAGES, len(items)))

        titled = [(title, text) for title, texts in titles(chunks) for text in texts.values()]
        self.titles = _task(sample(titled), draw, _QUERIES // 2)
        halved = [(half, rest) for half, texts in halves(sample(chunks)) for rest in texts.values()]
        of_titles = len(self.titles.queries)
        self.halves = _task(halved, draw, _QUERIES - of_titles)
        of_halves = len(self.halves.queries)
        self.chosen_on = f"{of_titles} titles and {of_halves} half chunks"
        self.enough = of_titles + of_halves >= _FEWEST

    def weight(self, encoder: SentenceTransformer, language: Language, max_length: int) -> float:
        """Return the weight of an encoder with the highest mean nDCG@10, beside BM25."""
        if not self.enough:
            return _WITHOUT
        return choose(
            (task.relevant, _bm25(task, language), {"": _dense(task, encoder, max_length)})
            for task in (self.titles, self.halves)
            if task.queries
        )[1]


def _task(pairs: list[tuple[str, str]], draw: random.Random, size: int) -> _Task:
    """Return a task of pairs of a query, empty if there is none, and a passage."""
    answers = defaultdict(list)
    for number, (query, _) in enumerate(pairs):
        if query:
            answers[query].append(number)
    queries = draw.sample(list(answers), min(size, len(answers)))
    relevant = {str(n): {str(p): 1 for p in answers[query]} for n, query in enumerate(queries)}
    return _Task(queries, [passage for _, passage in pairs], relevant)


def _dense(task: _Task, encoder: SentenceTransformer, max_length: int) -> Run:
    passages_ND = encode(encoder, task.passages, "passage", max_length)
    queries_QD = encode(encoder, task.queries, "query", max_length)
    return _run(dense_hits(queries_QD, [passages_ND], DEPTH))


def _bm25(task: _Task, language: Language) -> Run:
    words, bm25 = tokenizer(language), bm25s.BM25()
    bm25.index(words(task.passages), show_progress=False)
    return _run(lexical_hits(bm25, words(task.queries), DEPTH))


def _run(found: list[list[Hit]]) -> Run:
    return {str(query): {str(h.chunk): h.score for h in hits} for query, hits in enumerate(found)}
