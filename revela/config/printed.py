"""The files of printed figures and of listings that a config names."""

from pathlib import Path
from typing import TYPE_CHECKING

from revela.common.errors import RevelaError, reading, unknown_name
from revela.config.report import BATCH_COLUMNS, Listing

if TYPE_CHECKING:
    import pandas as pd


def read_reported(path: Path) -> "pd.DataFrame":
    """Read printed figures: one row a system, one column a task.

    The heading of the file's first column says what its rows are: `task`, or `model` for systems.

    Raises:
        RevelaError: the file cannot be read, has another first heading, or a cell is no number.
    """
    import pandas as pd

    with reading(path, "a CSV of figures"):
        figures = pd.read_csv(path, index_col=0).astype(float)
    if figures.index.name not in ("task", "model"):
        raise RevelaError(
            f"{path}: the first column is headed {figures.index.name!r}; allowed: task, model"
        )
    return figures.T if figures.index.name == "task" else figures


def read_listing(listing: Listing) -> "pd.DataFrame":
    """Read a listing's file, every cell as it stands there.

    Raises:
        RevelaError: the file cannot be read, or lacks a column.
    """
    import pandas as pd

    with reading(listing.file, "a CSV"):
        rows = pd.read_csv(listing.file, dtype=str, keep_default_na=False)
    known = [*rows.columns, *(BATCH_COLUMNS if listing.batches else [])]
    group = [listing.group] if listing.group else []
    for column in [*listing.columns, *listing.links, *listing.links.values(), *group]:
        if column not in known:
            raise RevelaError(f"{listing.file}: {unknown_name('column', column, known)}")
    return rows
