"""Listings: tables of text, as CSV, Markdown and LaTeX."""

import pandas as pd

from revela.config.report import Listing
from revela.report.render import as_latex, latex, markdown


def to_csv(listing: Listing, rows: pd.DataFrame) -> str:
    """Return the printed columns of a listing as CSV, links as their texts."""
    return rows[listing.columns or list(rows.columns)].to_csv(index=False)


def to_markdown(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as Markdown."""
    return markdown(_cells(listing, rows), listing.caption, align="left")


def to_latex(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as LaTeX with a rule where its `group` changes."""
    blocks = rows[listing.group] if listing.group else [""] * len(rows)
    return latex(as_latex(_cells(listing, rows)), listing.caption, blocks, align="left")


def _cells(listing: Listing, rows: pd.DataFrame) -> pd.DataFrame:
    cells = rows[listing.columns or list(rows.columns)].copy()
    for name, column in listing.links.items():
        cells[name] = "[" + rows[name] + "](" + rows[column] + ")"
    return cells.set_index(cells.columns[0])
