"""Embeddings of a corpus: shards on disk that a restart keeps, made on any number of devices."""

import hashlib
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.encoder import Encoder

SHARD_SIZE = 16_384


@dataclass(frozen=True)
class Passages:
    """The texts of a corpus as mteb's models read them: title and text, joined by a space."""

    corpus: Any

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, part: slice) -> list[str]:
        rows = self.corpus[part]
        titles = rows.get("title") or [""] * len(rows["text"])
        return [f"{t or ''} {x or ''}".strip() for t, x in zip(titles, rows["text"], strict=True)]


@dataclass(frozen=True)
class Shard:
    """Consecutive passages and the file of their embeddings."""

    path: Path
    texts: slice

    def load(self) -> Tensor:
        """Return the embeddings (N, D) as they are stored, mapped into memory."""
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor("embeddings")

    def is_whole(self, made_of: Callable[[], str]) -> bool:
        """Tell whether the file is there and holds what it should; delete it if it does not.

        Args:
            made_of: called where there is a file, returns what it should be made of.
        """
        if not self.path.exists():
            return False
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get("made_of") == made_of():
                    return True
            reason = "is of another model, setting or text"
        except (SafetensorError, OSError) as error:
            reason = f"cannot be read ({error})"
        print(f"{self.path} {reason}: made again")
        self.path.unlink()
        return False


def encode_corpus(
    load: Callable[[str], Encoder],
    passages: Sequence[str] | Passages,
    max_length: int,
    folder: Path,
    made_by: str,
    devices: list[str],
    shard_size: int = SHARD_SIZE,
) -> list[Shard]:
    """Encode passages into shards; those that are there already are kept.

    Args:
        load: returns the encoder on a device; called in a process of each device's own if there
            are several, so it must be picklable.
        passages: N texts.
        max_length: tokens of a passage at most.
        folder: where the shards are.
        made_by: what else the embeddings depend on (weights, encoding, precision).
        devices: such as `cpu`, `cuda:0`; shards are dealt out among them.
        shard_size: texts of a shard.

    Raises:
        RevelaError: an embedding is not finite, or a device's process died.
    """
    starts = range(0, len(passages), shard_size)
    shards = [
        Shard(folder / f"{n:05}.safetensors", slice(i, min(i + shard_size, len(passages))))
        for n, i in enumerate(starts)
    ]
    job = _Job(load, passages, max_length, f"{made_by}\n{max_length}")

    def is_there(shard: Shard) -> bool:
        return shard.is_whole(lambda: job.made_of(passages[shard.texts]))

    missing = [shard for shard in shards if not is_there(shard)]
    if len(missing) < len(shards):
        print(f"{folder}: {len(shards) - len(missing)} of {len(shards)} shards are there already")
    devices = devices[: len(missing)]
    if len(devices) == 1:
        job.encode(missing, devices[0], 0)
    elif devices:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(devices), mp_context=spawn) as pool:
            parts = [
                pool.submit(job.encode, missing[n :: len(devices)], device, n)
                for n, device in enumerate(devices)
            ]
            try:
                for part in parts:
                    part.result()
            except BrokenProcessPool as error:
                raise RevelaError(
                    "a process that encodes was killed (out of memory?); the shards that are "
                    f"finished stay in {folder}"
                ) from error
    return shards


@dataclass(frozen=True)
class _Job:
    """What the process of a device needs to know."""

    load: Callable[[str], Encoder]
    passages: Sequence[str] | Passages
    max_length: int
    made_by: str

    def made_of(self, texts: Sequence[str]) -> str:
        digest = hashlib.sha256(self.made_by.encode())
        for text in texts:
            digest.update(b"\0" + text.encode(errors="surrogatepass"))
        return digest.hexdigest()

    def encode(self, shards: list[Shard], device: str, place: int) -> None:
        encoder = self.load(device)
        total = sum(shard.texts.stop - shard.texts.start for shard in shards)
        with tqdm(total=total, desc=f"passages, {device}", position=place, mininterval=2) as bar:
            for shard in shards:
                texts = self.passages[shard.texts]
                embeddings = encoder.encode(texts, "passage", self.max_length, bar.update)
                # Half a precision's embeddings need no more on disk.
                half = encoder.dtype != torch.float32
                stored = embeddings.half() if half else embeddings
                if not bool(stored.isfinite().all()):
                    raise RevelaError("an embedding is too large for float16: use float32")
                with outputs.atomic_output(shard.path) as temporary:
                    save_file({"embeddings": stored}, temporary, {"made_of": self.made_of(texts)})
