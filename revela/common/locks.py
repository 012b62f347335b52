"""A lock of a folder, so that two processes do not write the same files."""

import contextlib
import fcntl
from collections.abc import Iterator
from glob import iglob
from pathlib import Path

from revela.common.errors import RevelaError
from revela.common.outputs import LEDGER, remove

_LOCK = f"{LEDGER}.lock"


@contextlib.contextmanager
def locked(folder: Path, what: str, innermost: int = 0) -> Iterator[None]:
    """Hold the lock of a folder, made if needed, for a `what` such as a training.

    Folders that are empty at the end are removed: those made here, and the `innermost` ones.

    Raises:
        RevelaError: another process holds the lock, or the folder cannot be written or locked.
    """
    places = [folder, *folder.parents]
    made = places[:innermost] + [place for place in places[innermost:] if not place.exists()]
    lock = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = lock.open("w")
    except OSError as error:
        raise RevelaError(f"cannot write {folder}: {error.strerror}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RevelaError(f"{folder}: another {what} is using this folder") from error
        except OSError as error:
            needed = "the file system must be mounted with flock"
            raise RevelaError(f"cannot lock {folder}: {error.strerror}; {needed}") from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # one is not empty
                remove(lock)
                for place in filter(Path.exists, made):
                    place.rmdir()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder, or of a folder within it."""
    for lock in iglob(f"**/{_LOCK}", root_dir=folder, recursive=True):
        # Over NFS, a lock needs write access.
        with contextlib.suppress(FileNotFoundError), (folder / lock).open("r+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False
