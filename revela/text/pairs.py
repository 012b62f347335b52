"""Pairs for Contriever: inverse cloze and independent cropping (paper, section 5 and D.1)."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from revela.common.errors import RevelaError
from revela.config.steps import Pairs
from revela.text.rows import parquet_rows, sample, write_parquet

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("query", pa.string()),
        ("positive", pa.string()),
        ("negatives", pa.list_(pa.string())),
    ]
)
"""Columns of a pair file."""

Chunk = tuple[str, str, str]
"""Corpus, document and text."""

_WORD = re.compile(r"\S+")
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+|\n+|$)")
_POOL = 50_000  # chunks that negatives are drawn from
_CROP = (0.2, 0.6)  # a crop's share of the chunk's words


@dataclass
class Counts:
    """What was made, for the manifest."""

    pairs: int = 0
    inverse_cloze: int = 0
    chunks_too_short: int = 0


def make_pairs(settings: Pairs, inputs: dict[str, Path], output: Path) -> Counts:
    """Write a pair file: each chosen chunk gives a query, a positive and negatives.

    Inverse cloze takes a sentence out of the chunk as the query, the rest is the positive;
    independent cropping draws two spans of the chunk. Negatives are spans of chunks of other
    documents, drawn from a seeded sample of all chunks.

    Raises:
        RevelaError: fewer chunks than pairs, or a single document, which leaves no negatives.
    """
    counts = Counts()
    available = sum(pq.read_metadata(inputs[name]).num_rows for name in settings.corpora)
    wanted = settings.num_pairs or available
    chunks = sample(_chunks(settings, inputs), available, wanted, settings.seed)
    size = min(_POOL, available)
    pool = list(sample(_chunks(settings, inputs), available, size, settings.seed + 1))
    if settings.negatives and len({document for _, document, _ in pool}) < 2:
        raise RevelaError("negatives need chunks of at least two documents")
    counts.pairs = write_parquet(output, SCHEMA, _pairs(settings, chunks, pool, counts))
    if not counts.pairs:
        raise RevelaError("no chunk is long enough for a pair (two words)")
    return counts


def _chunks(settings: Pairs, inputs: dict[str, Path]) -> Iterator[Chunk]:
    """Yield all chunks; documents of two corpora never coincide."""
    for name in settings.corpora:
        for row in parquet_rows(inputs[name], ["document", "text"]):
            yield name, f"{name}/{row['document']}", row["text"]


def _pairs(
    settings: Pairs, chunks: Iterator[Chunk], pool: list[Chunk], counts: Counts
) -> Iterator[dict[str, Any]]:
    choose = random.Random(settings.seed)
    for source, document, text in chunks:
        pair = None
        if choose.random() < settings.inverse_cloze:
            pair = inverse_cloze(text, choose)
            counts.inverse_cloze += pair is not None
        pair = pair or independent_crops(text, choose)
        if pair is None:
            counts.chunks_too_short += 1
            continue
        negatives: list[str] = []
        while len(negatives) < settings.negatives:
            _, other, negative = choose.choice(pool)
            if other != document:
                negatives.append(crop(negative, choose))
        query, positive = pair
        yield {"source": source, "query": query, "positive": positive, "negatives": negatives}


def inverse_cloze(text: str, choose: random.Random) -> tuple[str, str] | None:
    """Take a random sentence out of a text; None where there are not two."""
    spans = [m.span() for m in _SENTENCE.finditer(text) if m.group().strip()]
    if len(spans) < 2:
        return None
    start, end = choose.choice(spans)
    rest = (text[:start].rstrip() + " " + text[end:].lstrip()).strip()
    return text[start:end].strip(), rest


def independent_crops(text: str, choose: random.Random) -> tuple[str, str] | None:
    """Draw two spans of a text independently; None where there are not two words."""
    if len(_WORD.findall(text)) < 2:
        return None
    return crop(text, choose), crop(text, choose)


def crop(text: str, choose: random.Random) -> str:
    """Draw a span of whole words, its length uniform between a fifth and three fifths."""
    words = [match.span() for match in _WORD.finditer(text)]
    if not words:
        return text
    count = max(1, round(choose.uniform(*_CROP) * len(words)))
    first = choose.randrange(len(words) - count + 1)
    return text[words[first][0] : words[first + count - 1][1]]
