"""Listings: rows of a file, and batches beside the paper's."""

import csv
from pathlib import Path

import pytest

from revela.config import load_config
from revela.config.printed import read_listing
from revela.config.report import Listing
from revela.config.settings import parse_settings
from revela.report import listings
from revela.text.batching import SCHEMA
from revela.text.rows import write_parquet
from tests.report.common import LISTINGS, ROOT, check_latex, squeezed


@pytest.mark.parametrize("name", LISTINGS)
def test_listings_of_the_paper_print_every_cell(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    listing = parse_settings(Listing, load_config(Path("config.yaml")).listings[name].dump())
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        headings, *rows = csv.reader(stream)
    shown = [headings.index(heading) for heading in listing.columns or headings]
    found = read_listing(listing)
    printed = csv.reader(listings.to_csv(listing, found).splitlines())
    assert list(printed) == [[row[n] for n in shown] for row in [headings, *rows]]
    markdown = "\n".join(squeezed(listings.to_markdown(listing, found)))
    latex = listings.to_latex(listing, found)
    for row in rows:
        assert f"| {row[0]} |" in markdown
        for heading, column in listing.links.items():
            text, address = row[headings.index(heading)], row[headings.index(column)]
            assert f"[{text}]({address}) |" in markdown
            assert f"\\href{{{address}}}{{{text}}}" in latex
    groups = {row[headings.index(listing.group)] for row in rows} if listing.group else {""}
    assert latex.count("\\midrule") == len(groups)
    check_latex(latex, tmp_path)


BATCHES = [
    ["Nothing of the kind."] * 16,
    ["Largest Irish island; Michael Davitt | Bridge", *(["Slievemore peat bog " * 20] * 16)],
    ["Irish bog"] * 16,
]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The paper's batch: its listing, the lines of its file, and a function that adds batches."""
    monkeypatch.chdir(ROOT)
    config = load_config(Path("config.yaml"))
    inputs = {"wikipedia": "results/batches/wikipedia.parquet"}
    assert config.inputs("listings", "example_batch") == inputs
    listing = parse_settings(Listing, config.resolved("listings", "example_batch").dump())
    with Path(listing.file).open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    path = tmp_path / "batches.parquet"

    def listed(batches, documents=True):
        rows = [{"source": "wikipedia", "texts": texts, "documents": None} for texts in batches]
        for row in rows if documents else ():
            row["documents"] = [f"d{n}" for n, _ in enumerate(row["texts"])]
        write_parquet(path, SCHEMA, rows)
        return listings.listed(listing, {"wikipedia": path})

    return listing, lines, listed


def test_the_most_similar_batch_is_shown_beside_the_paper(example, tmp_path):
    listing, lines, listed = example
    found = listed(BATCHES)
    printed = list(csv.DictReader(listings.to_csv(listing, found).splitlines()))
    assert [row["Text here"] for row in printed] == BATCHES[1]
    assert [row["Document"] for row in printed] == [f"d{n}" for n in range(17)]
    texts = [line["Text in the paper"] for line in lines]
    assert [row["Text in the paper"] for row in printed] == [*texts, ""]
    markdown = squeezed(listings.to_markdown(listing, found))
    first = f"| 1 | d0 | {BATCHES[1][0]} | {texts[0]} |"
    assert first.replace("Davitt |", "Davitt \\|") in markdown
    assert all(len(line) < 400 for line in markdown)
    latex = listings.to_latex(listing, found)
    assert "NaBH$_{4}$/LiAlH$_{4}$" in latex
    assert latex.count("p{0.38\\linewidth}") == 2
    check_latex(latex, tmp_path)


def test_the_first_batch_is_shown_if_none_is_similar(example):
    _, _, listed = example
    batches = [["Unlike"] * 16, ["Also unlike"] * 16]
    assert list(listed(batches)["Text here"]) == batches[0]
    ready_made = listed(BATCHES[2:], documents=False)
    assert list(ready_made["Text here"]) == BATCHES[2]
    assert set(ready_made["Document"]) == {""}
