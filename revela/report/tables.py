"""Tables: systems × tasks and their mean, as CSV, Markdown and LaTeX."""

from collections.abc import Iterable, Set
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from revela.common.errors import check_name, reading
from revela.common.outputs import read_json
from revela.config.report import Table
from revela.report.render import MISSING, as_latex, escape, latex, markdown, with_digits
from revela.report.reported import printed_figures, row_means

SOURCE = "source"
_UNDECIDED = "‡"
_UNDECIDED_NOTE = (
    f"{_UNDECIDED} not significantly better than the next best system measured here (paired "
    "randomisation test over queries, p ≥ 0.05 after Holm)."
)
_ANALYSIS_DIGITS = {"score": 2, "ci_low": 2, "ci_high": 2, "std": 2, "p": 4}
_ANALYSIS_NOTE = (
    "ci_low, ci_high: 95% confidence interval, bootstrap over queries, stratified by subset and "
    "task. std: standard deviation over the seeds that a system was trained with; its score is "
    "their mean. p: two-sided paired randomisation test against the best ranked system "
    "(compared_to), adjusted by Holm for the comparisons with that system in a column."
)


def compile_table(table: Table, scores: Path) -> pd.DataFrame:
    """Return systems × (headings, mean, source), figures × 100, NaN if missing.

    A system with at least one score has measured figures only, other systems have reported ones.
    `source` is `measured`, `reported` or `missing`. The table's benchmarks are expanded
    (`Config.table`); `scores` holds `<model>/<task>.json`.

    Raises:
        RevelaError: a file of scores or of reported figures lacks something.
    """
    printed, measured = printed_figures(table), measured_figures(table, scores)
    is_measured, is_printed = measured.notna().any(axis=1), printed.notna().any(axis=1)
    frame = measured.where(is_measured, printed)
    frame[SOURCE] = np.select([is_measured, is_printed], ["measured", "reported"], "missing")
    return frame


def measured_figures(table: Table, scores: Path) -> pd.DataFrame:
    """Return systems × (headings, mean), NaN if missing; the mean too if a figure is missing."""

    def mean(models: Iterable[str], entries: Iterable[str]) -> float:
        figures = [_score(*pair, table.measure, scores) for pair in product(models, entries)]
        return float(np.mean(figures or np.nan))

    rows = [{heading: mean(row.model, e) for heading, e in table.columns} for row in table.rows]
    frame = pd.DataFrame(rows, index=pd.Index(table.names(), name="system"))
    frame[table.mean] = row_means(frame)
    return frame if table.columns else frame.reindex(columns=printed_figures(table).columns)


def _score(model: str, column: str, measure: str, scores: Path) -> float:
    task, _, subset = column.partition(":")
    path = scores / model / f"{task}.json"
    return read_score(path, measure, subset) if path.exists() else np.nan


def read_score(path: Path, measure: str, subset: str = "") -> float:
    """Return a measure from a file of scores, or from one of its subsets, × 100.

    Raises:
        RevelaError: it cannot be read, or lacks the measure or the subset.
    """
    scores = read_json(path)
    if subset:
        subsets = scores.get("subsets", {})
        check_name(str(path), "subset", subset, subsets)
        scores = subsets[subset]
    check_name(str(path), "measure", measure, scores)
    with reading(path, "a file of scores"):
        return 100 * float(scores[measure])


def gaps(table: Table, frame: pd.DataFrame) -> list[str]:
    """Return a line for each partly measured system, listing what is missing."""
    missing = frame[frame[SOURCE] == "measured"].drop(columns=[SOURCE, table.mean]).isna()
    return [
        f"{name}: partly measured; missing: {', '.join(missing.columns[of_row])}"
        for name, of_row in missing.iterrows()
        if of_row.any()
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table or a comparison as CSV, systems as rows even in a transposed table."""
    return frame.to_csv(float_format="%.1f")


# (system, heading) of best figures that are not significant (`significance.undecided`).
Undecided = Set[tuple[str, str]]


def to_markdown(table: Table, frame: pd.DataFrame, undecided: Undecided = frozenset()) -> str:
    """Return a table as Markdown, its best figures in bold, marked if they are `undecided`."""
    cells, notes = _cells(table, frame, undecided)
    return markdown(cells.T if table.transposed else cells, table.caption, notes)


def to_latex(table: Table, frame: pd.DataFrame, undecided: Undecided = frozenset()) -> str:
    """Return a table as LaTeX: as `to_markdown`, with groups, sizes and shaded rows."""
    cells, notes = _cells(table, frame, undecided)
    cells = as_latex(cells)
    grey = pd.Series(["\\cellcolor{gray!20}" * row.shaded for row in table.rows], cells.index)
    for heading in cells.columns.drop(SOURCE):
        cells[heading] = grey + cells[heading]
    if not table.transposed:
        cells.index = grey + cells.index
        return latex(cells, table.caption, [row.group for row in table.rows], notes)
    levels = {
        "group": [escape(row.group) for row in table.rows],
        "label": grey + [escape(row.label) for row in table.rows],
        "size": grey + [escape(row.size or MISSING) for row in table.rows],
    }
    used = [any(row.group for row in table.rows), True, any(row.size for row in table.rows)]
    names = pd.Series(["", "", "Model Size"])[used]
    cells.index = pd.MultiIndex.from_frame(pd.DataFrame(levels).loc[:, used], names=names)
    blocks = ["tasks"] * (len(cells.columns) - 2) + ["mean"] * 2
    return latex(cells.T, table.caption, blocks, notes, merged=used[0])


def analysis_to_markdown(table: Table, analysis: pd.DataFrame) -> str:
    """Return intervals and tests (`significance.analyse`) as Markdown."""
    texts = with_digits(analysis, _ANALYSIS_DIGITS).replace("", MISSING).set_index("system")
    return markdown(texts, table.caption, [_ANALYSIS_NOTE])


def analysis_to_csv(analysis: pd.DataFrame) -> str:
    """Return intervals and tests as CSV: figures × 100 with two decimals, p with four."""
    return analysis.round(_ANALYSIS_DIGITS).to_csv(index=False)


def _cells(
    table: Table, frame: pd.DataFrame, undecided: Undecided
) -> tuple[pd.DataFrame, list[str]]:
    """Return a table's cells as Markdown, the best of a column in bold, and the notes below it."""
    cells = with_digits(frame, dict.fromkeys(frame.columns.drop(SOURCE), 1)).rename_axis(None)
    texts = cells.drop(columns=SOURCE)
    # Figures that are printed alike are tied.
    figures = texts.replace(MISSING, "nan").astype(float)
    figures[[not row.ranked or table.bold == "none" for row in table.rows]] = np.nan
    scope = pd.Series([row.group * (table.bold == "group") for row in table.rows], cells.index)
    is_best = figures == figures.groupby(scope).transform("max")
    cells[texts.columns] = texts.mask(is_best, "**" + texts + "**")
    marked = [cell for cell in undecided if is_best.at[cell]]
    for cell in marked:
        cells.at[cell] += _UNDECIDED
    return cells, [_UNDECIDED_NOTE] * bool(marked) + gaps(table, frame)
