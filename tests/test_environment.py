"""The lock file, the package's needs and the conda environments agree."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
LOCK = dict(
    line.lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if "==" in line
)


def test_every_dependency_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = {re.split(r"[=<>[]", need)[0].lower() for need in needed}
    assert names - {"revela"} <= set(LOCK)


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_conda_environments_pin_what_is_locked(name):
    environment = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())
    pins = dict(pin.lower().split("==") for pin in environment["dependencies"][-1]["pip"])
    assert pins
    assert {package: LOCK.get(package) for package in pins} == pins
