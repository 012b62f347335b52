"""The exception for errors that are shown to users, and helpers that raise it."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

_SHOWN = 30  # maximum number of allowed names in a message


class RevelaError(Exception):
    """A mistake in the input, the settings or the environment, as one line.

    The command line prints the message without a traceback and exits with code 1.
    """


def unknown_name(what: str, name: str, allowed: Iterable[str]) -> str:
    """Say that `name` is not one of `allowed`, nearest names first."""
    names = sorted(set(allowed))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f"unknown {what} {name!r}; did you mean {' or '.join(map(repr, near))}?"
    shown = ", ".join(names[:_SHOWN]) or "none"
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"unknown {what} {name!r}; allowed: {shown}{more}"


def check_name(where: str, what: str, name: str, allowed: Iterable[str]) -> None:
    """Raise a `RevelaError` at `where` if `name` is not one of `allowed`."""
    if name not in allowed:
        raise RevelaError(f"{where}: {unknown_name(what, name, allowed)}")


def printable(line: str) -> str:
    """Return a line without control characters, which a terminal would obey."""
    return "".join(char for char in line if char.isprintable())


@contextlib.contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Prefix the message of a `RevelaError` with its location, such as a key or a file."""
    try:
        yield
    except RevelaError as error:
        raise RevelaError(f"{where}: {error}") from error


@contextlib.contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Raise errors of reading or parsing a file as a `RevelaError`: "<path>: not <what>: …"."""
    try:
        yield
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RevelaError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except KeyError as error:
        raise RevelaError(f"{path}: not {what}: missing {error}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise RevelaError(f"{path}: not {what}: {' '.join(str(error).split())}") from error
