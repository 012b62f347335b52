"""Renders all tables: Markdown by tabulate, LaTeX by pandas' Styler."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pandas as pd
from tabulate import tabulate

MISSING = "–"


def with_digits(frame: pd.DataFrame, digits: Mapping[str, int]) -> pd.DataFrame:
    """Return a frame with these columns as text with the given decimals, NaN as a dash."""
    texts = {name: frame[name].map(f"{{:.{count}f}}".format) for name, count in digits.items()}
    return frame.assign(**texts).replace("nan", MISSING)


def markdown(
    rows: pd.DataFrame,
    caption: str = "",
    notes: Iterable[str] = (),
    align: Literal["left", "right"] = "right",
) -> str:
    """Return a table as Markdown, with its caption above and its notes below, as paragraphs.

    `rows` are texts whose index is the first column. `align` applies to all columns but the first.
    """
    cells = rows.map(_cell).rename(index=_cell, columns=_cell)
    grid = tabulate(cells, "keys", "pipe", stralign=align, colalign=["left"], disable_numparse=True)
    return "\n\n".join(text for text in (caption, grid, *notes) if text) + "\n"


def _cell(value: Any) -> str:
    return str(value).replace("|", r"\|")


def latex(
    cells: pd.DataFrame,
    caption: str,
    blocks: Iterable[str],
    notes: Iterable[str] = (),
    columns: str = "",
    merged: bool = False,
) -> str:
    """Return a table as LaTeX; its first line lists the required packages.

    `cells` are LaTeX (see `as_latex`), their index the first column; caption and notes are plain
    text. A rule separates neighbouring rows of different `blocks`. With `merged`, equal
    neighbouring headings are merged, except in the last line of headings.
    """
    before, labels = None, []
    for label, block in zip(cells.index, blocks, strict=True):
        labels.append(f"\\midrule\n{label}" if before not in (None, block) else label)
        before = block
    tabular = cells.set_axis(labels).style.to_latex(
        hrules=True,
        column_format=columns or "l" + "r" * cells.shape[1],
        multicol_align="c",
        sparse_columns=merged,
    )
    below = "".join(f"\\par\\smallskip {escape(note)}\n" for note in notes)
    return (
        "% needs booktabs, hyperref, and xcolor with its option table\n"
        "\\begin{table}[t]\n\\centering\n\\scriptsize\n\\setlength{\\tabcolsep}{2pt}\n"
        f"\\caption{{{escape(caption)}}}\n\\smallskip\n{tabular}{below}\\end{{table}}\n"
    )


def as_latex(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of Markdown as LaTeX: its cells, headings and index."""

    def convert(text: str) -> str:
        text = re.sub(r"\*\*(.*)\*\*", r"\\textbf{\1}", escape(text))
        return re.sub(r"\[(.*)\]\((.*)\)", r"\\href{\2}{\1}", text)

    # Above the first column Styler prints the name of the headings, not of the index.
    name = convert(cells.index.name or "")
    cells = cells.map(convert).rename(index=convert, columns=convert)
    return cells.rename_axis(index=None, columns=name)


# pandas escapes cells and headings but not captions, and does not convert † and →.
_LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {letter: f"$^{{{plain}}}$" for letter, plain in zip("ᵃᵇᶜᵈ²⁺", "abcd2+", strict=True)}
    | {letter: f"$_{{{plain}}}$" for letter, plain in zip("ₐ₂₃₄", "a234", strict=True)}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"†": "$^{\\dagger}$", "‡": "$^{\\ddagger}$", "≥": "$\\geq$", "×": "$\\times$"}
    | {"α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "λ": "$\\lambda$", "τ": "$\\tau$"}
    | {"→": "$\\rightarrow$", "–": "--", "’": "'", "“": "``", "”": "''", "…": "\\ldots{}"}
)


def escape(text: str) -> str:
    """Return plain text as LaTeX."""
    return text.translate(_LATEX)
