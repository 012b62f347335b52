"""`revela export`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

Model = Annotated[Path, typer.Argument(help="Folder of a trained retriever.")]


@app.command()
def export(model: Model, output: Annotated[Path, typer.Argument(help="Folder to write.")]) -> None:
    """Write a retriever as one folder for sentence-transformers, LoRA merged into the backbone."""
    from revela.release.merge import export as run

    cosines = run(model, output)
    print(f"{output}: as here in sentence-transformers, cosines ≥ {min(cosines.values()):.6f}")
