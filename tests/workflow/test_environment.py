"""The lock file, the package's dependencies, the conda environment and the container agree."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LOCK = dict(
    line.lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if "==" in line
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]

ENVIRONMENT = yaml.safe_load((ROOT / "envs/environment.yaml").read_text())
# Its pins, including those of the post-deployment script.
PINS = dict(
    line.lower().split("==")
    for line in [
        *ENVIRONMENT["dependencies"][-1]["pip"],
        *re.findall(r"[\w-]+==[\w.]+", (ROOT / "envs/environment.post-deploy.sh").read_text()),
    ]
)
PYTHON = re.search(r"\d+\.\d+", PROJECT["requires-python"])[0]


def names(*extras: str) -> set[str]:
    """Return the project's dependencies, with some of its extras."""
    needs = [PROJECT["optional-dependencies"][extra] for extra in extras]
    needed = sum(needs, PROJECT["dependencies"])
    return {re.split(r"[=<>[]", need)[0].lower() for need in needed} - {"revela"}


def test_every_dependency_is_locked():
    assert names(*PROJECT["optional-dependencies"]) <= set(LOCK)


def test_the_conda_environment_pins_what_is_locked():
    assert {package: LOCK.get(package) for package in PINS} == PINS
    assert f"python={PYTHON}" in ENVIRONMENT["dependencies"]


def test_the_conda_environment_holds_what_jobs_need():
    needed = names("lucene", "lm-eval", "cluster")
    submitting = {"snakemake", "snakemake-executor-plugin-slurm"}
    assert needed - submitting <= set(PINS)


def test_every_rule_has_the_environment():
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    count = len(re.findall(r"^rule ", rules, re.MULTILINE))
    assert rules.count('conda:\n        "../../envs/environment.yaml"\n') == count > 0


def test_the_container_installs_the_lock_as_make_does():
    recipe = (ROOT / "envs/Dockerfile").read_text()
    make = (ROOT / "Makefile").read_text()
    assert re.search(r"^FROM python:(\d+\.\d+)", recipe, re.MULTILINE)[1] == PYTHON
    for selection in ("'^(torch|setuptools)=='", "'^deepspeed=='"):
        assert all(selection in text for text in (recipe, make))
    assert "-r /opt/requirements.lock" in recipe
    assert not re.search(r"\w==\d", recipe)  # versions are only in the lock file


def test_the_package_holds_all_its_files():
    files = [path for path in (ROOT / "revela").rglob("*.*") if "__pycache__" not in path.parts]
    others = {str(path.relative_to(ROOT / "revela")) for path in files if path.suffix != ".py"}
    assert set(PYPROJECT["tool"]["setuptools"]["package-data"]["revela"]) == others
