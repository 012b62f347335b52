"""Reads a configuration file: YAML without duplicate keys, expanded and checked."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, ValidationError, create_model

from revela.common.errors import RevelaError, errors_at, reading
from revela.config.check import check_references
from revela.config.expand import expand
from revela.config.file import Config
from revela.config.names import legal_name
from revela.config.problems import first_problem
from revela.config.settings import Settings


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which rejects duplicate keys of a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping, its keys in order."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                return super().construct_mapping(node, deep)  # which rejects it
            if key in seen:
                problem = f"duplicate key {key!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Return a decimal number; YAML would read 0100 as 64, and 1:30 as 90."""
    if not re.fullmatch(r"[-+]?(0|[1-9][0-9_]*)", node.value):
        problem = f"{node.value} is not a decimal number; quote it if it is a text"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        RevelaError: it cannot be read, is not YAML, or has a duplicate key; with line and column.
    """
    try:
        with reading(path, "YAML"):
            return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise RevelaError(f"{where}: not valid YAML: {problem}") from error


_Entries = dict[Annotated[str, BeforeValidator(legal_name)], dict[Any, Any]]
_SECTIONS: Any = {section: (_Entries, {}) for section in Config.model_fields}
_Written = create_model("_Written", __base__=Settings, **_SECTIONS)
"""A configuration as it is written, before shorthands are expanded and entries checked."""


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        RevelaError: it cannot be read, has an unknown key, a bad value or an unknown name; the
            message gives the file, the key, the value and what is allowed.
    """
    return parse_config(read_yaml(path), str(path))


def parse_config(raw: Any, source: str) -> Config:
    """Check a configuration that was already read from `source`; see `load_config`."""
    if not isinstance(raw, dict):
        sections = ", ".join(Config.model_fields)
        raise RevelaError(f"{source}: expected sections: {sections}; got {type(raw).__name__}")
    with errors_at(source):
        try:
            raw = expand(dict(_Written.model_validate(raw)))
            config = Config.model_validate(raw)
        except ValidationError as error:
            raise RevelaError(first_problem(error, raw)) from error
        check_references(config)
    return config
