"""The lock file, the package's needs, conda environments and the container agree."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCK = dict(
    line.lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if "==" in line
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# What the rules of each environment run.
MODULES = {
    "train": ["chunking", "batching", "pairs", "pretraining", "training"],
    "evaluate": ["evaluation", "lm_eval", "pydocs", "tables", "figures", "listings", "cost"],
}
# Installed only where there are GPUs.
ELSEWHERE = {"pynvml": "nvidia-ml-py"}


def test_every_dependency_is_locked():
    needed = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    names = {re.split(r"[=<>[]", need)[0].lower() for need in needed}
    assert names - {"revela"} <= set(LOCK)


def pins(name: str) -> dict[str, str]:
    """Return what an environment installs, its post-deployment script included."""
    environment = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())
    lines = list(environment["dependencies"][-1]["pip"])
    script = ROOT / "envs" / f"{name}.post-deploy.sh"
    if script.exists():
        lines += re.findall(r"[\w-]+==[\w.]+", script.read_text())
    return dict(line.lower().split("==") for line in lines)


@pytest.mark.parametrize("name", MODULES)
def test_conda_environments_pin_what_is_locked(name):
    found = pins(name)
    assert found
    assert {package: LOCK.get(package) for package in found} == found
    environment = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())
    assert f"python={PYTHON}" in environment["dependencies"]


@pytest.mark.parametrize("name", MODULES)
def test_conda_environments_hold_what_their_rules_import(name):
    distributions = packages_distributions() | {k: [v] for k, v in ELSEWHERE.items()}
    needed = imported([*MODULES[name], "settings", "outputs"]) | {"typer", "rich", "yaml"}
    found = {distributions[top][0].lower() for top in needed}
    assert {package.replace("_", "-") for package in found} - set(pins(name)) == set()


PYTHON = re.search(r"\d+\.\d+", PROJECT["requires-python"])[0]


def imported(modules: list[str]) -> set[str]:
    """Return the packages that modules of revela import, and those that they import, and so on."""
    queue, seen, packages = [f"revela.{name}" for name in modules], set(), set()
    while queue:
        module = queue.pop()
        path = ROOT / f"{module.replace('.', '/')}.py"
        if module in seen or not path.exists():
            continue
        seen.add(module)
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            queue += [name for name in names if name.startswith("revela.")]
            packages |= {name.partition(".")[0] for name in names}
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
