"""Tables, listings, figures and pages from measured scores, compared with the paper's figures."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from revela.common.errors import RevelaError, reading
from revela.common.outputs import atomic_output, write_text
from revela.config.read import load_config
from revela.config.report import AnyFigure, Listing, Table
from revela.step import command, files_option

app = typer.Typer()

Scores = Annotated[
    Path, typer.Option(help="Folder with `<model>/<task>.json` and `.queries.csv` files.")
]
Files = Annotated[Path, files_option(".csv", ".md", ".tex")]
Drawings = Annotated[Path, files_option(".png", ".pdf")]


@command(app)
def table(settings: Table, scores: Scores, files: Files) -> None:
    """Compile a table from scores and reported figures: CSV, Markdown, LaTeX.

    Also writes `<output>_significance`: confidence intervals and tests, CSV and Markdown.
    """
    from revela.report import significance, tables

    frame = tables.compile_table(settings, scores)
    analysis = significance.analyse(settings, scores)
    _write(
        files.with_name(f"{files.stem}_significance.csv"),
        md=tables.analysis_to_markdown(settings, analysis),
        csv=tables.analysis_to_csv(analysis),
    )
    _write(
        files,
        md=tables.to_markdown(settings, frame, analysis),
        tex=tables.to_latex(settings, frame, analysis),
        csv=tables.to_csv(frame),
    )
    for line in tables.gaps(settings, frame):
        print(line)


@command(app)
def compare(settings: Table, scores: Scores, files: Files) -> None:
    """Compare a table's scores with the reported ones, with verdicts: CSV, Markdown."""
    from revela.report import reported, tables
    from revela.report.render import markdown, with_digits

    frame = reported.compare(settings, tables.measured_figures(settings, scores))
    texts = with_digits(frame, dict.fromkeys(frame.select_dtypes("number"), 1))
    _write(files, md=markdown(texts, settings.caption), csv=tables.to_csv(frame))


@app.command()
def verify(comparisons: list[Path]) -> None:
    """Check comparisons (CSV files of `compare`); fail unless every figure is reproduced."""
    import pandas as pd

    for path in comparisons:
        with reading(path, "a comparison"):
            lines = pd.read_csv(path, keep_default_na=False, na_values=[""])
            off = (lines["verdict"] != "reproduced").sum()
        print(lines.to_string(index=False, float_format="{:.1f}".format))
        if off:
            raise RevelaError(f"{path}: {off} of {len(lines)} figures are not reproduced")


@app.command()
def check_paper(config: Path) -> None:
    """Recompute the reported means of a config's tables and print those that disagree."""
    from revela.report.reported import check_means

    checked = load_config(config)
    for name in checked.tables:
        table = checked.table(name)
        means = check_means(table)
        for system, mean in means[means["adds_up"].isin(["rounding", "no"])].iterrows():
            line = "{printed:.1f}, recomputed {recomputed:.1f}".format_map(mean)
            note = " (rounding)" if mean["adds_up"] == "rounding" else ""
            print(f"{name}: {system}: {table.mean} printed {line}{note}")


@command(app)
def listing(settings: Listing, inputs: dict[str, Path], files: Files) -> None:
    """Write a table of text: CSV, Markdown, LaTeX."""
    from revela.report import listings

    rows = listings.listed(settings, inputs)
    _write(
        files,
        md=listings.to_markdown(settings, rows),
        tex=listings.to_latex(settings, rows),
        csv=listings.to_csv(settings, rows),
    )


@command(app)
def figure(settings: AnyFigure, inputs: dict[str, Path], files: Drawings) -> None:
    """Draw a figure from training logs (experiment=log.jsonl), scores or tables: PDF, PNG."""
    from revela.report import figures

    for kind in ("png", "pdf"):
        with atomic_output(files.with_suffix(f".{kind}")) as temporary:
            figures.save(figures.draw(settings, inputs), temporary, kind)


@app.command()
def show(tables: Annotated[list[Path], typer.Argument(help="Tables, in any format.")]) -> None:
    """Print compiled tables to the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=None if sys.stdout.isatty() else 120)
    for path in (table.parent / f"{table.stem}.md" for table in tables):
        if not path.exists():
            raise RevelaError(f"{path}: no such file")
        console.print(Markdown(path.read_text(encoding="utf-8")))


@app.command()
def report(
    config: Path,
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write the results of a config as one HTML page: tables, figures, queries that differ."""
    from revela.report.page import write_page

    write_text(output, write_page(load_config(config), config.name))
    print(output)


@app.command()
def usage(
    results: Annotated[Path, typer.Argument(exists=True, file_okay=False)] = Path("results"),
    files: Annotated[Path | None, files_option(".csv", ".md")] = None,
    paper: Annotated[Path | None, typer.Option(help="CSV of reported figures.")] = None,
) -> None:
    """Summarise data, GPU-hours and peak memory of trainings, from the manifests in `results/`."""
    from revela.report.usage import to_markdown
    from revela.report.usage import usage as summarise

    table = summarise(results, paper)
    text = table.to_csv(float_format="%.6g")
    print(text, end="")
    if files:
        _write(files, md=to_markdown(table), csv=text)


@app.command()
def ranking(
    folder: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    runs: Annotated[list[Path], typer.Argument(help="TREC runs.")],
    query: Annotated[str | None, typer.Option(help="Id of the query; first by default.")] = None,
    depth: Annotated[int, typer.Option(min=1, help="Documents per run.")] = 3,
    split: Annotated[str, typer.Option(help="Split of the collection's judgements.")] = "test",
) -> None:
    """Print a query of a collection and the top documents of some runs, relevant ones marked."""
    from revela.report.ranking import first_ranked

    print(first_ranked(folder, runs, query, depth, split))


def _write(files: Path, **texts: str) -> None:
    """Write each text to the path with its format's suffix."""
    for suffix, text in texts.items():
        write_text(files.with_suffix(f".{suffix}"), text)
