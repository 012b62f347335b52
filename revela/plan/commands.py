"""`revela new`, `run`, `status`, `clean`, `usage` and `cost`."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from revela.common import outputs
from revela.config.file import Config
from revela.plan import status
from revela.plan.run import run
from revela.plan.status import Results
from revela.step import command

app = typer.Typer()


@app.command()
def new(
    texts: Annotated[Path, typer.Argument(help="A folder or file of texts.")],
    output: Annotated[
        Path | None, typer.Option(help="File to write; named after the texts by default.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name; SmolLM2-135M by default, without a GPU data/backbones/5m."
        ),
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(help="Folder of a test collection in BEIR layout, as a further task."),
    ] = None,
) -> None:
    """Write a config that trains a retriever on your texts and evaluates it on held-out ones."""
    from revela.plan.new import write_config

    name = re.sub(r"[^\w.-]+", "-", Path(os.path.abspath(texts)).stem).strip("-") or "texts"
    output = output or Path(f"{name}.yaml")
    print(write_config(texts, output, backbone, collection))
    print(f"{output}: read it, then: revela run {output}")


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


@app.command()
def usage(
    results: Results = Path("results"),
    files: Annotated[
        Path | None, typer.Option("--output", help="Files to write: CSV and Markdown.")
    ] = None,
    paper: Annotated[Path | None, typer.Option(help="CSV of reported GPU-hours.")] = None,
) -> None:
    """Summarise GPU-hours, energy and peak memory by model, from the manifests in `results/`."""
    from revela.plan.usage import summed, to_markdown

    table = summed(results, paper)
    text = table.to_csv(float_format="%.4g")
    print(text, end="")
    if files:
        outputs.write_text(files.with_suffix(".md"), to_markdown(table))
        outputs.write_text(files.with_suffix(".csv"), text)


@command(app)
def cost(
    settings: Config,
    files: Annotated[Path, typer.Option("--output", help="Files to write: CSV, Markdown, LaTeX.")],
    known: Annotated[
        Path, typer.Option(exists=True, help="Folder with corpora.csv and models.json.")
    ],
    results: Path = Path("results"),
) -> None:
    """Compare the cost of trainings with what a paper reports: CSV, Markdown, LaTeX.

    Also writes `<output>_claims.csv`: the paper's claims about cost, each with a verdict.
    """
    from revela.plan.training_cost import check_claims, render, training_costs

    for entry in settings.costs.values():
        costs = training_costs(settings, entry, results, known)
        claims = check_claims(entry, costs)
        markdown, latex = render(entry, costs, claims)
        outputs.write_text(files.with_name(f"{files.stem}_claims.csv"), claims.to_csv(index=False))
        outputs.write_text(files.with_suffix(".md"), markdown)
        outputs.write_text(files.with_suffix(".tex"), latex)
        outputs.write_text(files.with_suffix(".csv"), costs.to_csv(index=False))
