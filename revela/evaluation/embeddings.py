"""Embeddings of a corpus: shards on disk, computed on any number of devices; restarts skip them."""

import hashlib
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm.auto import tqdm

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.workers import end_with_parent
from revela.retriever.encode import encode_rows, prepare_for_ragged_batches, tokenize

_SHARD_SIZES = {"cpu": 1_024, "cuda": 16_384}  # a killed run loses a shard on each device
_ROWS_AT_A_TIME = 16_384
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Passages:
    """The texts of a corpus in mteb's form: title and text, joined by a space."""

    corpus: Any

    def __len__(self) -> int:
        return len(self.corpus)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _ROWS_AT_A_TIME):
            yield from self[start : start + _ROWS_AT_A_TIME]

    def __getitem__(self, part: slice) -> list[str]:
        rows = self.corpus[part]
        titles = rows.get("title") or [""] * len(rows["text"])
        return list(map(passage, titles, rows["text"]))


def passage(title: str | None, text: str | None) -> str:
    """Return the text of a document that is encoded."""
    return f"{title or ''} {text or ''}".strip()


@dataclass(frozen=True)
class Shard:
    """A file of embeddings, and the passages of a corpus that they belong to."""

    path: Path
    passages: Sequence[int]  # N numbers
    rows: list[int] | None = None  # of the file, N; None: all, in order

    def load(self) -> Tensor:
        """Return the embeddings (N, D) in their stored precision."""
        embeddings = load_file(self.path)["embeddings"]
        return embeddings if self.rows is None else embeddings[self.rows]


def encode_corpus(
    load: Callable[[str], SentenceTransformer],
    passages: Sequence[str] | Passages,
    max_length: int,
    folder: Path,
    made_by: str,
    devices: list[str],
    shard_size: int | None = None,
) -> list[Shard]:
    """Encode N passages of at most `max_length` tokens into shards; existing shards are skipped.

    `load` returns the encoder on a device, such as `cuda:0`; several devices share the shards, each
    in a process of its own. `made_by` says what the embeddings depend on besides the texts.

    Raises:
        RevelaError: an embedding is not finite, a process died, or the folder has other files.
    """
    outputs.claim(folder)
    numbers, size = range(len(passages)), shard_size or _SHARD_SIZES[devices[0].split(":")[0]]
    shards = [
        Shard(folder / f"{n:05}.safetensors", numbers[start : start + size])
        for n, start in enumerate(numbers[::size])
    ]
    job = _Job(load, passages, max_length, made_by)
    missing = [shard for shard in shards if not job.is_done(shard)]
    if len(missing) < len(shards):
        print(f"{folder}: {len(shards) - len(missing)} of {len(shards)} shards exist")
    count = min(len(devices), len(missing))
    if count == 1:
        job.encode(missing, devices[0], 0)
    elif count:
        shares = [missing[place::count] for place in range(count)]
        spawn = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(count, spawn, end_with_parent) as pool:
                list(pool.map(job.encode, shares, devices, range(count)))
        except BrokenProcessPool as error:
            killed = "an encoding process was killed (out of memory?)"
            raise RevelaError(f"{killed}; finished shards are kept in {folder}") from error
    return shards


def find_shards(files: Iterable[Path], passages: Iterable[str], made_by: str) -> list[Shard]:
    """Return the shards of other corpora that hold embeddings of passages, and of which ones."""
    wanted: dict[bytes, list[int]] = defaultdict(list)
    for number, text in enumerate(passages):
        wanted[_digest(text)].append(number)
    shards: list[Shard] = []
    for path in files:
        digests = _stored_digests(path, made_by)
        rows = enumerate(map(bytes, digests.numpy()) if digests is not None else ())
        pairs = [(number, row) for row, digest in rows for number in wanted.pop(digest, ())]
        if pairs:
            shards.append(Shard(path, *map(list, zip(*pairs, strict=True))))
    return shards


def _stored_digests(path: Path, made_by: str) -> Tensor | None:
    """Return the digests (N, 16) of a shard's texts; None if it is damaged or of other settings."""
    try:
        with safe_open(path, framework="pt") as file:
            same = (file.metadata() or {}).get("made_by") == made_by
            return file.get_tensor("digests") if same else None
    except (SafetensorError, OSError):
        return None


def _digests(texts: Iterable[str]) -> Tensor:
    joined = bytearray().join(map(_digest, texts))
    return torch.frombuffer(joined, dtype=torch.uint8).reshape(-1, _DIGEST_BYTES)


def _digest(text: str) -> bytes:
    encoded = text.encode(errors="surrogatepass")
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()


def _ahead(function: Callable[[Shard], Any], shards: list[Shard]) -> Iterator[Any]:
    """Yield a function's result on each shard; the next one is computed in a thread meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(function, shards[0])
        for upcoming in shards[1:]:
            done, running = running.result(), thread.submit(function, upcoming)
            yield done
        yield running.result()


@dataclass(frozen=True)
class _Job:
    """What a device's process needs."""

    load: Callable[[str], SentenceTransformer]
    passages: Sequence[str] | Passages
    max_length: int
    made_by: str

    def texts(self, shard: Shard) -> list[str]:
        return list(self.passages[shard.passages[0] : shard.passages[-1] + 1])

    def is_done(self, shard: Shard) -> bool:
        stored = _stored_digests(shard.path, self.made_by)
        return stored is not None and stored.equal(_digests(self.texts(shard)))

    def encode(self, shards: list[Shard], device: str, place: int) -> None:
        """Encode shards on a device, with a progress bar at a line of the terminal."""
        prepare_for_ragged_batches()
        encoder = self.load(device)
        total = sum(len(shard.passages) for shard in shards)
        with tqdm(total=total, desc=f"passages, {device}", position=place, mininterval=2) as bar:

            def read(shard: Shard) -> tuple[list[str], list[list[int]]]:
                texts = self.texts(shard)
                return texts, tokenize(encoder, texts, "passage", self.max_length)

            def write(shard: Shard, texts: list[str], embeddings: torch.Tensor) -> None:
                # Embeddings in half precision are stored in half precision.
                half = encoder[0].model.dtype != torch.float32
                stored = embeddings.half() if half else embeddings
                if not bool(stored.isfinite().all()):
                    raise RevelaError("an embedding is too large for float16: use float32")
                tensors = {"embeddings": stored, "digests": _digests(texts)}
                with outputs.atomic_output(shard.path) as temporary:
                    save_file(tensors, temporary, {"made_by": self.made_by})

            with ThreadPoolExecutor(1) as thread:
                written: list[Future[None]] = []
                for shard, (texts, rows) in zip(shards, _ahead(read, shards), strict=True):
                    embeddings = encode_rows(encoder, rows, texts, "passage", bar.update)
                    for last in written[-1:]:  # meanwhile at most one shard waits
                        last.result()
                    written.append(thread.submit(write, shard, texts, embeddings))
                written[-1].result()
