"""Commands of the documentation: Snakemake plans them, revela knows their options."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from revela.cli import app

ROOT = Path(__file__).parents[1]
RUN = ("check", "check-paper", "settings")  # those that run in seconds, offline
CONFIGS = ("config.yaml", "config.demo.yaml", "config.study.yaml")  # others are the reader's


def commands() -> list[str]:
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [re.split(r"\s+# ", line.removeprefix("$ "))[0].strip() for line in lines]
    return list(dict.fromkeys(line for line in found if line))


def of(program: str) -> list[str]:
    """Return commands with this program, whatever is set in front of it."""
    start = re.compile(rf"^([A-Z_]+=\S+ )*({program})\b")
    return [line for line in commands() if start.search(line)]


def test_there_are_commands():
    assert len(of("snakemake")) > 6
    assert len(of("revela|python -m revela")) > 6


@pytest.mark.parametrize("line", of("snakemake"))
def test_snakemake_can_plan_what_is_documented(line, tmp_path):
    assert re.search(r"--cores|--profile|-n\b", line), "Snakemake refuses it"
    if "--report" in line or "collections.yaml" in line:
        return  # after a run, of the reader's own
    (tmp_path / "mine").mkdir()  # the overlay that README has its reader write
    (tmp_path / "mine/config.yaml").write_text("default-resources: {slurm_partition: gpu}\n")
    result = subprocess.run(
        ["bash", "-c", f"{line.replace('~', str(tmp_path))} --dry-run --quiet --nolock"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("line", of("revela|python -m revela"))
def test_revela_takes_what_is_documented(line):
    words = shlex.split(line[line.index("revela") :])
    words = words[words.index("revela") + 1 :] if "revela" in words else words[1:]
    name, *arguments = words[1:] if words[0] == "revela" else words
    group = typer.main.get_command(app)
    assert name in group.commands, f"{line}: no such command"
    known = {option for parameter in group.commands[name].params for option in parameter.opts}
    options = {word for word in arguments if word.startswith("--")}
    if name != "run":  # which passes them on
        assert options <= known
    named = [word for word in arguments if word.endswith(".yaml")]
    if name in RUN and set(named) <= set(CONFIGS):
        subprocess.run(["revela", name, *arguments], cwd=ROOT, check=True, timeout=120)
