"""Batches: B chunks that attend to each other (paper, section 4.1)."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from revela.common.errors import RevelaError
from revela.config.steps import Batches
from revela.text.corpora import json_lines

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("texts", pa.list_(pa.string())),
        ("documents", pa.list_(pa.string())),
    ]
)
"""Columns of a batch file: the corpus its chunks come from, its B chunks in document order, the id
of each one's document (null in ready-made batches)."""

T = TypeVar("T")
Chunk = tuple[str, str]
"""A chunk's text and the id of its document."""

_ROWS = 1024  # batches written or read at a time


@dataclass
class Counts:
    """What batching did, for the manifest."""

    batches: int = 0
    chunks_dropped: int = 0  # of incomplete last batches
    batches_before_sampling: int = 0


def make_batches(settings: Batches, inputs: dict[str, Path], output: Path) -> Counts:
    """Write a batch file.

    Args:
        settings: where batches come from and how many are kept.
        inputs: chunk files by corpus name, or batch files by set name when mixing.
        output: the Parquet file to write.

    Raises:
        RevelaError: too few chunks for one batch, fewer batches than are to be sampled, or a
            ready-made batch of another size.
    """
    counts = Counts()
    if settings.sample_from:
        batches: Iterator[dict[str, Any]] = _mixed(settings, inputs)
        available = sum(
            count * _batch_size(inputs[name]) // settings.batch_size
            for name, count in settings.sample_from.items()
        )
    elif settings.corpora:
        sizes = {name: pq.read_metadata(inputs[name]).num_rows for name in settings.corpora}
        available = sum(size // settings.batch_size for size in sizes.values())
        counts.chunks_dropped = sum(size % settings.batch_size for size in sizes.values())
        if not available:
            raise RevelaError(
                f"corpora {', '.join(settings.corpora)}: {sum(sizes.values())} chunks are too few "
                f"for one batch of {settings.batch_size}"
            )
        batches = (
            {
                "source": name,
                "texts": [text for text, _ in chunks],
                "documents": [document for _, document in chunks],
            }
            for name in settings.corpora
            for chunks in _grouped(inputs[name], settings)
        )
    else:
        path = Path(settings.file) if settings.file else _download(settings)
        batches = read_jsonl(path, settings.batch_size)
        available = sum(1 for _ in read_jsonl(path, settings.batch_size))
    counts.batches_before_sampling = available
    if settings.num_batches is not None:
        batches = sample(batches, available, settings.num_batches, settings.seed)
    with pq.ParquetWriter(output, SCHEMA, compression="zstd") as writer:
        while rows := list(islice(batches, _ROWS)):
            for row in rows:
                row["source"] = row["source"] or settings.source
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
            counts.batches += len(rows)
    if not counts.batches:
        raise RevelaError("there is no batch")
    return counts


def read_chunks(chunks: Path) -> Iterator[Chunk]:
    """Yield the chunks of a chunk file in order."""
    for rows in pq.ParquetFile(chunks).iter_batches(8192, columns=["text", "document"]):
        yield from zip(*(rows[name].to_pylist() for name in ("text", "document")), strict=True)


def group_consecutive(chunks: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield consecutive chunks in groups of `size`; an incomplete last group is dropped.

    A group may span documents, as in the paper.
    """
    stream = iter(chunks)
    while len(group := list(islice(stream, size))) == size:
        yield group


def _grouped(chunks: Path, settings: Batches) -> Iterator[list[Chunk]]:
    if settings.run_length is None:
        return group_consecutive(read_chunks(chunks), settings.batch_size)
    return group_runs(chunks, settings.batch_size, settings.run_length, settings.seed)


def group_runs(chunks: Path, size: int, run_length: int, seed: int) -> Iterator[list[Chunk]]:
    """Yield groups of `size` chunks: runs of consecutive ones from random places.

    No run is used twice. The chunks are read through a memory map, not into memory.
    """
    rows = datasets.load_dataset("parquet", data_files=str(chunks), split="train")
    starts = list(range(0, len(rows) - run_length + 1, run_length))
    random.Random(seed).shuffle(starts)
    runs = size // run_length
    for first in range(0, len(starts) - runs + 1, runs):
        places = [start + n for start in starts[first : first + runs] for n in range(run_length)]
        found = rows[places]
        yield list(zip(found["text"], found["document"], strict=True))


def sample(items: Iterable[T], available: int, count: int, seed: int) -> Iterator[T]:
    """Yield `count` of `available` items, drawn without replacement, in their own order.

    Raises:
        RevelaError: fewer are available.
    """
    if count > available:
        raise RevelaError(f"cannot sample {count} batches: there are only {available}")
    chosen = sorted(random.Random(seed).sample(range(available), count))
    return _at(items, chosen)


def _at(items: Iterable[T], indices: list[int]) -> Iterator[T]:
    wanted = iter(indices)
    following = next(wanted, None)
    for index, item in enumerate(items):
        if following is None:
            return
        if index == following:
            yield item
            following = next(wanted, None)


def _mixed(settings: Batches, inputs: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Yield a sample of each batch set, one set after the other; training shuffles the order.

    Batches of a multiple of `batch_size` are split: smaller batches of the same chunks.
    """
    for name, count in settings.sample_from.items():
        available = pq.read_metadata(inputs[name]).num_rows
        for row in sample(read_batches(inputs[name]), available, count, settings.seed):
            texts, size = row["texts"], settings.batch_size
            if len(texts) % size:
                raise RevelaError(
                    f"batch set {name!r} has batches of {len(texts)}, "
                    f"not of batch_size {size} or a multiple"
                )
            for first in range(0, len(texts), size):
                part = slice(first, first + size)
                documents = row.get("documents")
                yield {
                    "source": row["source"],
                    "texts": texts[part],
                    "documents": documents and documents[part],
                }


def _batch_size(path: Path) -> int:
    return len(next(read_batches(path))["texts"])


def read_batches(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch file as `SCHEMA` names them."""
    for rows in pq.ParquetFile(path).iter_batches(_ROWS):
        yield from rows.to_pylist()


# ---------------------------------------------------------------------------- the authors' format


def read_jsonl(path: Path, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield ready-made batches: JSON lines, each a list of texts or `{src, text: [texts]}`.

    Raises:
        RevelaError: a line is neither, or a batch has another size; with file and line.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror}") from error
    with stream:
        for place, row in json_lines(stream, str(path)):
            if isinstance(row, Exception):
                raise RevelaError(f"{place}: {row}")
            source, texts = (
                (row.get("src", ""), row.get("text")) if isinstance(row, dict) else ("", row)
            )
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise RevelaError(f"{place}: expected a list of texts or {{src, text: [texts]}}")
            if len(texts) != batch_size:
                raise RevelaError(f"{place}: {len(texts)} texts, not batch_size {batch_size}")
            yield {"source": source, "texts": texts}


def write_jsonl(batches: Iterable[dict[str, Any]], output: Path) -> int:
    """Write batches as JSON lines `{src, text: [texts]}`; return how many."""
    count = 0
    with output.open("w", encoding="utf-8") as stream:
        for row in batches:
            line = {"src": row["source"], "text": row["texts"]}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def _download(settings: Batches) -> Path:
    """Fetch the one JSON-lines file of a hub data set."""
    import huggingface_hub

    from revela.common.hub import explain

    name = str(settings.hub)
    try:
        files = huggingface_hub.list_repo_files(name, repo_type="dataset")
        lines = [file for file in files if file.endswith((".jsonl", ".jsonl.gz"))]
        if len(lines) != 1:
            raise RevelaError(f"data set {name!r}: expected one .jsonl file, found {lines}")
        return Path(huggingface_hub.hf_hub_download(name, lines[0], repo_type="dataset"))
    except RevelaError:
        raise
    except Exception as error:
        raise RevelaError(explain("data set", name, error)) from error
