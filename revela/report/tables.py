"""Tables: systems × tasks and their mean, as CSV, Markdown and LaTeX."""

import json
import math
from collections.abc import Iterable, Set
from itertools import groupby
from pathlib import Path

import pandas as pd

from revela.common.errors import RevelaError, unknown_name
from revela.config.report import Row, Table
from revela.report.reported import printed_figures

SOURCE = "source"
_MISSING = "–"
_UNDECIDED = "‡"
_UNDECIDED_NOTE = (
    f"{_UNDECIDED} not significantly better than the next best system measured here (paired "
    "randomisation test over queries, p ≥ 0.05 after Holm)."
)


def compile_table(table: Table, scores: Path) -> pd.DataFrame:
    """Return systems × (headings, mean, source), figures × 100, NaN where one is missing.

    A system is shown as measured as soon as one of its scores is there, else as reported: never
    half and half, so that its mean is of one kind. `source` says which, or `missing`.

    Args:
        table: rows and columns, benchmarks spelt out (`Config.table`).
        scores: the folder with `<model>/<task>.json`.

    Raises:
        RevelaError: a score file is none, or lacks the measure or the subset; or the file of
            reported figures lacks the system or the task.
    """
    printed, measured = printed_figures(table), measured_figures(table, scores)
    is_measured = measured.notna().any(axis=1)
    frame = measured.where(is_measured, printed)
    frame[SOURCE] = [
        "measured" if here else "reported" if there else "missing"
        for here, there in zip(is_measured, printed.notna().any(axis=1), strict=True)
    ]
    return frame


def measured_figures(table: Table, scores: Path) -> pd.DataFrame:
    """Return what is measured of a table: systems × (headings, mean), NaN where nothing is.

    A mean needs all of its figures. See `compile_table`.
    """
    rows = []
    for row in table.rows:
        cells = {
            heading: _mean(
                [
                    _score(model, task, table.measure, scores)
                    for model in row.model
                    for task in tasks
                ]
            )
            for heading, tasks in table.columns
        }
        rows.append(cells | {table.mean: _mean(list(cells.values()))})
    frame = pd.DataFrame(rows, index=pd.Index(table.names(), name="system"))
    return frame if table.columns else frame.reindex(columns=printed_figures(table).columns)


def _score(model: str, column: str, measure: str, scores: Path) -> float:
    task, _, subset = column.partition(":")
    path = scores / model / f"{task}.json"
    if not path.exists():
        return math.nan
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RevelaError(f"{path}: not a file of scores: {error}") from error
    if subset:
        subsets = found.get("subsets", {})
        if subset not in subsets:
            raise RevelaError(f"{path}: {unknown_name('subset', subset, subsets)}")
        found = subsets[subset]
    if measure not in found:
        raise RevelaError(f"{path}: {unknown_name('measure', measure, found)}")
    return 100 * found[measure]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def gaps(table: Table, frame: pd.DataFrame) -> list[str]:
    """Say of each system that is measured in part what is missing, one line a system."""
    lines = []
    for name, cells in frame[frame[SOURCE] == "measured"].drop(columns=SOURCE).iterrows():
        missing = [heading for heading in cells.index[cells.isna()] if heading != table.mean]
        if missing:
            lines.append(f"{name}: measured in part; missing: {', '.join(missing)}")
    return lines


# ---------------------------------------------------------------------------- formats


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table or a comparison as CSV with one decimal, missing cells empty.

    A line is one system, however the table is printed.
    """
    return frame.to_csv(float_format="%.1f")


Undecided = Set[tuple[str, str]]
"""(system, heading) where the best is not better than the next (`significance.undecided`)."""


def to_markdown(table: Table, frame: pd.DataFrame, undecided: Undecided = frozenset()) -> str:
    """Return a table as Markdown, the best figures in bold as its `bold` says.

    A best figure is marked where it is `undecided`; notes below say so, and what is missing.
    """
    cells = _cells(table, frame, "**{}**", _MISSING, undecided, _UNDECIDED)
    grid = [["", *frame.columns]]
    grid += [[name, *cells[name], frame[SOURCE][name]] for name in frame.index]
    grid = [list(line) for line in zip(*grid, strict=True)] if table.transposed else grid
    notes = "".join(f"\n{note}\n" for note in _notes(table, frame, cells, _UNDECIDED))
    return f"{table.caption}\n\n{grid_to_markdown(grid)}{notes}"


def comparison_to_markdown(table: Table, comparison: pd.DataFrame) -> str:
    """Return a comparison (`reported.compare`) as Markdown."""
    grid = [["system", *comparison.columns]]
    grid += [
        [name, *(f"{cell:.1f}" if isinstance(cell, float) else cell for cell in cells)]
        for name, *cells in comparison.itertuples()
    ]
    grid = [[_MISSING if cell == "nan" else cell for cell in line] for line in grid]
    return f"{table.caption}\n\n{grid_to_markdown(grid)}"


def analysis_to_markdown(table: Table, analysis: pd.DataFrame) -> str:
    """Return intervals and tests (`significance.analyse`) as Markdown."""
    grid = [["system", *analysis.columns[1:]]]
    grid += [
        [system, column, *(_MISSING if math.isnan(x) else f"{x:.2f}" for x in figures),
         against or _MISSING,
         _MISSING if math.isnan(p) else f"{p:.4f}", str(queries)]
        for system, column, *figures, against, p, queries in analysis.itertuples(index=False)
    ]  # fmt: skip
    note = (
        "low, high: 95% interval, bootstrap over queries, stratified by subset and task. "
        "deviation: over the seeds that a system was trained with, whose mean it is. p: "
        "two-sided paired randomisation test against the best ranked system, adjusted by Holm for "
        "the comparisons of a column."
    )
    return f"{table.caption}\n\n{grid_to_markdown(grid)}\n{note}\n"


def analysis_to_csv(analysis: pd.DataFrame) -> str:
    """Return intervals and tests as CSV: figures × 100 with two decimals, p with four."""
    digits = {"score": 2, "low": 2, "high": 2, "deviation": 2, "p": 4}
    return analysis.round(digits).to_csv(index=False)


def grid_to_markdown(grid: list[list[str]], others: str = "---:") -> str:
    """Return rows of cells, the headings first, as Markdown; `others` aligns all but the first."""
    heading, *body = ("| " + " | ".join(line) + " |" for line in grid)
    return "\n".join([heading, "|---|" + f"{others}|" * (len(grid[0]) - 1), *body]) + "\n"


def to_latex(table: Table, frame: pd.DataFrame, undecided: Undecided = frozenset()) -> str:
    """Return a table as LaTeX, as `to_markdown` does; its first line says what it needs."""
    texts = _cells(table, frame, "\\textbf{{{}}}", "--", undecided, escape(_UNDECIDED))
    cells = [
        [_shade(row, text) for text in texts[name]]
        for row, name in zip(table.rows, frame.index, strict=True)
    ]
    sources = list(frame[SOURCE])
    headings = [escape(heading) for heading in frame.columns]
    if table.transposed:
        columns = "l" + "r" * len(table.rows)
        lines = zip(headings[:-1], *cells, strict=True)
        *tasks, mean = (latex_line(list(line)) for line in lines)
        blocks = [_heading_lines(table), tasks, [mean, latex_line([headings[-1], *sources])]]
    else:
        columns = "l" + "r" * (len(headings) - 1) + "l"
        systems = iter(
            latex_line([_shade(row, escape(name)), *line, source])
            for row, name, line, source in zip(table.rows, texts, cells, sources, strict=True)
        )
        groups = groupby(table.rows, key=lambda row: row.group)
        blocks = [[latex_line(["", *headings])], *([next(systems) for _ in g] for _, g in groups)]
    notes = [escape(note) for note in _notes(table, frame, texts, escape(_UNDECIDED))]
    needs = "booktabs, and xcolor with its option table"
    return latex_table(table.caption, columns, blocks, needs, notes)


def latex_table(
    caption: str, columns: str, blocks: list[list[str]], needs: str, notes: Iterable[str] = ()
) -> str:
    """Return a LaTeX table: blocks of lines with rules between them, notes below.

    Args:
        caption: as plain text.
        columns: their alignment.
        blocks: lines made by `latex_line`.
        needs: packages, told in the first line.
        notes: as LaTeX.
    """
    body = "\n\\midrule\n".join("\n".join(block) for block in blocks)
    below = "".join(f"\\par\\smallskip {note}\n" for note in notes)
    return (
        f"% needs {needs}\n"
        "\\begin{table}[t]\n\\centering\n\\scriptsize\n\\setlength{\\tabcolsep}{2pt}\n"
        f"\\caption{{{escape(caption)}}}\n\\smallskip\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n{below}\\end{{table}}\n"
    )


def _notes(table: Table, frame: pd.DataFrame, texts: dict[str, list[str]], mark: str) -> list[str]:
    """Return what stands below a table: what its mark means, what is missing."""
    marked = any(text.endswith(mark) for cells in texts.values() for text in cells)
    return [*([_UNDECIDED_NOTE] if marked else []), *gaps(table, frame)]


def _heading_lines(table: Table) -> list[str]:
    """Return the headings over systems as columns: groups, labels, sizes, as far as there are."""
    lines = []
    if any(row.group for row in table.rows):
        groups = [(name, len(list(rows))) for name, rows in groupby(r.group for r in table.rows)]
        spans = [f"\\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in groups]
        lines.append(latex_line(["", *spans]))
    lines.append(latex_line(["", *(_shade(row, escape(row.label)) for row in table.rows)]))
    if any(row.size for row in table.rows):
        sizes = [_shade(row, escape(row.size or _MISSING)) for row in table.rows]
        lines.append(latex_line(["Model Size", *sizes]))
    return lines


def _cells(
    table: Table, frame: pd.DataFrame, bold: str, missing: str, undecided: Undecided, mark: str
) -> dict[str, list[str]]:
    """Return each system's figures as text, the best of a column in `bold`, in doubt `mark`ed."""
    figures = frame.drop(columns=SOURCE)
    # What is printed alike is equally good.
    rounded = figures.map(lambda value: float(f"{value:.1f}"))
    ranked = pd.Series([row.ranked and table.bold != "none" for row in table.rows], figures.index)
    scope = [row.group if table.bold == "group" else "" for row in table.rows]
    best = rounded[ranked].groupby(pd.Series(scope, figures.index)[ranked]).transform("max")
    is_best = rounded.eq(best.reindex(figures.index))
    texts: dict[str, list[str]] = {}
    for name in figures.index:
        texts[name] = []
        for heading, value in figures.loc[name].items():
            text = missing if math.isnan(value) else f"{value:.1f}"
            if is_best[heading][name]:
                text = bold.format(text) + (mark if (name, heading) in undecided else "")
            texts[name].append(text)
    return texts


def _shade(row: Row, cell: str) -> str:
    return f"\\cellcolor{{gray!20}}{cell}" if row.shaded else cell


def latex_line(cells: list[str]) -> str:
    """Return a line of a table of cells that are LaTeX."""
    return " & ".join(cells) + " \\\\"


_LATEX = str.maketrans({character: "\\" + character for character in "&%$#_{}"}) | str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "→": "$\\rightarrow$",
        "†": "$^{\\dagger}$",
        "‡": "$^{\\ddagger}$",
        "≥": "$\\geq$",
        "ᵃ": "$^{a}$",
        "ᵇ": "$^{b}$",
        "ᶜ": "$^{c}$",
        "ᵈ": "$^{d}$",
        "×": "$\\times$",
        "–": "--",
    }
)


def escape(text: str) -> str:
    """Return plain text as LaTeX."""
    return text.translate(_LATEX)
