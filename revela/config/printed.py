"""Files of printed figures and of listings named by a config."""

from typing import TYPE_CHECKING

from revela.common.errors import RevelaError, check_name, reading
from revela.config.report import BATCH_COLUMNS, Listing, Table

if TYPE_CHECKING:
    import pandas as pd


def read_reported(table: Table) -> "pd.DataFrame":
    """Read the printed figures of a table: one row per system, one column per task.

    The heading of the file's first column defines its rows: `task`, or `model` for systems.

    Raises:
        RevelaError: the file cannot be read, has another first heading, lacks a system or a task,
            or a cell is no number.
    """
    import pandas as pd

    file = str(table.reported)
    with reading(file, "a CSV of figures"):
        figures = pd.read_csv(file, index_col=0).astype(float)
        if twice := list(figures.index[figures.index.duplicated()]):
            raise ValueError(f"{twice[0]!r} is listed twice")
    if figures.index.name not in ("task", "model"):
        raise RevelaError(
            f"{file}: the first column is headed {figures.index.name!r}; allowed: task, model"
        )
    if figures.index.name == "task":
        figures = figures.T
    for row in table.rows:
        if row.reported is not None:
            check_name(file, "system", row.reported, figures.index)
    for heading, _ in table.columns:
        check_name(file, "task", heading, figures.columns.drop(table.mean, errors="ignore"))
    return figures


def read_notes(table: Table) -> "pd.DataFrame":
    """Read the notes on a table's printed figures: `system`, `task`, `note` and `published`.

    Raises:
        RevelaError: the file cannot be read, or contains another kind of note.
    """
    import pandas as pd

    columns = ["system", "task", "note", "published"]
    if not table.notes:
        return pd.DataFrame(columns=columns)
    with reading(table.notes, "a CSV of notes"):
        notes = pd.read_csv(table.notes)[columns].astype({"published": float})
    for note in notes["note"]:
        check_name(table.notes, "note", str(note), ["copied", "misplaced"])
    return notes


def read_listing(listing: Listing) -> "pd.DataFrame":
    """Read a listing's file, every cell as text.

    Raises:
        RevelaError: the file cannot be read, or lacks a column.
    """
    import pandas as pd

    with reading(listing.file, "a CSV"):
        rows = pd.read_csv(listing.file, dtype=str, keep_default_na=False)
    known = [*rows.columns, *(BATCH_COLUMNS if listing.batches else [])]
    group = [listing.group] if listing.group else []
    for column in [*listing.columns, *listing.links, *listing.links.values(), *group]:
        check_name(listing.file, "column", column, known)
    return rows
