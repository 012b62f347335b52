"""Batches: B chunks that attend to each other (paper, section 4.1)."""

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from revela.common.errors import RevelaError, unknown_name
from revela.config.text import Batches
from revela.text import chunking, rows

_TEXTS = pa.list_(pa.string())
SCHEMA = pa.schema({"source": pa.string(), "texts": _TEXTS, "documents": _TEXTS})
"""Columns of a batch file: the corpus its chunks come from, its B chunks in document order, the ids
of their documents (null in ready-made batches)."""

_CHUNK = ["text", "document"]


def make_batches(settings: Batches, inputs: dict[str, Path], output: Path) -> dict[str, Any]:
    """Write a batch file (Parquet) and return its counts, for the manifest.

    Its inputs are chunk files by corpus name, batch files by set name if those are sampled, or the
    files of a hub data set.

    Raises:
        RevelaError: too few chunks for one batch, fewer batches than requested, or a ready-made
            batch of the wrong size.
    """
    size = settings.batch_size
    chunks = {str(name): rows.count_rows(inputs[name]) for name in settings.corpora}
    if chunks:
        batches, available = _of_corpora(settings, inputs, chunks)
    else:
        batches, available = _ready_made(settings, inputs)
    if settings.num_batches is not None and not settings.sampled:
        batches = rows.take(batches, available, settings.num_batches, settings.seed)
    if not (written := rows.write_parquet(output, SCHEMA, batches)):
        raise RevelaError("there are no batches")
    return {
        "batches": written,
        "chunks_dropped": sum(count % size for count in chunks.values()),  # of incomplete batches
        "batches_before_sampling": available,
        "drawn": {**Counter(row["source"] for row in rows.parquet_rows(output, ["source"]))},
    }


def _of_corpora(
    settings: Batches, inputs: dict[str, Path], chunks: dict[str, int]
) -> tuple[Iterator[dict[str, Any]], int]:
    """Return the batches of all corpora, of the sampled one as many as the others leave to it.

    The number is that before sampling.
    """
    size, wanted = settings.batch_size, settings.num_batches
    for name, count in chunks.items():
        if count < size:
            few = f"{count} chunks are too few for one batch of {size}"
            raise RevelaError(f"corpus {name!r}: {few}")
    of_each = {name: count // size for name, count in chunks.items()}
    used, available = {**of_each}, sum(of_each.values())
    if settings.sampled and isinstance(wanted, int):
        others = available - of_each[settings.sampled]
        if others >= wanted:
            few = f"num_batches {wanted}: the corpora other than {settings.sampled!r}"
            raise RevelaError(f"{few} have {others} batches")
        used[settings.sampled] = wanted - others
    batches = chain.from_iterable(
        rows.take(_grouped(name, settings, inputs), count, used[name], settings.seed)
        for name, count in of_each.items()
    )
    return batches, available


def _ready_made(settings: Batches, inputs: dict[str, Path]) -> tuple[Iterator[dict[str, Any]], int]:
    """Return batches of other sets or of files, and their number."""
    if settings.sample_from:
        available = sum(settings.sample_from.values())
        if settings.oversized == "split":
            available = sum(
                count * len(next(read_batches(inputs[name]))["texts"]) // settings.batch_size
                for name, count in settings.sample_from.items()
            )
        return _sampled(settings, inputs), available
    files = [Path(settings.file)] if settings.file else [*inputs.values()]
    available = sum(1 for file in files for _ in read_jsonl(file, settings))
    return chain.from_iterable(read_jsonl(file, settings) for file in files), available


def read_batches(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch file, with the columns of `SCHEMA`."""
    return rows.parquet_rows(path, SCHEMA.names, SCHEMA, optional=["documents"])


def group_consecutive(chunks: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield consecutive chunks in groups of `size`; an incomplete last group is dropped.

    A group may span documents, as in the paper.
    """
    stream = iter(chunks)
    while len(group := list(islice(stream, size))) == size:
        yield group


def group_runs(chunks: Path, size: int, run_length: int, seed: int) -> Iterator[list[Any]]:
    """Yield groups of `size` chunks: runs of consecutive ones from random places, each used once.

    The chunks are read through a memory map of a temporary copy.
    """
    import datasets

    next(rows.parquet_rows(chunks, _CHUNK), None)  # an error if it lacks one of them
    with tempfile.TemporaryDirectory(prefix=".runs.", dir=chunks.parent) as cache:
        stored = datasets.Dataset.from_parquet(str(chunks), cache_dir=cache, columns=_CHUNK)
        rows.check_columns(chunks, stored.data, chunking.SCHEMA)
        stored = stored.with_format("arrow")
        starts = list(range(0, len(stored) - run_length + 1, run_length))
        random.Random(seed).shuffle(starts)
        for first in group_consecutive(starts, size // run_length):
            yield stored[[start + n for start in first for n in range(run_length)]].to_pylist()


def _grouped(name: str, settings: Batches, inputs: dict[str, Path]) -> Iterator[dict[str, Any]]:
    size = settings.batch_size
    if settings.run_length is None:
        chunks = rows.parquet_rows(inputs[name], _CHUNK, chunking.SCHEMA)
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
        available = rows.count_rows(inputs[name])
        for row in rows.take(read_batches(inputs[name]), available, count, settings.seed):
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

    Raises:
        RevelaError: a line is neither, a batch has the wrong size, or the configuration does not
            know its `src`, so that `first_half` of an experiment would not apply to it.
    """
    known = {name: name for name in (settings.source, *settings.sources.values())}
    known |= settings.sources | {"": settings.source}
    for place, row in rows.json_lines(path):
        if isinstance(row, Exception):
            raise RevelaError(f"{place}: {row}")
        fields = row if isinstance(row, dict) else {"text": row}
        source, texts = str(fields.get("src") or ""), fields.get("text")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RevelaError(f"{place}: expected a list of texts or {{src, text: [texts]}}")
        if not all(map(str.strip, texts)):
            raise RevelaError(f"{place}: a text is empty")
        if len(texts) != settings.batch_size:
            raise RevelaError(f"{place}: {len(texts)} texts, not batch_size {settings.batch_size}")
        if source not in known:
            unknown = unknown_name("src", source, filter(None, known))
            advice = f"name its corpus: `sources: {{{source}: <corpus>}}`"
            raise RevelaError(f"{place}: {unknown}; {advice}")
        yield {"source": known[source], "texts": texts, "documents": None}
