"""The diagrams of the documentation are those of their script, and are readable."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/drawings"
SCRIPT = runpy.run_path(str(FOLDER / "draw.py"))
SVG = "{http://www.w3.org/2000/svg}"


def test_the_script_still_writes_these_files(tmp_path):
    SCRIPT["main"](tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}


@pytest.mark.parametrize("name", SCRIPT["DRAWINGS"])
def test_every_text_is_within_its_drawing(name):
    root = ElementTree.fromstring((FOLDER / name).read_text(encoding="utf-8"))
    texts = root.findall(f"{SVG}text")
    assert len(texts) > 20
    for text in texts:
        font = FontProperties("DejaVu Sans", weight=text.get("font-weight", "normal"))
        font.set_size(float(text.get("font-size")))
        width, _, _ = TextToPath().get_text_width_height_descent(text.text, font, False)
        share = {"end": 1, "middle": 0.5}.get(text.get("text-anchor"), 0)
        left = float(text.get("x")) - share * width
        assert left >= 0, text.text
        assert left + width <= float(root.get("width")), text.text
        assert 0 < float(text.get("y")) < float(root.get("height")), text.text


def test_similarities_are_those_of_chunks_that_read_each_other():
    rows = [list(row.values()) for row in SCRIPT["SIMILARITY"].values()]
    assert [sum(row) for row in [*rows, *SCRIPT["WEIGHTS"]]] == pytest.approx([1] * 7)
    assert all(name not in row for name, row in SCRIPT["SIMILARITY"].items())
    assert all(row[n] == 0 for n, row in enumerate(SCRIPT["WEIGHTS"]))


def test_each_drawing_is_used():
    used = set()
    for page in (ROOT / "README.md", ROOT / "docs/study.md"):
        for link in re.findall(r"\]\((\S+\.svg)\)", page.read_text(encoding="utf-8")):
            used.add((page.parent / link).resolve())
    assert used == set(FOLDER.glob("*.svg"))
