"""Describes problems in settings, in one line."""

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from revela.common.errors import unknown_name

_NO_MAPPING = {"dict_type", "model_type", "model_attributes_type", "tuple_type"}
"""Pydantic's errors where keys with values were expected."""


def first_problem(error: ValidationError, raw: Any) -> str:
    """Return the first problem in one line: key, what is wrong, the value."""
    problem = error.errors(include_url=False)[0]
    keys: list[str] = []
    value: Any = raw
    of_a_key = problem["loc"][-1:] == ("[key]",)
    for part in problem["loc"][:-2] if of_a_key else problem["loc"]:
        # The path also contains union members, which are not keys of the file.
        in_mapping = isinstance(value, dict) and part in value
        if in_mapping or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
            keys.append(str(part))
            value = value[part]
    value = problem["input"] if of_a_key else value
    message = problem["msg"].removeprefix("Value error, ")
    last = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "missing":
        keys, message = [*keys, last], "missing"
    elif problem["type"].startswith("union_tag"):
        context = problem["ctx"]
        keys.append(context["discriminator"].strip("'"))
        allowed = re.findall("'(.+?)'", context.get("expected_tags", ""))
        message = unknown_name("value", context["tag"], allowed) if allowed else "missing"
    elif problem["type"] in _NO_MAPPING:
        message = f"expected keys with values; got {value!r}"
    elif problem["type"] != "value_error" and not isinstance(value, dict):
        message = f"{message}; got {value!r}"
    # Mistakes in an entry are repeated in the entries that have it as their base.
    distinct = {(p["loc"][2:], p["msg"]) for p in error.errors()}
    more = f" (and {len(distinct) - 1} more)" if len(distinct) > 1 else ""
    return f"{'.'.join(keys)}: {message}{more}".removeprefix(": ")


def unknown_key(key: str, settings: type[BaseModel]) -> str:
    """Return the message for an unknown key, with where it belongs."""
    for group, kinds in nested(settings).items():
        if any(key in kind.model_fields for kind in kinds):
            return f"unknown key {key!r}; it belongs to {group!r}"
    return unknown_name("key", key, settings.model_fields)


def nested(settings: type[BaseModel]) -> dict[str, list[type[BaseModel]]]:
    """Return the keys that hold nested settings, each with the possible classes."""
    groups = {}
    for key, field in settings.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        if classes := [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]:
            groups[key] = classes
    return groups
