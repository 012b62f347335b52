"""The schema for editors: it is up to date, accepts valid configs and finds mistakes."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from revela.config.schema import written_schema
from tests import test_bad_input as bad

ROOT = Path(__file__).parents[2]
FILE = ROOT / "workflow/schema.json"
CHECK = jsonschema.Draft202012Validator(json.loads(FILE.read_text()))
SHIPPED = sorted(path.name for path in ROOT.glob("config*.yaml"))
# JSON has no infinity and does not distinguish 2.0 from 2; a base may name the objective.
BEYOND = re.compile(r"finite number|got \d+\.0$|objective.name: missing|temperature--1")
WRONG = [
    pytest.param(name, value, line, id=line)
    for name, value, line in bad.TABLE["config"]["check"]
    if re.search("unknown key|unknown value|missing|Input should|is now called", line)
    and not BEYOND.search(line)
]


def problems(config: Any) -> str:
    """Return all problems of a configuration, including those of each choice."""

    def messages(error: jsonschema.ValidationError) -> list[str]:
        return [error.message, *(line for one in error.context for line in messages(one))]

    return "\n".join(line for error in CHECK.iter_errors(config) for line in messages(error))


def test_the_file_is_current():
    assert json.loads(FILE.read_text()) == written_schema(), "revela schema > workflow/schema.json"
    CHECK.check_schema(CHECK.schema)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_fit_and_name_it(name):
    text = (ROOT / name).read_text()
    first = text.partition("\n")[0]
    assert (ROOT / first.removeprefix("# yaml-language-server: $schema=")).samefile(FILE)
    assert not problems(yaml.safe_load(text))
    assert not re.search(r"\d_\d", text), "a number for Python, a text for editors (YAML 1.2)"


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("corpora", {"base": "rows", "max_words": 3}),
        ("experiments", {"base": "ours", "objective": {"temperature": 0.5}}),
        ("experiments", {"base": "ours", "grid": {"temperature": [0.1, 1], "data": ["a"]}}),
        ("experiments", {"base": "ours", "seeds": 3, "encoding": {"prefixes": "train"}}),
        ("tables", {"caption": "c", "rows": ["bm25", "ours*", {"label": "a", "model": ["b"]}]}),
        ("tables", {"base": "main", "columns": {"Both": ["mine", "hub"], "Mine": "task"}}),
    ],
)
def test_shorthands_fit(section, entry):
    config = bad.PROJECT["config"]
    assert not problems(config | {section: config[section] | {"new": entry}})


@pytest.mark.parametrize(("name", "value", "line"), WRONG)
def test_it_finds_mistakes_of_keys_and_values(tmp_path, monkeypatch, name, value, line):
    monkeypatch.chdir(tmp_path)
    bad.change(f"mine.yaml:{name}", value, monkeypatch)
    found = problems(yaml.safe_load(Path("mine.yaml").read_text()))
    assert found
    if key := re.search("unknown key '(.+?)'", line):
        assert repr(key[1]) in found
