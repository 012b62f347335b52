"""`revela settings` and `revela check`."""

import json
from pathlib import Path

import typer

from revela.common.errors import RevelaError, unknown_name
from revela.config.file import load_config

app = typer.Typer()


@app.command()
def settings(config: Path, section: str, name: str) -> None:
    """Print the settings of one entry of a config as the JSON that its step expects."""
    loaded = load_config(config)
    sections = dict(loaded)
    if section not in sections:
        raise RevelaError(f"{config}: {unknown_name('section', section, sections)}")
    if name not in sections[section]:
        raise RevelaError(f"{config}: {unknown_name('entry', name, sections[section])}")
    entry = loaded.table(name) if section == "tables" else sections[section][name]
    print(json.dumps(entry.model_dump(mode="json"), sort_keys=True))


@app.command()
def check(config: Path) -> None:
    """Check a config: keys, values and every name that one entry uses of another."""
    checked = load_config(config)
    counts = {name: len(getattr(checked, name)) for name in type(checked).model_fields}
    print(f"{config}: fine:", ", ".join(f"{n} {name}" for name, n in counts.items() if n))
