"""`revela export` and `revela push`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

Model = Annotated[Path, typer.Argument(help="Folder of a trained retriever.")]


@app.command()
def export(model: Model, output: Annotated[Path, typer.Argument(help="Folder to write.")]) -> None:
    """Export a retriever as one sentence-transformers folder, with LoRA weights merged."""
    from revela.retriever.export import export as run

    cosine = run(model, output)
    print(f"{output}: same vectors in sentence-transformers, cosines ≥ {cosine:.6f}")


@app.command()
def push(
    model: Model,
    repository: Annotated[str, typer.Argument(metavar="REPO", help="ORGANISATION/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="Create it as private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
) -> None:
    """Upload a retriever to the Hugging Face hub; the token is read from HF_TOKEN."""
    from revela.retriever.push import push as run

    files = run(model, repository, private, dry_run)
    for name, size in files.items():
        print(f"{size:>13,}  {name}")
    print(f"{repository}: {len(files)} files", "would be uploaded" if dry_run else "uploaded")
