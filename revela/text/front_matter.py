"""Front matter: the settings at the beginning of a Markdown file, which are not text."""

import re
import tomllib
from typing import Any

import yaml

_BLOCK = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.S | re.M)
_KEY = re.compile(r"[\w.-]+[ \t]*[:=]")
_TITLE = re.compile(r"^title[ \t]*[:=](.*)$", re.M)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the title that a text's front matter names, else an empty string, and the text below.

    Front matter is YAML between lines of `---` or TOML between lines of `+++`, at the very
    beginning; anything else between such lines is text.
    """
    block = _BLOCK.match(text)
    if not block:
        return "", text
    try:
        settings: Any = (tomllib.loads if block[1] == "+++" else _yaml)(block[2])
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


def _yaml(text: str) -> Any:
    return yaml.load(text, _LOADER)
