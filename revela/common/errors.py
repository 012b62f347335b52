"""The one error that a user is meant to see."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path


class RevelaError(Exception):
    """A mistake in the input, the settings or the surroundings, told in one line.

    The command line prints the message without a traceback and exits with code 1.
    """


def unknown_name(what: str, name: str, allowed: Iterable[str]) -> str:
    """Say that `name` is not one of `allowed`, nearest names first."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f"unknown {what} {name!r}; did you mean {' or '.join(map(repr, near))}?"
    return f"unknown {what} {name!r}; allowed: {', '.join(names) or 'none is defined'}"


def check_name(where: str, what: str, name: str, allowed: Iterable[str]) -> None:
    """Raise a `RevelaError` at `where` if `name` is not one of `allowed`."""
    if name not in allowed:
        raise RevelaError(f"{where}: {unknown_name(what, name, allowed)}")


@contextlib.contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Begin the message of a `RevelaError` with where it was raised, such as a key or a file."""
    try:
        yield
    except RevelaError as error:
        raise RevelaError(f"{where}: {error}") from error


@contextlib.contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Name the file in the errors of reading it, as one that is not `what`."""
    try:
        yield
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RevelaError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:
        raise RevelaError(f"{path}: not {what}: {' '.join(str(error).split())}") from error
