"""Tables: systems × tasks and their mean, as CSV, Markdown and LaTeX."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from revela.config import AnyBenchmark, Reported, Row, Table
from revela.errors import RevelaError, unknown_name

MEAN = "Mean"
SOURCE = "source"
_MISSING = "–"


def compile_table(table: Table, benchmark: AnyBenchmark, scores: Path) -> pd.DataFrame:
    """Return a table with one row a system: its tasks' scores × 100, their mean, their source.

    A mean needs all tasks; a figure that is missing stays missing (NaN).

    Args:
        table: rows and columns.
        benchmark: its tasks are the columns.
        scores: the folder with `<model>/<task>.json`.

    Raises:
        RevelaError: a file of reported figures lacks the column or the task.
    """
    headings = {task: table.columns.get(task, task) for task in table.columns or benchmark.tasks}
    rows = []
    for row in table.rows:
        cells = (
            _reported(row.reported, headings)
            if row.reported
            else _measured(row, headings, table.measure, scores)
        )
        values = list(cells.values())
        mean = (
            sum(values) / len(values) if all(value == value for value in values) else float("nan")
        )
        rows.append(
            {
                "system": row.label,
                **cells,
                MEAN: mean,
                SOURCE: "reported" if row.reported else "measured",
            }
        )
    return pd.DataFrame(rows).set_index("system")


def _measured(row: Row, headings: dict[str, str], measure: str, scores: Path) -> dict[str, float]:
    cells = {}
    for task, heading in headings.items():
        path = scores / str(row.model) / f"{task}.json"
        value = float("nan")
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if measure not in found:
                raise RevelaError(f"{path}: {unknown_name('measure', measure, found)}")
            value = 100 * found[measure]
        cells[heading] = value
    return cells


def _reported(reported: Reported, headings: dict[str, str]) -> dict[str, float]:
    path = Path(reported.file)
    try:
        printed = pd.read_csv(path, index_col=0)
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror}") from error
    if reported.column not in printed:
        raise RevelaError(f"{path}: {unknown_name('column', reported.column, printed.columns)}")
    cells = {}
    for heading in headings.values():
        if heading not in printed.index:
            raise RevelaError(f"{path}: {unknown_name('task', heading, printed.index)}")
        cells[heading] = float(printed[reported.column][heading])
    return cells


def to_csv(frame: pd.DataFrame) -> str:
    """Return the table as CSV with one decimal, missing cells empty."""
    return frame.to_csv(float_format="%.1f")


def to_markdown(frame: pd.DataFrame, caption: str) -> str:
    """Return the table as Markdown, the best measured figure of a column in bold."""
    return _render(frame, _markdown_line, lambda cell: f"**{cell}**", "\n", caption + "\n\n", "\n")


def to_latex(frame: pd.DataFrame, caption: str) -> str:
    """Return the table as LaTeX (booktabs), the best measured figure of a column in bold."""
    columns = "l" + "r" * (frame.shape[1] - 1) + "l"
    head = (
        "\\begin{table}[t]\n\\centering\n"
        f"\\caption{{{_escape(caption)}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
    )
    tail = "\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    return _render(
        frame, _latex_line, lambda cell: f"\\textbf{{{cell}}}", "\n\\midrule\n", head, tail
    )


def _render(
    frame: pd.DataFrame,
    line: Callable[[list[str], bool], str],
    bold: Callable[[str], str],
    rule: str,
    head: str,
    tail: str,
) -> str:
    figures = frame.drop(columns=SOURCE)
    measured = frame[SOURCE] == "measured"
    measured = frame[SOURCE] == "measured"
    best = dict(figures[measured].max().round(1))
    body = []
    rows = zip(frame.index, measured, figures.to_numpy(dtype=float), strict=True)
    for label, is_measured, values in rows:
        cells = [str(label)]
        for column, value in zip(figures, values, strict=True):
            cell = _MISSING if math.isnan(value) else f"{value:.1f}"
            cells.append(bold(cell) if is_measured and round(value, 1) == best[column] else cell)
        body.append(line([*cells, "measured" if is_measured else "reported"], False))
    heading = line(["", *map(str, frame.columns)], True)
    return head + heading + rule + "\n".join(body) + tail


def _markdown_line(cells: list[str], heading: bool) -> str:
    line = "| " + " | ".join(cells) + " |"
    return line + "\n|---|" + "---:|" * (len(cells) - 2) + "---|" if heading else line


def _latex_line(cells: list[str], heading: bool) -> str:
    # Bold was put in before; only what comes from the config is escaped.
    cells = [cell if cell.startswith("\\textbf{") else _escape(cell) for cell in cells]
    return " & ".join(cells) + " \\\\"


def _escape(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("→", "$\\rightarrow$").replace("–", "--")
