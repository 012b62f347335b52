"""Pairs for Contriever: inverse cloze and independent crops (paper, section 5 and appendix C.1)."""

import functools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from revela.common.errors import RevelaError
from revela.config.text import Pairs
from revela.text.chunking import SCHEMA as CHUNKS
from revela.text.rows import count_rows, parquet_rows, take, write_parquet
from revela.text.words import SENTENCE_END, word_pattern

_TEXT = pa.string()
SCHEMA = pa.schema(
    {"source": _TEXT, "query": _TEXT, "positive": _TEXT, "negatives": pa.list_(_TEXT)}
)
"""Columns of a pair file."""

# A sentence ends with its line, or with a mark and closing quotes before a space.
_SENTENCE = re.compile(rf"""\S.*?(?:[.!?]["'”’»)\]]*(?=\s)|{SENTENCE_END}|$)""", re.MULTILINE)
_POOL = 50_000  # chunks that negatives are drawn from
_CROP = (0.2, 0.6)  # length of a crop relative to its chunk's


class Chunk(NamedTuple):
    """A chunk, and the text of its document."""

    source: str
    document: str
    text: str
    whole: str


Maker = Callable[[Chunk, random.Random], tuple[str, str] | None]
"""Makes a query and a positive from a chunk; None if it is too short."""


def make_pairs(settings: Pairs, inputs: dict[str, Path], output: Path) -> dict[str, Any]:
    """Write a pair file and return its counts: each chunk gives a query, a positive and negatives.

    In inverse cloze a sentence removed from the chunk is the query and the remainder is the
    positive; independent cropping draws two spans of the chunk's document. Negatives are made in
    the same way as the positive (remainders or spans) from a seeded sample of chunks of other
    documents, so that only their content differs.

    Raises:
        RevelaError: fewer chunks than pairs, or a single document, which leaves no negatives.
    """
    counts: Counter[str] = Counter(inverse_cloze=0, chunks_too_short=0)
    available = sum(count_rows(inputs[name]) for name in settings.corpora)
    wanted = settings.num_pairs or available
    chunks = take(_chunks(settings, inputs), available, wanted, settings.seed)
    pool = take(_chunks(settings, inputs), available, min(_POOL, available), settings.seed + 1)
    written = write_parquet(output, SCHEMA, _pairs(settings, chunks, pool, counts))
    if not written:
        raise RevelaError("no chunk is long enough for a pair (two words)")
    drawn = Counter(row["source"] for row in parquet_rows(output, ["source"]))
    return {"pairs": written, **counts, "drawn": {**drawn}}


def _chunks(settings: Pairs, inputs: dict[str, Path]) -> Iterator[Chunk]:
    """Yield all chunks with their documents; documents of two corpora never coincide."""
    for name in settings.corpora:
        rows = parquet_rows(inputs[name], ["document", "text"], CHUNKS)
        for document, group in groupby(rows, key=itemgetter("document")):
            texts = [row["text"] for row in group]
            whole = " ".join(texts)
            for text in texts:
                yield Chunk(name, f"{name}/{document}", text, whole)


def _pairs(
    settings: Pairs, chunks: Iterator[Chunk], pool: Iterator[Chunk], counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    choose = random.Random(settings.seed)
    # The texts that negatives are drawn from, for each way to make a pair, with their documents.
    positives: dict[Maker, list[tuple[str, str]]] = {inverse_cloze: [], independent_crops: []}
    for chunk in pool:
        for way, made in positives.items():
            if pair := way(chunk, choose):
                made.append((chunk.document, pair[1]))
    for chunk in chunks:
        cloze = choose.random() < settings.inverse_cloze and inverse_cloze(chunk, choose)
        pair = cloze or independent_crops(chunk, choose)
        if pair is None:
            counts["chunks_too_short"] += 1
            continue
        counts["inverse_cloze"] += bool(cloze)
        crops = positives[independent_crops]
        texts = positives[inverse_cloze] if cloze else crops
        others = _negatives(chunk.document, texts, crops, settings.negatives, choose)
        query, positive = pair
        yield {"source": chunk.source, "query": query, "positive": positive, "negatives": others}


def _negatives(
    document: str,
    pool: list[tuple[str, str]],
    crops: list[tuple[str, str]],
    count: int,
    choose: random.Random,
) -> list[str]:
    """Draw texts of other documents, or their crops if few chunks have two sentences."""
    draws = (choose.choice(pool) for _ in range(100 * count if pool else 0))
    negatives = list(islice((text for source, text in draws if source != document), count))
    if len(negatives) < count:  # nearly all of the pool is from this document
        others = [text for source, text in pool if source != document]
        others = others or [text for source, text in crops if source != document]
        if not others:
            raise RevelaError("negatives need chunks of at least two documents")
        negatives = choose.choices(others, k=count)
    return negatives


def inverse_cloze(chunk: Chunk, choose: random.Random) -> tuple[str, str] | None:
    """Remove a random sentence from a chunk; None if it has fewer than two."""
    text = chunk.text
    spans = [m.span() for m in _SENTENCE.finditer(text) if any(map(str.isalnum, m.group()))]
    if len(spans) < 2:
        return None
    start, end = choose.choice(spans)
    rest = (text[:start].rstrip() + " " + text[end:].lstrip()).strip()
    return text[start:end].strip(), rest


@functools.lru_cache(maxsize=1)  # the chunks of a document are consecutive
def _words(text: str) -> tuple[re.Pattern[str], list[tuple[int, int]]]:
    pattern = word_pattern(text)
    return pattern, [match.span() for match in pattern.finditer(text)]


def independent_crops(chunk: Chunk, choose: random.Random) -> tuple[str, str] | None:
    """Draw two spans of a chunk's document; None if it has fewer than two words.

    Their lengths are 20 to 60% of the chunk's; they may lie anywhere in the document.
    """
    pattern, words = _words(chunk.whole)
    if len(words) < 2:
        return None
    of_chunk = len(pattern.findall(chunk.text))

    def crop() -> str:
        count = max(1, round(choose.uniform(*_CROP) * of_chunk))
        first = choose.randrange(len(words) - count + 1)
        return chunk.whole[words[first][0] : words[first + count - 1][1]]

    return crop(), crop()
