"""Listings: tables of the paper that list instead of measuring, as CSV, Markdown and LaTeX."""

from itertools import groupby

import pandas as pd

from revela.config.report import Listing
from revela.report.tables import escape, grid_to_markdown, latex_line, latex_table


def to_csv(listing: Listing, rows: pd.DataFrame) -> str:
    """Return what a listing prints as CSV, links as their texts."""
    return rows[_headings(listing, rows)].to_csv(index=False)


def to_markdown(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as Markdown."""
    headings = _headings(listing, rows)
    grid = [headings]
    for _, row in rows.iterrows():
        links = {name: f"[{row[name]}]({row[column]})" for name, column in listing.links.items()}
        grid.append([links.get(name, row[name]) for name in headings])
    return f"{listing.caption}\n\n{grid_to_markdown(grid, '---')}"


def to_latex(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as LaTeX, a rule where its `group` changes."""
    headings = _headings(listing, rows)
    blocks = [[latex_line([escape(name) for name in headings])]]
    groups = rows[listing.group] if listing.group else [""] * len(rows)
    lines = zip(groups, rows.iterrows(), strict=True)
    for _, block in groupby(lines, key=lambda line: line[0]):
        blocks.append([])
        for _, (_, row) in block:
            cells = {name: escape(row[name]) for name in headings}
            for name, column in listing.links.items():
                cells[name] = f"\\href{{{escape(row[column])}}}{{{cells[name]}}}"
            blocks[-1].append(latex_line(list(cells.values())))
    needs = "booktabs and hyperref" if listing.links else "booktabs"
    return latex_table(listing.caption, "l" * len(headings), blocks, needs)


def _headings(listing: Listing, rows: pd.DataFrame) -> list[str]:
    return listing.columns or [str(column) for column in rows.columns]
