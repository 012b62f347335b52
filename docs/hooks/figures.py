"""Every cell of the paper's tables: its command, the printed number, the one measured here."""

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
# Every number of the paper

Each section is a table of `config.yaml` with the numbers that the paper prints. "Measured" is the
score in `results/scores` of the checkout that built this page; "–" means that it has none. To
compute a cell with everything it depends on, append its path to `snakemake --cores 8`, or use a
profile. "Recomputed" is the mean of the printed numbers, given where the paper prints a different
mean.
[Reproducing a table](reproducing.md) explains the verdicts.
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
            command = f"`snakemake --cores 8 {paths.made('tables', name)}`"
            parts += [f"## {name}", entry.caption, command, *_systems(name, paper.table(name))]
    return "\n\n".join(parts)


def _systems(name: str, table: Table) -> list[str]:
    """Return a folded part for each system that the paper prints."""
    lines = compare(table, measured_figures(table, ROOT / "results/scores"))
    parts = []
    for system, row in zip(table.names(), table.rows, strict=True):
        if row.reported:
            rows = [_row(line, _made_by(name, table, row, line)) for line in _of(system, lines)]
            head = ["| | Printed | Measured | Verdict | Made by |", "|---|---:|---:|---|---|"]
            folded = "\n".join(f"    {line}" for line in [*head, *rows])
            parts.append(f'??? quote "{system}"\n\n{folded}')
    return parts


def _of(system: str, lines: Any) -> list[dict[str, Any]]:
    return lines.loc[[system]].to_dict("records")


def _row(line: dict[str, Any], made_by: str) -> str:
    printed = _figure(line["printed"])
    if line["adds_up"] in ("no", "rounding"):
        printed += f" (recomputed {_figure(line['recomputed'])})"
    measured = _figure(line["measured"])
    return f"| {line['task']} | {printed} | {measured} | {line['verdict']} | {made_by} |"


def _made_by(name: str, table: Table, row: Row, line: dict[str, Any]) -> str:
    """Return the file of a cell; of one that averages several, and of a mean, the table."""
    if not row.model:
        return "reported only"
    tasks = {entry.partition(":")[0] for entry in dict(table.columns).get(line["task"], [])}
    one = len(tasks) == len(row.model) == 1
    return f"`{paths.scores(row.model[0], *tasks) if one else paths.made('tables', name)}`"


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"
