"""Files of one text each, without their front matter, the settings at the beginning."""

import io
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from revela.common.errors import reading
from revela.text.formats import encoding_of, is_json_lines
from revela.text.rows import REMEDY

_BLOCK = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.S | re.M)
_KEY = re.compile(r"[\w.-]+[ \t]*[:=]")
_TITLE = re.compile(r"^title[ \t]*[:=](.*)$", re.M)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


def read_plain(file: Path, encoding: str) -> tuple[str, str]:
    """Return the title in a file's front matter, else an empty string, and its text.

    Raises:
        ValueError: it is no text.
    """
    with reading(file, "a text"):
        content = file.read_bytes()
    encoding = encoding_of(content, encoding)
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except UnicodeError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"not {encoding}: {reason}; {REMEDY}") from error
    if text.startswith("%PDF-") or text.count("\0") > len(text) / 100:
        raise ValueError(f"not a text: PDF or binary; {REMEDY}")
    if is_json_lines(text):
        raise ValueError("holds JSON lines: rename it to .jsonl")
    return split_front_matter(text)


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the title that a text's front matter names, else an empty string, and the text below.

    Front matter is YAML between lines of `---` or TOML between lines of `+++`.
    """
    block = _BLOCK.match(text)
    if not block:
        return "", text
    try:
        is_toml = block[1] == "+++"
        settings: Any = tomllib.loads(block[2]) if is_toml else yaml.load(block[2], _LOADER)
        if not isinstance(settings, dict):
            return "", text
        title = settings.get("title")
    except (ValueError, yaml.YAMLError):  # such as a title with a colon and without quotes
        if not _KEY.match(block[2].lstrip()):
            return "", text
        found = _TITLE.search(block[2])
        title = found and found[1].strip(" \t\"'")
    plain = "" if title is None or isinstance(title, dict | list) else str(title).strip()
    return plain, text[block.end() :].lstrip("\n")
