"""`revela new`, `check`, `run`, `status` and `clean`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from revela.start import status
from revela.start.check import check
from revela.start.run import run

app = typer.Typer()


@app.command()
def new(
    texts: Annotated[Path, typer.Argument(help="A folder or file of texts.")],
    output: Annotated[
        Path | None, typer.Option(help="File to write; named after the texts by default.")
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder or hub name; the first is adapted, others are compared. By default "
            "gte-modernbert-base, without a GPU all-MiniLM-L6-v2."
        ),
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(help="Folder of a test collection in BEIR layout, for a further table."),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field of the rows that holds the text, if not told by them.")
    ] = None,
) -> None:
    """Write a config that adapts an encoder to your texts and tells whether that is worth it."""
    from revela.start.new import entry_name, write_config

    output = output or Path(f"{entry_name(Path(os.path.abspath(texts)).stem)}.yaml")
    print(write_config(texts, output, encoder or [], collection, field))
    print(f"{output}: read it, then: revela run {output}")


app.command("check")(check)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
app.command("status")(status.show)


@app.command()
def clean(
    models: Annotated[list[str], typer.Argument(help="Names of experiments or models.")],
    results: Path = Path("results"),
) -> None:
    """Remove the checkpoints and embedding shards of unfinished models."""
    for model in models:
        print(f"{model}: {status.clean(results, model) / 1e9:.1f} GB removed")
