"""The book: its generated pages contain every key, command and figure, and use no other host."""

import re
import runpy
from pathlib import Path

import nbformat
import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config as load_site
from nbclient import NotebookClient

from revela.cli import app
from revela.config import Config, load_config

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs/notebooks/in-batch-attention.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build(load_site(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_pages_load_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*?src=\"?([^\" >]+)", html)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect|icon)[^>]*", html)
        assert [one for one in loaded if "//" in one.partition("data:")[0]] == [], path


def test_every_key_of_a_config_is_listed(site):
    schema, html = Config.model_json_schema(), page(site, "reference/config")
    keys = {key for one in schema["$defs"].values() for key in one["properties"]}
    assert len(keys) > 100
    assert [key for key in keys | set(schema["properties"]) if key not in html] == []


def test_every_command_is_listed(site):
    html = page(site, "reference/commands")
    for name in typer.main.get_command(app).commands:
        assert f'id="revela-{name}"' in html


def test_placeholders_are_no_tags(site):
    for path in (site / "reference").rglob("*.html"):
        assert re.findall(r"<(?:path|task|model|output|experiment)>", path.read_text()) == [], path


def test_every_figure_names_files_that_can_be_made(site):
    html, targets = page(site, "figures"), set(load_config(ROOT / "config.yaml").targets())
    made = set(re.findall(r"results/\w+/[^<\s]+", html))
    assert len(made) > 300
    assert made <= targets
    assert len(re.findall(r">\d\d\.\d<", html)) > 500


def test_diagrams_are_those_of_their_script(tmp_path):
    folder = ROOT / "docs/drawings"
    runpy.run_path(str(folder / "draw.py"))["main"](tmp_path)
    drawn, kept = ({path.name: path.read_text("utf-8") for path in here.glob("*.svg")}
                   for here in (tmp_path, folder))  # fmt: skip
    assert drawn == kept


def test_equations_are_set(site):
    html = page(site, "in-batch-attention")
    assert html.count("<math") > 15
    assert "$$" not in html
    assert "`$" not in html


def test_the_notebook_runs_and_prints_what_it_shows():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = printed(notebook)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": ROOT}}).execute()
    assert numbers(printed(notebook)) == pytest.approx(numbers(shown), abs=0.1)
    before, after = re.search(r"same text: (\S+) before, (\S+) after", printed(notebook)).groups()
    assert float(after) > float(before) + 0.2


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_the_version_is_one():
    found = [
        re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[1]
        for pattern, file in (
            (r'^version = "(.+)"', "pyproject.toml"),
            (r"^version: (.+)", "CITATION.cff"),
            (r"^## (\d\S+)", "CHANGELOG.md"),
        )
    ]
    assert len(set(found)) == 1
