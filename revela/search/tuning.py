"""The weight of a retriever in an index's hybrid, chosen on queries made of the index's own chunks.

A document's title must find its chunks, which are there without it, and the first half of a chunk
must find the second: the words of a query are never part of what it is to find, which would favour
BM25.
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
from revela.evaluation.texts import split_title
from revela.retriever.encode import encode
from revela.text.words import word_pattern

_PASSAGES = 500  # among which a query must find its own
_QUERIES = 200  # at most half of them titles
_FEWEST = 20  # queries that a weight is chosen on
_WITHOUT = 0.5  # the weight if there are fewer
_MIN_WORDS = 8  # of a chunk that is halved
_DEPTH = 100  # as in a search


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
        titles = {
            row["document"]: row["title"] or split_title(row["text"])[0]
            for row in chunks
            if not row["position"]
        }

        def sample() -> list[Mapping[str, Any]]:
            return draw.sample(chunks, min(_PASSAGES, len(chunks)))

        def without_title(row: Mapping[str, Any]) -> str:
            own_line = not row["position"] and not row["title"]
            return split_title(row["text"])[1] if own_line else row["text"]

        titled = [(titles.get(row["document"], ""), without_title(row)) for row in sample()]
        self.titles = _task(titled, draw, _QUERIES // 2)
        halves = [_halves(row["text"]) for row in sample()]
        self.halves = _task(halves, draw, _QUERIES - len(self.titles.queries))
        counts = (len(task.queries) for task in (self.titles, self.halves))
        self.chosen_on = "{} titles and {} half chunks".format(*counts)
        self.enough = len(self.titles.queries) + len(self.halves.queries) >= _FEWEST

    def weight(self, encoder: SentenceTransformer, language: Language, max_length: int) -> float:
        """Return the weight of an encoder with the highest mean nDCG@10, beside BM25."""
        if not self.enough:
            return _WITHOUT
        tasks = [task for task in (self.titles, self.halves) if task.queries]
        return choose(
            (task.relevant, _bm25(task, language), {"": _dense(task, encoder, max_length)})
            for task in tasks
        )[1]


def _task(pairs: list[tuple[str, str]], draw: random.Random, size: int) -> _Task:
    """Return a task of pairs of a query, empty if there is none, and a passage."""
    pairs = [(query, passage) for query, passage in pairs if passage]
    answers = defaultdict(list)
    for number, (query, _) in enumerate(pairs):
        if query:
            answers[query].append(number)
    queries = draw.sample(list(answers), min(size, len(answers)))
    relevant = {str(n): {str(p): 1 for p in answers[query]} for n, query in enumerate(queries)}
    return _Task(queries, [passage for _, passage in pairs], relevant)


def _halves(text: str) -> tuple[str, str]:
    words = list(word_pattern(text).finditer(text))
    if len(words) < _MIN_WORDS:
        return "", text
    middle = words[len(words) // 2].start()
    return text[:middle].strip(), text[middle:]


def _dense(task: _Task, encoder: SentenceTransformer, max_length: int) -> Run:
    queries_QD = encode(encoder, task.queries, "query", max_length)
    passages_ND = encode(encoder, task.passages, "passage", max_length)
    best = (queries_QD @ passages_ND.T).topk(min(_DEPTH, len(passages_ND)))
    return _run(best.indices.tolist(), best.values.tolist())


def _bm25(task: _Task, language: Language) -> Run:
    words, bm25 = tokenizer(language), bm25s.BM25()
    bm25.index(words(task.passages), show_progress=False)
    depth = min(_DEPTH, len(task.passages))
    return _run(*bm25.retrieve(words(task.queries), k=depth, show_progress=False))


def _run(numbers: Any, scores: Any) -> Run:
    return {
        str(query): {str(n): float(s) for n, s in zip(*best, strict=True)}
        for query, best in enumerate(zip(numbers, scores, strict=True))
    }
