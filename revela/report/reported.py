"""Printed figures: reads them, recomputes their means, compares them with measured ones."""

import numpy as np
import pandas as pd

from revela.config.printed import read_notes, read_reported
from revela.config.report import Table

_HALF_UNIT = 0.05 + 1e-9  # figures are printed with one decimal


def printed_figures(table: Table) -> pd.DataFrame:
    """Return a table's printed figures: systems × (headings, mean), NaN if not printed.

    The mean is recomputed unless it is printed and the table has all tasks of the file.
    """
    printed = read_reported(table) if table.reported else pd.DataFrame()
    tasks = [task for task in printed.columns if task != table.mean]
    headings = [heading for heading, _ in table.columns] or tasks
    systems = [row.reported for row in table.rows]
    complete = table.mean in printed and set(headings) == set(tasks)
    figures = printed.reindex(index=systems, columns=[*headings, table.mean]).astype(float)
    if not complete:
        figures[table.mean] = row_means(figures[headings])
    return figures.set_axis(pd.Index(table.names(), name="system")).rename_axis(columns=None)


def row_means(figures: pd.DataFrame) -> pd.Series:
    """Return the mean of each row, NaN if one of its figures is missing."""
    # Rounded, so that the order of summation does not affect how 15.55 is printed.
    return figures.mean(axis=1, skipna=False).round(9)


def check_means(table: Table) -> pd.DataFrame:
    """Recompute the printed means: for each system `printed`, `recomputed` and `adds_up`.

    This is `yes` if the mean rounds to the printed one, `rounding` if the rounding of the figures
    can explain the difference, else `no`; empty if not printed.
    """
    printed = printed_figures(table)
    recomputed = row_means(printed.drop(columns=table.mean))
    means = pd.DataFrame({"printed": printed[table.mean], "recomputed": recomputed})
    gap = (means["printed"] - recomputed).abs()
    # Each printed figure may be off by half a unit, and so may the printed mean.
    cases = [gap.isna(), gap <= _HALF_UNIT, gap <= 2 * _HALF_UNIT]
    means["adds_up"] = np.select(cases, ["", "yes", "rounding"], "no")
    return means


def compare(table: Table, measured: pd.DataFrame) -> pd.DataFrame:
    """Compare printed figures with `tables.measured_figures`, one row per system and task.

    A figure with the `note` `misplaced` is compared with the right one, a mean with that of the
    right figures. The verdict is `reproduced` within the table's tolerance, else `higher`, `lower`
    or `not measured`.
    """
    is_printed = [row.reported is not None for row in table.rows]
    right = printed_figures(table)[is_printed].rename_axis(columns="task")
    lines = right.stack().rename("printed").reset_index("task")
    is_mean = lines["task"] == table.mean
    means = check_means(table).loc[lines.index]
    lines["recomputed"] = means["recomputed"].where(is_mean)
    lines["adds_up"] = means["adds_up"].where(is_mean, "")
    notes, about = pd.DataFrame("", right.index, right.columns), read_notes(table)
    for name, row in zip(table.names(), table.rows, strict=True):
        for task, noted in about[about["system"] == row.reported].set_index("task").iterrows():
            if task in right:
                notes.loc[name, task] = noted["note"]
                if noted["note"] == "misplaced":
                    right.loc[name, task] = noted["published"]
    right[table.mean] = row_means(right.drop(columns=table.mean))
    lines["note"] = notes.stack().to_numpy()
    lines["measured"] = measured[is_printed].stack().to_numpy()
    gap = lines["measured"] - right.stack().to_numpy()
    cases = [lines["measured"].isna(), gap.abs() <= table.tolerance, gap > 0]
    lines["difference"] = gap
    lines["verdict"] = np.select(cases, ["not measured", "reproduced", "higher"], "lower")
    return lines
