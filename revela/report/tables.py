"""Tables: systems × tasks and their mean, as CSV, Markdown and LaTeX."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from revela.common.errors import check_name, reading
from revela.common.outputs import read_json
from revela.config.report import Table
from revela.report.render import MISSING, as_latex, escape, latex, markdown, with_digits
from revela.report.reported import printed_figures, row_means
from revela.report.significance import COLUMNS, undecided

SOURCE = "source"
_UNDECIDED = "‡"
_UNDECIDED_NOTE = (
    f"{_UNDECIDED} not significantly better than the next best system measured here (paired "
    "randomisation test over queries, p ≥ 0.05 after Holm)."
)
_COMPARED_NOTE = (
    "95% intervals of the mean and of its differences: bootstrap over queries. p: two-sided paired "
    "randomisation test, adjusted by Holm for the comparisons in the column."
)
_ANALYSIS_DIGITS = {"score": 2, "ci_low": 2, "ci_high": 2, "std": 2, "p": 4} | dict.fromkeys(
    ("difference", "difference_low", "difference_high"), 2
)
_ANALYSIS_NOTE = (
    "ci_low, ci_high: 95% confidence interval, bootstrap over queries, stratified by subset and "
    "task. std: standard deviation over the seeds that a system was trained with; its score is "
    "their mean. difference: to the system in compared_to, the best ranked one unless the table "
    "names another. p: two-sided paired randomisation test against that system, adjusted "
    "by Holm for the comparisons with it in a column."
)


def compile_table(table: Table, scores: Path) -> pd.DataFrame:
    """Return systems × (headings, mean, source), figures × 100, NaN if missing.

    A system with at least one score has measured figures only, other systems have reported ones.
    `source` is `measured`, `reported` or `missing`; `scores` holds `<model>/<task>.json`.

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

    def score(model: str, entry: str) -> float:
        task, _, subset = entry.partition(":")
        path = scores / model / f"{task}.json"
        return read_score(path, table.measure, subset) if path.exists() else np.nan

    frame = pd.DataFrame(index=pd.Index(table.names(), name="system"))
    for heading, entries in table.columns:
        found = ([score(*pair) for pair in product(row.model, entries)] for row in table.rows)
        frame[heading] = [np.mean(figures or np.nan) for figures in found]
    frame[table.mean] = row_means(frame)
    return frame if table.columns else frame.reindex(columns=printed_figures(table).columns)


def read_score(path: Path, measure: str, subset: str = "") -> float:
    """Return a measure from a file of scores, or from one of its subsets, × 100.

    Raises:
        RevelaError: it cannot be read, or lacks the measure or the subset.
    """
    scores = read_json(path)
    if subset:
        check_name(str(path), "subset", subset, scores.get("subsets", {}))
        scores = scores["subsets"][subset]
    check_name(str(path), "measure", measure, scores)
    with reading(path, "a file of scores"):
        return 100 * float(scores[measure])


def gaps(table: Table, frame: pd.DataFrame) -> list[str]:
    """Return a line for each partly measured system, listing what is missing."""
    missing = frame[frame[SOURCE] == "measured"].drop(columns=[SOURCE, table.mean]).isna()
    return [
        f"{name}: partly measured; missing: {', '.join(missing.columns[of_row])}"
        for name, of_row in missing[missing.any(axis=1)].iterrows()
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table or a comparison as CSV, systems as rows even in a transposed table."""
    return frame.to_csv(float_format="%.1f")


def to_markdown(table: Table, frame: pd.DataFrame, analysis: pd.DataFrame | None = None) -> str:
    """Return a table as Markdown, its best figures in bold.

    `analysis` (`significance.analyse`) marks those that are not significant or, if the table has
    `compared_to`, adds intervals and differences.
    """
    cells, notes = _cells(table, frame, analysis)
    return markdown(cells.T if table.transposed else cells, table.caption, notes)


def to_latex(table: Table, frame: pd.DataFrame, analysis: pd.DataFrame | None = None) -> str:
    """Return a table as LaTeX: as `to_markdown`, with groups, sizes and shaded rows."""
    cells, notes = _cells(table, frame, analysis)
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
    tasks = len(frame.columns) - 2
    blocks = ["tasks"] * tasks + ["mean"] * (len(cells.columns) - tasks)
    return latex(cells.T, table.caption, blocks, notes, merged=used[0])


def analysis_to_markdown(table: Table, analysis: pd.DataFrame) -> str:
    """Return intervals and tests (`significance.analyse`) as Markdown."""
    texts = with_digits(analysis, _ANALYSIS_DIGITS).replace("", MISSING).set_index("system")
    return markdown(texts, table.caption, [_ANALYSIS_NOTE])


def analysis_to_csv(analysis: pd.DataFrame) -> str:
    """Return intervals and tests as CSV, with digits enough to be rounded again as in the table."""
    return analysis.to_csv(index=False, float_format="%.6g")


def _cells(
    table: Table, frame: pd.DataFrame, analysis: pd.DataFrame | None
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
    analysis = pd.DataFrame(columns=COLUMNS) if analysis is None else analysis
    notes = gaps(table, frame)
    if table.compared_to:
        return _with_differences(table, cells, analysis), [_COMPARED_NOTE, *notes]
    marked = [cell for cell in undecided(analysis) if is_best.at[cell]]
    for cell in marked:
        cells.at[cell] += _UNDECIDED
    return cells, [_UNDECIDED_NOTE] * bool(marked) + notes


def _with_differences(table: Table, cells: pd.DataFrame, analysis: pd.DataFrame) -> pd.DataFrame:
    """Insert the interval of each system's mean, and its difference to that of `compared_to`."""
    means = analysis[analysis["column"] == table.mean].set_index("system").reindex(cells.index)
    compared_to = next(row.label for row in table.rows if table.compared_to in row.model)
    source = cells.pop(SOURCE)
    intervals = zip(means["ci_low"], means["ci_high"], strict=True)
    cells["95% interval"] = [
        MISSING if np.isnan(low) else f"{low:.1f} to {high:.1f}" for low, high in intervals
    ]
    cells[f"Difference to {compared_to}"] = [difference(line) for _, line in means.iterrows()]
    return cells.assign(**{SOURCE: source})


def difference(line: pd.Series) -> str:
    """Return the difference in a line of an analysis with its interval and p, as people read it."""
    text = "{difference:+.1f} ({difference_low:+.1f} to {difference_high:+.1f}), p = {p:.2g}"
    return MISSING if np.isnan(line["p"]) else text.format(**line)
