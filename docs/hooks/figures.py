"""Every cell of the paper's tables: its command, the printed figure, the figure measured here."""

import math
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from revela.config import load_config, paths
from revela.config.report import Row, Table
from revela.report.reported import compare
from revela.report.tables import measured_figures

ROOT = Path(__file__).parents[2]
HEAD = """\
# Every figure of the paper

Each table below is one of `config.yaml`, with the printed figures of the paper. "Measured" is what the
checkout that built this page has in `results/scores`; "–" means that it has not measured the cell. Put
the path behind `snakemake --cores 8`, or a profile, to make a cell with all that it needs. A mean is
recomputed from the printed figures if it was printed otherwise. [Reproducing a
table](reproducing.md) explains the verdicts.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, "figures.md", content=figures_page()))
    return files


def figures_page() -> str:
    """Return a section for each table of the paper, with a folded part for each system."""
    paper = load_config(ROOT / "config.yaml")
    parts = [HEAD]
    for name, entry in paper.tables.items():
        if entry.reported:
            table = paper.table(name)
            made = paths.made("tables", name)
            parts += [
                f"## {name}",
                table.caption,
                f"`snakemake --cores 8 {made}`",
                *_systems(table),
            ]
    return "\n\n".join(parts)


def _systems(table: Table) -> list[str]:
    """Return a folded part for each system that the paper prints."""
    lines = compare(table, measured_figures(table, ROOT / "results/scores"))
    printed = [(table.names()[n], row) for n, row in enumerate(table.rows) if row.reported]
    return [_system(name, row, table, lines.loc[[name]]) for name, row in printed]


def _system(name: str, row: Row, table: Table, lines: Any) -> str:
    tasks = dict(table.columns)
    rows = ["| | Printed | Measured | Verdict | Made by |", "|---|---:|---:|---|---|"]
    for line in lines.to_dict("records"):
        made = [paths.scores(model, task) for model in row.model for task in _tasks(tasks, line)]
        rows.append(
            f"| {line['task']} | {_figure(line['printed'])}{_recomputed(line)} "
            f"| {_figure(line['measured'])} | {line['verdict']} | {_made_by(made)} |"
        )
    return f'??? quote "{name}"\n\n' + "\n".join(f"    {text}" for text in rows)


def _tasks(columns: dict[str, list[str]], line: dict[str, Any]) -> list[str]:
    return [entry.partition(":")[0] for entry in columns.get(line["task"], [])]


def _made_by(made: list[str]) -> str:
    if not made:
        return ""
    return f"`{made[0]}`" if len(made) == 1 else f"`{made[0]}` and {len(made) - 1} more"


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def _recomputed(line: dict[str, Any]) -> str:
    return (
        f" (recomputed {line['recomputed']:.1f})" if line["adds_up"] in ("no", "rounding") else ""
    )
