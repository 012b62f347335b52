"""`texts`: two retrieval tasks built from the chunks of a corpus, for texts without queries."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError
from revela.config.evaluation import TextsBenchmark
from revela.evaluation.benchmarks import write_collection
from revela.text.corpora import place
from revela.text.rows import parquet_rows
from revela.text.words import word_pattern

_MIN_WORDS = 8  # minimum length of a chunk that is split into halves
_TITLE_WORDS = 12  # maximum length of a first line that counts as a title

Chunk = Mapping[str, Any]
"""A row of a chunk file; those of a document are consecutive."""


def write_task(settings: TextsBenchmark, task: str, chunks: Path, folder: Path) -> dict[str, int]:
    """Write a task in BEIR layout; return its sizes.

    Queries that match several documents or chunks equally are dropped, and those outside of the
    benchmark's share; it is an error if none remain. The documents do not depend on them.
    """
    kind = settings.tasks[task]
    pairs = list(CUTS[kind](parquet_rows(chunks)))
    times = Counter(query for query, _ in pairs)
    documents = {name: text for _, texts in pairs for name, text in texts.items()}
    low, high = settings.queries
    unique = [
        (query, list(texts))
        for query, texts in pairs
        if query and times[query] == 1 and low <= place(query) < high
    ]
    random.Random(settings.seed).shuffle(unique)
    asked = [(f"q:{names[0]}", query, names) for query, names in unique[: settings.max_queries]]
    if not asked:
        what = f"half of a chunk of {_MIN_WORDS} words" if kind == "halves" else "title"
        none = f"gives no queries for {task!r}: no {what} occurs just once"
        raise RevelaError(f"corpus {settings.corpus!r} {none}")
    return write_collection(
        folder,
        documents=[(name, "", text) for name, text in documents.items()],
        queries=[(name, query) for name, query, _ in asked],
        judgements=[(name, relevant, 1) for name, _, names in asked for relevant in names],
    )


def halves(chunks: Iterable[Chunk]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the first half of each chunk, and the second half by its id."""
    for number, row in enumerate(chunks):
        words = list(word_pattern(row["text"]).finditer(row["text"]))
        if len(words) >= _MIN_WORDS:
            middle = words[len(words) // 2].start()
            yield row["text"][:middle].strip(), {f"chunk-{number}": row["text"][middle:]}


def titles(chunks: Iterable[Chunk]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the title of each document, empty if it has none, and its chunks without it."""
    for _, group in itertools.groupby(enumerate(chunks), key=lambda item: item[1]["document"]):
        rows = list(group)
        texts = {f"chunk-{number}": row["text"] for number, row in rows}
        title, first = rows[0][1]["title"], next(iter(texts))
        heading, rest = _split_title(texts[first])
        # A text often begins with its title, which would be found by any retriever.
        if heading and (not title or _same(title, heading)):
            title, texts[first] = title or heading, rest
        texts = {name: text for name, text in texts.items() if text}
        if texts:
            yield title, texts


def _same(title: str, heading: str) -> bool:
    """Return whether one of two headings, such as `Name - Site` and `Name`, begins the other."""
    one, other = sorted((title.casefold(), heading.casefold()), key=len)
    return other.startswith(one)


def _split_title(text: str) -> tuple[str, str]:
    """Return a text's first line if it may be a title, else an empty string, and the rest."""
    line, _, rest = text.partition("\n")
    if 0 < len(word_pattern(line).findall(line)) <= _TITLE_WORDS:
        return line.strip("# "), rest.strip()
    return "", text


CUTS = {"halves": halves, "titles": titles}
"""How queries are cut from chunks, by the kind of a task."""
