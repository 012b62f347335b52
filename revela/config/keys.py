"""The keys of settings, as the `--help` of a command lists them."""

import json
from typing import Any

from pydantic import TypeAdapter


def print_keys(option: str, kind: Any) -> None:
    """Print the keys of the settings that an option takes, a table for each class of settings."""
    from rich.console import Console
    from rich.table import Table

    schema = TypeAdapter(kind).json_schema()
    classes = schema.get("$defs", {})
    if "properties" in schema:
        classes = {schema["title"]: schema} | classes
    first = [type_of(choice) for choice in schema.get("oneOf", [])]
    console = Console(markup=False, highlight=False)
    console.print(f" {option} takes {type_of(schema)}")
    for name in dict.fromkeys([*first, *classes]):
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        for key, field in classes[name]["properties"].items():
            table.add_row(f"   {key}", _type_and_default(field), field.get("description", ""))
        console.print(f"\n {name}: {classes[name]['description'].splitlines()[0]}")
        console.print(table)


def _type_and_default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return f"{type_of(field)}, required"
    default = field["default"]
    nested = default and isinstance(default, dict)
    return f"{type_of(field)} = {'{…}' if nested else json.dumps(default)}"


def type_of(field: dict[str, Any]) -> str:
    """Return what a field of a JSON schema allows."""
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "const" in field or "enum" in field:
        return " | ".join(map(json.dumps, field.get("enum") or [field["const"]]))
    if choices := field.get("anyOf") or field.get("oneOf"):
        return " | ".join(map(type_of, choices))
    if "prefixItems" in field:
        return f"[{', '.join(map(type_of, field['prefixItems']))}]"
    if "items" in field:
        return f"list of {type_of(field['items'])}"
    if field.get("type") == "object":
        # A mapping whose keys have a pattern has the type of its values here.
        patterns = field.get("patternProperties", {}).values()
        values = next(iter(patterns), field.get("additionalProperties"))
        return f"mapping to {type_of(values)}" if values else field["title"]
    limits = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    return field.get("type", "anything") + "".join(
        f" {limits[k]} {field[k]:g}" for k in limits if k in field
    )
