"""Formats of text files, told by their names or, where a name says nothing, by their contents."""

import codecs
import csv
import gzip
import json
import lzma
import re
import zlib
from pathlib import Path
from typing import Any

PLAIN_TEXT = (".txt", ".md")
ROWS = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".ndjson", ".parquet")
"""Files whose names say that they hold rows."""

OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
ALLOWED = "JSON lines (any name, one object a line), .json, .parquet, .csv or .tsv with a header"
_HEAD = 100_000  # bytes that tell the format
_NAME = re.compile(r"[^\W\d][\w .:/-]{0,63}")  # of a column
_ASIDE = re.compile(r"(readme|licen[cs]e|notice|copying|dataset_infos?)([._-]|$)", re.IGNORECASE)
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def is_plain(file: Path) -> bool:
    """Return whether a file is one document, not one of many rows."""
    return file.suffix.lower() in PLAIN_TEXT


def is_aside(file: Path) -> bool:
    """Return whether a file only describes others that lie with it, such as a README."""
    return bool(_ASIDE.match(file.name))


def encoding_of(start: bytes, encoding: str) -> str:
    """Return the encoding that a byte-order mark states, else the given one."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), encoding)


def row_format(file: Path) -> str | None:
    """Return parquet, lines, array, csv or tsv for a file of rows; None if it is another file."""
    name = file.name.lower().removesuffix(".gz").removesuffix(".xz")
    if name.endswith((".jsonl", ".ndjson")):
        return "lines"
    if name.endswith(".parquet"):
        return "parquet"
    try:
        with OPENERS.get(file.suffix.lower(), open)(file, "rb") as stream:
            start = stream.read(_HEAD)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error):
        return None
    text = start.decode(encoding_of(start, "utf-8-sig"), errors="replace")
    if name.endswith((".csv", ".tsv")):
        header, _, rest = text.partition("\n")
        kind = name[-3:]
        names = next(csv.reader([header], delimiter=delimiter(header, kind)), [])
        named = len({*names}) == len(names) and all(_NAME.fullmatch(one.strip()) for one in names)
        return kind if names and named and rest.strip() else None
    if name.endswith(".json") and re.match(r"\s*\[\s*\{", text):
        return "array"
    return "lines" if is_json_lines(text) else None


def delimiter(header: str, kind: str) -> str:
    """Return what separates the cells below a header."""
    return "\t" if kind == "tsv" else max(",;\t", key=header.count)


def is_json_lines(text: str) -> bool:
    """Return whether a text, or the beginning of one, has an object in its first line."""
    line, ended, _ = text.lstrip().partition("\n")
    if not re.match(r'\{\s*["}]', line):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return not ended and len(text) > _HEAD // 4  # a longer line than the beginning shows
