"""Reads YAML files without duplicate keys."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from revela.common.errors import RevelaError, reading


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
