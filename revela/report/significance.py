"""Is the best system better than the next? Confidence intervals and tests over queries.

Any score of a table is a weighted sum over queries: a task, the mean of its subsets, a column of
several tasks, the mean of all columns. The queries of one subset of one task, a *stratum*, have
equal weights. So each stratum is resampled once, for all systems together, and the statistics of a
column are weighted sums of its resampled strata.

The score of a system trained with several seeds is, on each query, the mean over its seeds.
"""

import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from revela.common.errors import RevelaError, reading
from revela.config.report import Table

_TESTED = ["compared_to", "difference", "difference_low", "difference_high", "p"]
COLUMNS = ["system", "column", "score", "ci_low", "ci_high", "std", *_TESTED, "queries"]
_CELLS = 4_000_000  # resamples × queries held in memory at a time

Stratum = tuple[str, str]  # task, and subset, which is empty in a task that has only one


def analyse(table: Table, scores: Path, resamples: int = 10_000) -> pd.DataFrame:
    """Return an interval and a test for each measured system and column, figures × 100.

    `ci_low` and `ci_high` are a percentile bootstrap over queries, stratified by task and subset;
    `std` is the sample standard deviation over seeds. `compared_to` is that of the table or, if it
    has none, the best ranked system (of the group if the table's `bold` is `group`); `p` is of the
    paired two-sided randomisation test against it (random signs of the queries' differences),
    adjusted by Holm for the comparisons with it in the column. A system has no row for a column of
    which it lacks a task. `scores` holds `<model>/<task>.queries.csv`.

    Raises:
        RevelaError: a file of query scores is malformed, or two systems differ in their queries.
    """
    strata = read_strata(table, scores)  # queries × models
    # (S), (R, S), (R, S) for each stratum of S systems, NaN for systems without it.
    resampled: dict[Stratum, Any] = {}
    for stratum, frame in strata.items():
        seeds = (frame.reindex(columns=row.model) for row in table.rows)
        scores_QS = 100 * np.stack([each.mean(axis=1, skipna=False) for each in seeds], axis=1)
        random = np.random.default_rng([0, zlib.crc32("/".join(stratum).encode())])
        bootstrap_RS = _reweighted(scores_QS, _counts, random, resamples)
        null_RS = _reweighted(scores_QS, _signs, random, resamples)
        resampled[stratum] = scores_QS.mean(axis=0), bootstrap_RS, null_RS
    lines = []
    for column, weights in column_weights(table, strata).items():
        score_S, bootstrap_RS, null_RS = (
            sum(weight * resampled[stratum][part] for stratum, weight in weights.items())
            for part in range(3)
        )
        frame = pd.DataFrame({"system": table.names(), "column": column, "score": score_S})
        frame["ci_low"], frame["ci_high"] = np.quantile(bootstrap_RS, [0.025, 0.975], axis=0)
        of_models = 100 * sum(weight * strata[s].mean() for s, weight in weights.items())
        frame["std"] = [of_models.reindex(row.model).std() for row in table.rows]
        frame[_TESTED] = _comparisons(table, frame["score"], bootstrap_RS, null_RS)
        frame["queries"] = sum(len(strata[stratum]) for stratum in weights)
        lines.append(frame.dropna(subset="score"))
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame(columns=COLUMNS)


def read_analysis(table: Path) -> pd.DataFrame:
    """Read the analysis of a compiled table; the frame is empty if there is none."""
    path = table.with_name(f"{table.stem}_significance.csv")
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    with reading(path, "a compiled table"):
        return pd.read_csv(path, dtype={"system": str}, keep_default_na=False, na_values=[""])


def undecided(analysis: pd.DataFrame) -> set[tuple[str, str]]:
    """Return (system, column) of the best systems whose next best has p ≥ 0.05."""
    cells = set()
    tested = analysis.dropna(subset="p")
    for (column, best), others in tested.groupby(["column", "compared_to"]):
        if others.loc[others["score"].idxmax(), "p"] >= 0.05:
            cells |= {(system, column) for system in (best, *others["system"])}
    return cells


def column_weights(
    table: Table, strata: dict[Stratum, pd.DataFrame]
) -> dict[str, dict[Stratum, float]]:
    """Return the weight of each stratum in each column and in their mean; weights sum to one.

    A column is skipped, and with it the mean, if one of its tasks has no query scores at all.
    """
    columns: dict[str, dict[Stratum, float]] = {}
    for heading, entries in table.columns:
        weights: dict[Stratum, float] = defaultdict(float)
        for entry in entries:
            task, _, subset = entry.partition(":")
            of_task = [s for s in strata if s[0] == task and subset in ("", s[1])]
            for stratum in of_task:
                weights[stratum] += 1 / len(entries) / len(of_task)
        if abs(sum(weights.values()) - 1) < 1e-9:
            columns[heading] = dict(weights)
    if columns and len(columns) == len(table.columns):
        columns[table.mean] = pd.DataFrame(columns).fillna(0).mean(axis=1).to_dict()
    return columns


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return p-values adjusted for multiple comparisons (Holm 1979), in the order given."""
    order = np.argsort(p_values)
    stepped = p_values[order] * np.arange(len(order), 0, -1)
    return np.maximum.accumulate(stepped).clip(max=1)[np.argsort(order)]


def _comparisons(
    table: Table, scores: pd.Series, bootstrap_RS: np.ndarray, null_RS: np.ndarray
) -> pd.DataFrame:
    """Return what each system is compared to, the difference, its interval and the adjusted p."""
    tests = pd.DataFrame(np.nan, scores.index, _TESTED).astype({"compared_to": object})
    tests["compared_to"] = ""
    chosen = [n for n, row in enumerate(table.rows) if table.compared_to in row.model]
    by_group = table.bold == "group" and not table.compared_to
    scope = pd.Series([row.group if by_group else "" for row in table.rows])
    takes_part = [row.ranked or bool(table.compared_to) for row in table.rows]
    for _, systems in scores[takes_part].dropna().groupby(scope):
        to = chosen[0] if table.compared_to else systems.idxmax()
        if to not in systems:
            continue
        others = systems.index.drop(to)
        tests.loc[others, "compared_to"] = table.names()[to]
        tests.loc[others, "difference"] = systems[others] - systems[to]
        resampled_RO = bootstrap_RS[:, others] - bootstrap_RS[:, [to]]
        low, high = np.quantile(resampled_RO, [0.025, 0.975], axis=0)
        tests.loc[others, "difference_low"], tests.loc[others, "difference_high"] = low, high
        # Flipping the sign of a difference flips those of both scores.
        null_RO = np.abs(null_RS[:, others] - null_RS[:, [to]])
        # 1e-9: sums that differ by rounding only are equal. 1 +: the observed signs count.
        reached = null_RO >= tests.loc[others, "difference"].abs().to_numpy() - 1e-9
        tests.loc[others, "p"] = holm((1 + reached.sum(axis=0)) / (1 + len(null_RO)))
    return tests


def _reweighted(
    scores_QS: np.ndarray, draw: Any, random: np.random.Generator, resamples: int
) -> np.ndarray:
    """Return the mean scores (R, S) of randomly weighted queries, in bounded memory."""
    size = len(scores_QS)
    batch = max(1, _CELLS // size)
    sizes = [(min(batch, resamples - done), size) for done in range(0, resamples, batch)]
    return np.concatenate([draw(random, *shape) @ scores_QS for shape in sizes]) / size


def _counts(random: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Return how often each query is drawn (rows, Q), in Q draws with replacement."""
    drawn = random.integers(0, size, (rows, size), dtype=np.int32)
    return np.apply_along_axis(np.bincount, 1, drawn, minlength=size)


def _signs(random: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Return a random sign for each query (rows, Q)."""
    return 2.0 * random.integers(0, 2, (rows, size), dtype=np.int8) - 1


def read_strata(table: Table, scores: Path) -> dict[Stratum, pd.DataFrame]:
    """Return the scores of each stratum: queries × the models that have query scores."""
    strata = {}
    models = dict.fromkeys(model for row in table.rows for model in row.model)
    for task in table.tasks():
        paths = {model: scores / model / f"{task}.queries.csv" for model in models}
        read = {m: _read_queries(path) for m, path in paths.items() if path.exists()}
        columns = {m: rows[table.measure] for m, rows in read.items() if table.measure in rows}
        if not columns:
            continue
        frame = pd.DataFrame(columns).sort_index()
        if frame.isna().any(axis=None):
            differ = f"the queries of {task} differ between {', '.join(columns)}"
            raise RevelaError(f"{scores}: {differ}: evaluate again")
        for subset, rows in frame.groupby(level="subset"):
            strata[task, str(subset)] = rows
    return strata


def _read_queries(path: Path) -> pd.DataFrame:
    """Return scores of queries: (subset, query) × measures."""
    text = {"subset": str, "query": str}
    with reading(path, "a CSV of the scores of queries"):
        rows = pd.read_csv(path, dtype=text, keep_default_na=False).set_index([*text])
        return rows.astype(float)
