"""What somebody printed: read it, add it up again, compare it with what is measured here."""

import math
from pathlib import Path

import pandas as pd

from revela.common.errors import RevelaError, unknown_name
from revela.config.printed import read_reported
from revela.config.report import Table

_HALF_UNIT = 0.05  # figures are printed with one decimal


def printed_figures(table: Table) -> pd.DataFrame:
    """Return what was printed of a table: systems × (headings, mean), NaN where nothing was.

    The printed mean is one of all tasks of the file; of fewer, or without one, it is recomputed.

    Raises:
        RevelaError: the file lacks a system or a task.
    """
    printed = read_reported(Path(table.reported)) if table.reported else pd.DataFrame()
    tasks = [task for task in printed.columns if task != table.mean]
    headings = [heading for heading, _ in table.columns] or tasks
    rows = []
    for row in table.rows:
        if row.reported is None:
            rows.append(dict.fromkeys([*headings, table.mean], math.nan))
            continue
        if row.reported not in printed.index:
            raise RevelaError(
                f"{table.reported}: {unknown_name('system', row.reported, printed.index)}"
            )
        for heading in headings:
            if heading not in tasks:
                raise RevelaError(f"{table.reported}: {unknown_name('task', heading, tasks)}")
        figures = printed.loc[row.reported]
        whole = table.mean in figures and set(headings) == set(tasks)
        mean = figures[table.mean] if whole else figures[headings].mean(skipna=False)
        rows.append({**figures[headings], table.mean: mean})
    return pd.DataFrame(rows, index=pd.Index(table.names(), name="system"))


def check_means(table: Table) -> pd.DataFrame:
    """Add up the printed rows: for each system `printed` and `recomputed` mean, and `adds_up`.

    `adds_up` is `yes` where the mean is printed as it rounds, `rounding` where the rounding of the
    rows can explain it, else `no`; empty where nothing was printed.
    """
    printed = printed_figures(table)
    recomputed = printed.drop(columns=table.mean).mean(axis=1, skipna=False)
    means = pd.DataFrame({"printed": printed[table.mean], "recomputed": recomputed})
    means["adds_up"] = [
        _adds_up(abs(mean - again))
        for mean, again in zip(means["printed"], means["recomputed"], strict=True)
    ]
    return means


def _adds_up(difference: float) -> str:
    if math.isnan(difference):
        return ""
    # Each printed row may be off by half a unit, and so may their mean, and the printed one.
    slack = 1e-9
    if difference <= _HALF_UNIT + slack:
        return "yes"
    return "rounding" if difference <= 2 * _HALF_UNIT + slack else "no"


def compare(table: Table, measured: pd.DataFrame) -> pd.DataFrame:
    """Return what was printed beside what is measured here, one line a system and task.

    Columns: `printed`; for means `recomputed` from the printed rows and `adds_up`; `measured`;
    `difference` of measured and printed (for means recomputed) figure; and the `verdict`:
    `reproduced` within the table's tolerance, else `higher` or `lower`.

    Args:
        table: its rows with `reported` are compared.
        measured: systems × (headings, mean), NaN where nothing was measured.
    """
    printed, means = printed_figures(table), check_means(table)
    lines = []
    for name, row in zip(table.names(), table.rows, strict=True):
        for heading in printed if row.reported else []:
            is_mean = heading == table.mean
            expected = means["recomputed"][name] if is_mean else printed[heading][name]
            difference = measured[heading][name] - expected
            lines.append(
                {
                    "system": name,
                    "task": heading,
                    "printed": printed[heading][name],
                    "recomputed": expected if is_mean else math.nan,
                    "adds_up": means["adds_up"][name] if is_mean else "",
                    "measured": measured[heading][name],
                    "difference": difference,
                    "verdict": _verdict(difference, table.tolerance),
                }
            )
    return pd.DataFrame(lines).set_index("system")


def _verdict(difference: float, tolerance: float) -> str:
    if math.isnan(difference):
        return "not measured"
    if abs(difference) <= tolerance:
        return "reproduced"
    return "higher" if difference > 0 else "lower"
