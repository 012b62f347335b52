"""`revela settings` and `revela schema`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from revela.common.errors import check_name
from revela.config.read import load_config
from revela.config.schema import written_schema

app = typer.Typer()


@app.command()
def settings(
    config: Path,
    section: Annotated[str, typer.Argument(help="A section of the config, or `tasks`.")],
    name: Annotated[str, typer.Argument(help="An entry of the section.")],
) -> None:
    """Print the settings of one entry of a config as the JSON that its step expects."""
    checked = load_config(config)
    sections = [*type(checked).model_fields, "tasks"]
    check_name(str(config), "section", section, sections)
    known = checked.evaluated if section == "models" else getattr(checked, section)
    check_name(str(config), "entry", name, known)
    print(checked.resolved(section, name).dump())


@app.command()
def schema() -> None:
    """Print the JSON schema of configs, which lets an editor complete keys and mark mistakes.

    A config names it in its first line: `# yaml-language-server: $schema=workflow/schema.json`.
    """
    print(json.dumps(written_schema(), indent=2, ensure_ascii=False))
