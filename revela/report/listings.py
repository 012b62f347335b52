"""Listings: tables of the paper that list instead of measuring, as CSV, Markdown and LaTeX."""

import pandas as pd

from revela.config.report import Listing
from revela.report.render import escape, latex, markdown


def to_csv(listing: Listing, rows: pd.DataFrame) -> str:
    """Return the printed columns of a listing as CSV, links as their texts."""
    return _printed(listing, rows).to_csv(index=False)


def to_markdown(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as Markdown."""
    cells = _printed(listing, rows)
    for name, column in listing.links.items():
        cells[name] = "[" + rows[name] + "](" + rows[column] + ")"
    return markdown(cells.set_index(cells.columns[0]), listing.caption, align="left")


def to_latex(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as LaTeX, a rule where its `group` changes."""
    cells = _printed(listing, rows).map(escape).rename(columns=escape)
    for name, column in listing.links.items():
        text = escape(name)
        cells[text] = "\\href{" + rows[column].map(escape) + "}{" + cells[text] + "}"
    # Styler prints the name of the columns, not that of the index, above the first column.
    cells = cells.set_index(cells.columns[0]).rename_axis(index=None, columns=cells.columns[0])
    blocks = rows[listing.group] if listing.group else [""] * len(rows)
    return latex(cells, listing.caption, blocks, align="left")


def _printed(listing: Listing, rows: pd.DataFrame) -> pd.DataFrame:
    return rows[listing.columns or list(rows.columns)].copy()
