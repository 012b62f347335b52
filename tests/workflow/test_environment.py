"""The lock file, the package's needs, the conda environment and the container agree."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LOCK = dict(
    line.lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if "==" in line
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Installed only where there are GPUs.
ELSEWHERE = {"pynvml": "nvidia-ml-py"}
ENVIRONMENT = yaml.safe_load((ROOT / "envs/environment.yaml").read_text())
# Its pins, the post-deployment script's included.
PINS = dict(
    line.lower().split("==")
    for line in [
        *ENVIRONMENT["dependencies"][-1]["pip"],
        *re.findall(r"[\w-]+==[\w.]+", (ROOT / "envs/environment.post-deploy.sh").read_text()),
    ]
)
PYTHON = re.search(r"\d+\.\d+", PROJECT["requires-python"])[0]


def test_every_dependency_is_locked():
    needed = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    names = {re.split(r"[=<>[]", need)[0].lower() for need in needed}
    assert names - {"revela"} <= set(LOCK)


def test_the_conda_environment_pins_what_is_locked():
    assert {package: LOCK.get(package) for package in PINS} == PINS
    assert f"python={PYTHON}" in ENVIRONMENT["dependencies"]


def test_the_conda_environment_holds_what_the_rules_import():
    distributions = packages_distributions() | {k: [v] for k, v in ELSEWHERE.items()}
    found = {distributions[top][0].lower().replace("_", "-") for top in imported()}
    assert {"torch", "deepspeed", "mteb"} < found
    assert found - set(PINS) == set()


def test_every_rule_has_the_environment():
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    count = len(re.findall(r"^rule ", rules, re.MULTILINE))
    assert rules.count('conda:\n        "../../envs/environment.yaml"\n') == count > 0


def imported() -> set[str]:
    """Return the packages that the modules of revela import."""
    packages = set()
    for path in (ROOT / "revela").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                packages.add(str(node.module).partition(".")[0])
    return packages - {"revela"} - set(sys.stdlib_module_names)


def test_the_container_installs_the_lock_as_make_does():
    recipe = (ROOT / "envs/Dockerfile").read_text()
    make = (ROOT / "Makefile").read_text()
    assert re.search(r"^FROM python:(\d+\.\d+)", recipe, re.MULTILINE)[1] == PYTHON
    for selection in ("'^(torch|setuptools)=='", "'^deepspeed=='"):
        assert selection in recipe
        assert selection in make
    assert "-r /opt/requirements.lock" in recipe
    assert not re.search(r"\w==\d", recipe)  # versions stand in the lock alone
