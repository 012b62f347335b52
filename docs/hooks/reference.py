"""The reference pages: every key of a config from the pydantic models, every command from typer."""

import json
import re
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from revela.cli import app
from revela.config import Config
from revela.config.keys import type_of

CONFIG_HEAD = """\
# Every key of a config

A config is a YAML file with the sections below. Each entry of a section describes one result and is
named by its key. Any entry can have `base:`, and an experiment also `grid:` and `seeds:` ([an
ablation](../ablation.md)). Unknown keys are errors. `revela check CONFIG` checks a file, and
`revela settings CONFIG SECTION NAME` prints an entry without keys that have their default values.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add both pages."""
    for name, text in (("config", config_page()), ("commands", commands_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def config_page() -> str:
    """Return each section with the classes of its entries, then the classes that those hold."""
    schema = Config.model_json_schema()
    classes = schema["$defs"]
    described: dict[str, None] = {}
    parts = [CONFIG_HEAD]
    for section, field in schema["properties"].items():
        own = re.findall(r"\w+", type_of(field["additionalProperties"]))
        parts += [f"## {section}", *(_class(name, classes) for name in own)]
        described |= dict.fromkeys(own)
    rest = sorted(classes.keys() - described.keys())
    return "\n\n".join([*parts, "## Settings inside others", *(_class(n, classes) for n in rest)])


def _class(name: str, classes: dict[str, Any]) -> str:
    """Return a class as a heading, its docstring, and a table of its keys."""
    head = "| Key | Value | Default | |\n|---|---|---|---|"
    rows = [
        f"| `{key}` | {_linked(type_of(field), classes)} | {_default(field)} "
        f"| {_cell(field.get('description', ''))} |"
        for key, field in classes[name]["properties"].items()
    ]
    return "\n".join([f"### {name}", "", classes[name]["description"], "", head, *rows])


def _linked(kind: str, classes: dict[str, Any]) -> str:
    link = re.sub(r"\w+", lambda m: f"[{m[0]}](#{m[0].lower()})" if m[0] in classes else m[0], kind)
    return _cell(link)


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default and isinstance(default, dict):
        return "its defaults"
    return f"`{json.dumps(default)}`" if "default" in field else "required"


def _cell(text: str) -> str:
    """Escape what ends a cell or begins a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """Return what `--help` says of each command; keys of JSON settings stand on the other page."""
    group: Any = typer.main.get_command(app)
    page = get_docs_for_click(obj=group, ctx=typer.Context(group), name="revela")
    names = [
        f"- [`{name}`](#revela-{name}): {(command.help or '').splitlines()[0]}"
        for name, command in group.commands.items()
    ]
    # typer's own list of commands cuts their descriptions.
    details = page[page.index("## `revela ") :]
    details = details.replace("listed below", "listed in [the reference](config.md)")
    return "\n".join(["# Every command", "", *names, "", details])
