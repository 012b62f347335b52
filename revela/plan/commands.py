"""`revela status` and `revela usage`."""

from pathlib import Path
from typing import Annotated

import typer

from revela.common import outputs
from revela.common.errors import RevelaError

app = typer.Typer()


@app.command()
def status(results: Annotated[Path, typer.Argument()] = Path("results")) -> None:
    """Show what is running and what is done, from files alone."""
    from revela.plan.status import show

    if not results.is_dir():
        raise RevelaError(f"{results}: no such folder")
    show(results)


@app.command()
def usage(
    results: Annotated[Path, typer.Argument()] = Path("results"),
    files: Annotated[
        Path | None, typer.Option("--output", help="Files to write: CSV and Markdown.")
    ] = None,
    paper: Annotated[Path | None, typer.Option(help="CSV of the reported GPU-hours.")] = None,
) -> None:
    """Add up GPU-hours, energy and peak memory by model, from the manifests that are there."""
    from revela.plan.usage import to_csv, to_markdown, usage_rows

    rows = usage_rows(results, paper)
    print(to_csv(rows), end="")
    if files:
        outputs.write_text(files.with_suffix(".md"), to_markdown(rows))
        outputs.write_text(files.with_suffix(".csv"), to_csv(rows))
