"""Files that users brought: which of several names is there, and a hash of their contents."""

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from revela.common.errors import RevelaError, reading

_BLOCKS, _BLOCK_BYTES = 64, 16_384


def first_of(folder: Path, *names: str) -> list[Path]:
    """Return the file with the first name that exists, or the shards that match a pattern.

    Raises:
        RevelaError: none of them exists, or the folder cannot be read.
    """
    if not folder.is_dir():
        raise RevelaError(f"{folder}: no such folder")
    with reading(folder, "a folder"):  # `glob` passes over one without permission
        os.listdir(folder)
    for name in names:
        if files := sorted(folder.glob(name)):
            return files
    raise RevelaError(f"{folder}: no {' or '.join(names)} in it")


def digest(files: Iterable[Path]) -> str:
    """Return a hash of names and contents of files, of some blocks of those above a megabyte.

    Copies and fresh checkouts have the same hash, other weights and texts do not.
    """
    hashed = hashlib.sha256()
    for file in files:
        state = file.stat()
        hashed.update(f"{file.name} {state.st_size} ".encode())
        hashed.update(_blocks(file, state.st_size, state.st_ctime_ns))
    return hashed.hexdigest()[:12]


@functools.cache
def _blocks(file: Path, size: int, _: int) -> bytes:
    with file.open("rb") as stream:
        if size <= _BLOCKS * _BLOCK_BYTES:
            return hashlib.sha256(stream.read()).digest()
        hashed = hashlib.sha256()
        for block in range(_BLOCKS):
            stream.seek(size * block // _BLOCKS)
            hashed.update(stream.read(_BLOCK_BYTES))
        return hashed.digest()
