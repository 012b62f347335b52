"""Which fields of rows hold a document's text, title and id, judged by their values."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, printable
from revela.config.text import FieldNames
from revela.text.formats import is_plain
from revela.text.rows import column_kinds, numbered_rows
from revela.text.words import word_pattern

_TEXTS = ("text", "content", "body", "contents", "passage", "document")
_TITLES, _IDS = ("title", "head", "heading", "headline", "name"), ("id", "_id", "key", "uid")
_CHARACTERS = 100_000_000  # read to judge, in all files
_BEGINNING = 2_000  # characters of a value that are judged
_PROSE_WORDS = 4  # at least
_LOWER_CASE = 0.3  # share of words: fewer in names and places
_KINDS = ("string", "list of string", "int")  # of columns
_NO_WORD = re.compile(r"(?i)\w+://|www\.|\S+@|[\da-f-]{12,}$")  # URLs, addresses, hashes
_LETTER = re.compile(r"[^\W\d_]")


@dataclass
class _Seen:
    """What was seen of a field: its values, and how many of them read as what."""

    values: int = 0
    readable: int = 0
    prose: int = 0
    characters: int = 0
    example: str = ""
    files: set[Path] = field(default_factory=set)

    def add(self, text: str) -> None:
        words = word_pattern(text[:_BEGINNING]).findall(text[:_BEGINNING])
        lettered = (word for word in words if 2 * len(_LETTER.findall(word)) >= len(word))
        kept = [word for word in lettered if not _NO_WORD.match(word)]
        readable = 2 * len(kept) >= len(words) > 0
        lower = sum(not word.lstrip("\"'([“‘«")[:1].isupper() for word in kept)
        self.values += 1
        self.readable += readable
        self.prose += readable and len(kept) >= _PROSE_WORDS and lower > _LOWER_CASE * len(kept)
        self.characters += len(text)
        self.example = self.example or printable(" ".join(text[:60].split()))


def text_of(value: Any) -> str | None:
    """Return a text, or the lines of a list of texts; None if it is neither."""
    if isinstance(value, list) and all(part is None or isinstance(part, str) for part in value):
        return "\n".join(filter(None, value))
    return value if isinstance(value, str) else None


def field_names(files: Sequence[Path], text: str | None = None) -> FieldNames:
    """Return which fields hold the text, unless it is given, a title and an id.

    A field of a usual name is the text, unless another that reads as prose is more than twice as
    long.

    Raises:
        RevelaError: no field or more than one may be the text, or a file lacks it.
    """
    if is_plain(files[0]):
        return FieldNames()
    seen: dict[str, _Seen] = defaultdict(_Seen)
    error = ""
    for file, place, row in _sampled(files):
        if isinstance(row, Exception):
            error = error or f"{place}: {row}"
        for key, value in row.items() if isinstance(row, dict) else ():
            seen[key].files.add(file)
            if content := (text_of(value) or "").strip():
                seen[key].add(content)
    if error and not seen:
        raise RevelaError(error)
    text = text or _text_field(files, seen)
    for file in files:
        here = [key for key, field in seen.items() if file in field.files]
        if here and text not in here:
            raise RevelaError(f"{file}: has no field {text!r} for the text: {', '.join(here)}")
    strings = [key for key, field in seen.items() if field.values and key != text]
    return FieldNames(text=text, title=_called(_TITLES, strings), id=_called(_IDS, [*seen]))


def _text_field(files: Sequence[Path], seen: dict[str, _Seen]) -> str:
    readable = [key for key, field in seen.items() if 2 * field.readable > field.values]
    longest = sorted(readable, key=lambda key: seen[key].characters, reverse=True)
    prose = [key for key in longest if 2 * seen[key].prose > seen[key].values]
    usual = [key for key in longest if key.lower() in _TEXTS]
    titles = [key for key in prose if key.lower() in _TITLES]
    others = [key for key in prose if key.lower() not in {*_TEXTS, *_TITLES, *_IDS}]
    if usual:
        longer = [key for key in others if seen[key].characters > 2 * seen[usual[0]].characters]
        candidates = [usual[0], *longer]
    else:
        candidates = others or titles[:1]
    if len(candidates) == 1:
        return candidates[0]
    none, several = "no field of the rows is a text", "more than one field may be the text"
    examples = {key: seen[key].example for key in candidates or seen}
    shown = ", ".join(f"{key} ({text!r})" if text else key for key, text in examples.items())
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    remedy = "name it with --field or, in a config, `fields: {text: …}`"
    problem = f"{several if candidates else none}: {shown or 'none'}"
    raise RevelaError(f"{where}: {problem}; {remedy}")


def _called(names: Sequence[str], keys: Sequence[str]) -> str | None:
    """Return the key with the first of these names."""
    return next((key for name in names for key in keys if key.lower() == name), None)


def _sampled(files: Sequence[Path]) -> Iterator[tuple[Path, str, Any]]:
    """Yield rows of each file with their places: the first thousand, then ever fewer."""
    for file in files:
        kinds, size = column_kinds(file), 0  # other kinds may have values that Python has not
        judged = [name for name, kind in kinds.items() if kind.startswith(_KINDS)]
        for number, (place, row) in enumerate(numbered_rows(file, judged or None), start=1):
            if number % 10 ** max(0, len(str(number)) - 3) == 0:
                yield file, place, row
            values = row.values() if isinstance(row, dict) else ()
            size += sum(len(value) for value in values if isinstance(value, str | list))
            if size > _CHARACTERS / len(files):
                break
