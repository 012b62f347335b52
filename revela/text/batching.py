"""Batches: B chunks that attend to each other (paper, section 4.1)."""

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from revela.common.errors import RevelaError, unknown_name
from revela.config.text import Batches
from revela.text import chunking
from revela.text.rows import (
    check_columns,
    count_rows,
    json_lines,
    parquet_rows,
    take,
    write_parquet,
)

_TEXTS = pa.list_(pa.string())
SCHEMA = pa.schema({"source": pa.string(), "texts": _TEXTS, "documents": _TEXTS})
"""Columns of a batch file: the corpus its chunks come from, its B chunks in document order, the ids
of their documents (null in ready-made batches)."""

_CHUNK = ["text", "document"]


@dataclass(frozen=True)
class Counts:
    """Counts of batching, for the manifest."""

    batches: int
    chunks_dropped: int  # of incomplete last batches
    batches_before_sampling: int
    drawn: dict[str, int]  # batches of each source


def make_batches(settings: Batches, inputs: dict[str, Path], output: Path) -> Counts:
    """Write a batch file (Parquet).

    Its inputs are chunk files by corpus name, batch files by set name if those are sampled, or the
    files of a hub data set.

    Raises:
        RevelaError: too few chunks for one batch, fewer batches than requested, or a ready-made
            batch of the wrong size.
    """
    size, dropped = settings.batch_size, 0
    if settings.sample_from:
        batches = _sampled(settings, inputs)
        available = sum(settings.sample_from.values())
        if settings.oversized == "split":
            available = sum(
                count * len(next(read_batches(inputs[name]))["texts"]) // size
                for name, count in settings.sample_from.items()
            )
    elif settings.corpora:
        chunks = {str(name): count_rows(inputs[name]) for name in settings.corpora}
        for name, count in chunks.items():
            if count < size:
                few = f"{count} chunks are too few for one batch of {size}"
                raise RevelaError(f"corpus {name!r}: {few}")
        of_each = {name: count // size for name, count in chunks.items()}
        available = sum(of_each.values())
        dropped = sum(count % size for count in chunks.values())
        used = of_each | _left_to_sample(settings, of_each)
        batches = chain.from_iterable(
            take(_grouped(name, settings, inputs), count, used[name], settings.seed)
            for name, count in of_each.items()
        )
    else:
        files = [Path(settings.file)] if settings.file else [*inputs.values()]
        batches = chain.from_iterable(read_jsonl(file, settings) for file in files)
        available = sum(1 for file in files for _ in read_jsonl(file, settings))
    if settings.num_batches is not None and not settings.sampled:
        batches = take(batches, available, settings.num_batches, settings.seed)
    drawn: Counter[str] = Counter()
    written = write_parquet(output, SCHEMA, _counted(batches, drawn))
    if not written:
        raise RevelaError("there are no batches")
    return Counts(written, dropped, available, {**drawn})


def _left_to_sample(settings: Batches, of_each: dict[str, int]) -> dict[str, int]:
    """Return how many batches of the sampled corpus, if there is one, the others leave to it."""
    if not settings.sampled or not isinstance(settings.num_batches, int):
        return {}
    others = sum(of_each.values()) - of_each[settings.sampled]
    if others >= settings.num_batches:
        few = f"num_batches {settings.num_batches}: the corpora other than {settings.sampled!r}"
        raise RevelaError(f"{few} have {others} batches")
    return {settings.sampled: settings.num_batches - others}


def _counted(batches: Iterable[dict[str, Any]], drawn: Counter[str]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        drawn[batch["source"]] += 1
        yield batch


def read_batches(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch file, with the columns of `SCHEMA`."""
    return parquet_rows(path, SCHEMA.names, SCHEMA, optional=["documents"])


def group_consecutive(chunks: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield consecutive chunks in groups of `size`; an incomplete last group is dropped.

    A group may span documents, as in the paper.
    """
    stream = iter(chunks)
    while len(group := list(islice(stream, size))) == size:
        yield group


def group_runs(chunks: Path, size: int, run_length: int, seed: int) -> Iterator[list[Any]]:
    """Yield groups of `size` chunks: runs of consecutive ones from random places.

    No run is used twice. The chunks are read through a memory map of a temporary copy.
    """
    import datasets

    next(parquet_rows(chunks, _CHUNK), None)  # an error if it lacks one of them
    with tempfile.TemporaryDirectory(prefix=".runs.", dir=chunks.parent) as cache:
        rows = datasets.Dataset.from_parquet(str(chunks), cache_dir=cache, columns=_CHUNK)
        check_columns(chunks, rows.data, chunking.SCHEMA)
        rows = rows.with_format("arrow")
        starts = list(range(0, len(rows) - run_length + 1, run_length))
        random.Random(seed).shuffle(starts)
        for first in group_consecutive(starts, size // run_length):
            yield rows[[start + n for start in first for n in range(run_length)]].to_pylist()


def _grouped(name: str, settings: Batches, inputs: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Yield the batches of a corpus."""
    size = settings.batch_size
    if settings.run_length is None:
        chunks = parquet_rows(inputs[name], _CHUNK, chunking.SCHEMA)
        groups = group_consecutive(chunks, size)
    else:
        groups = group_runs(inputs[name], size, settings.run_length, settings.seed)
    for group in groups:
        yield {
            "source": name,
            "texts": [chunk["text"] for chunk in group],
            "documents": [chunk["document"] for chunk in group],
        }


def _sampled(settings: Batches, inputs: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Yield a sample of each batch set, one set after the other; training shuffles the order.

    Batches of a multiple of `batch_size` are split, or truncated to their first chunks.
    """
    size = settings.batch_size
    for name, count in settings.sample_from.items():
        available = count_rows(inputs[name])
        for row in take(read_batches(inputs[name]), available, count, settings.seed):
            texts, documents = row["texts"], row["documents"]
            if len(texts) % size:
                uneven = f"{len(texts)}, not a multiple of batch_size {size}"
                raise RevelaError(f"batch set {name!r} has batches of {uneven}")
            used = size if settings.oversized == "truncate" else len(texts)
            for first in range(0, used, size):
                part = slice(first, first + size)
                ids = documents and documents[part]
                yield {"source": row["source"], "texts": texts[part], "documents": ids}


def read_jsonl(path: Path, settings: Batches) -> Iterator[dict[str, Any]]:
    """Yield ready-made batches: JSON lines, each a list of texts or `{src, text: [texts]}`.

    The corpus is named as in the configuration, which must know each `src`; otherwise `first_half`
    of an experiment would silently not apply to it.

    Raises:
        RevelaError: a line is neither, a batch has the wrong size, or its `src` is unknown.
    """
    known = {name: name for name in (settings.source, *settings.sources.values())}
    known |= settings.sources | {"": settings.source}
    for place, row in json_lines(path):
        if isinstance(row, Exception):
            raise RevelaError(f"{place}: {row}")
        fields = row if isinstance(row, dict) else {"text": row}
        source, texts = str(fields.get("src") or ""), fields.get("text")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RevelaError(f"{place}: expected a list of texts or {{src, text: [texts]}}")
        if not all(text.strip() for text in texts):
            raise RevelaError(f"{place}: a text is empty")
        if len(texts) != settings.batch_size:
            raise RevelaError(f"{place}: {len(texts)} texts, not batch_size {settings.batch_size}")
        if source not in known:
            unknown = unknown_name("src", source, filter(None, known))
            advice = f"name its corpus: `sources: {{{source}: <corpus>}}`"
            raise RevelaError(f"{place}: {unknown}; {advice}")
        yield {"source": known[source], "texts": texts, "documents": None}
