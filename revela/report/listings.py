"""Listings: tables of text, as CSV, Markdown and LaTeX."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from revela.config.printed import read_listing
from revela.config.report import BATCH_COLUMNS, Listing
from revela.report.render import as_latex, latex, markdown
from revela.text.batching import read_batches

_SHOWN = 160  # characters of a batch's text, about as many as in the paper; the CSV has all of them
_WIDE = 100  # columns of LaTeX wrap from this many characters


def listed(listing: Listing, inputs: Mapping[str, Path]) -> pd.DataFrame:
    """Return the rows of a listing's file, next to the batch of its set that is most like them."""
    rows = read_listing(listing)
    if listing.batches is None:
        return rows
    printed, batches = _words(rows.to_numpy().ravel()), read_batches(inputs[listing.batches])
    closest = max(batches, key=lambda batch: len(printed & _words(batch["texts"])))
    beside = pd.DataFrame(closest, columns=["documents", "texts"])
    return pd.concat([rows, beside.set_axis(BATCH_COLUMNS, axis=1)], axis=1).fillna("")


def to_csv(listing: Listing, rows: pd.DataFrame) -> str:
    """Return the printed columns of a listing as CSV, without the targets of links."""
    return rows[listing.columns or list(rows.columns)].to_csv(index=False)


def to_markdown(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as Markdown."""
    return markdown(_cells(listing, rows), listing.caption, align="left")


def to_latex(listing: Listing, rows: pd.DataFrame) -> str:
    """Return a listing as LaTeX with a rule where its `group` changes."""
    cells = _cells(listing, rows)
    wide = [cells[name].str.len().max() > _WIDE for name in cells]
    wrapped = f"p{{{0.76 / max(sum(wide), 1):.2f}\\linewidth}}"
    columns = "l" + "".join(wrapped if is_wide else "l" for is_wide in wide)
    blocks = rows[listing.group] if listing.group else [""] * len(rows)
    return latex(as_latex(cells), listing.caption, blocks, columns=columns)


def _cells(listing: Listing, rows: pd.DataFrame) -> pd.DataFrame:
    cells = rows[listing.columns or list(rows.columns)].copy()
    for name, column in listing.links.items():
        cells[name] = "[" + rows[name] + "](" + rows[column] + ")"
    for name in cells.columns.intersection(BATCH_COLUMNS):
        cells[name] = [textwrap.shorten(text, _SHOWN, placeholder=" …") for text in cells[name]]
    return cells.set_index(cells.columns[0])


def _words(texts: Iterable[str]) -> set[str]:
    return set(re.findall(r"\w+", unicodedata.normalize("NFKC", " ".join(texts)).lower()))
