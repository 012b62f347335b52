"""`revela run`: Snakemake on a config of one's own, a line a job."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CONFIG = {
    "corpora": {"mine": {"source": "files", "path": "texts"}},
    "batches": {"mine": {"corpora": ["mine"], "batch_size": 2}},
}
BATCHES = "results/batches/mine.parquet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "texts").mkdir()
    for n in range(6):
        (folder / f"texts/{n}.txt").write_text(f"River {n} has water. Fish live in it.")
    return folder


def run(folder: Path, config: dict, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "revela", "run", "mine.yaml", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_line_a_job_and_nothing_else_to_do(folder):
    first = run(folder, CONFIG, BATCHES)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("snakemake --snakefile ")
    assert "--configfile mine.yaml --replace-workflow-config" in first.stdout
    assert re.search(r"\[1/2\] chunk mine, \d+ s; about .* left\n\[2/2\] batch mine", first.stderr)
    assert "6 documents" not in first.stdout + first.stderr  # that stands in the log
    assert "6 documents" in (folder / "results/logs/chunk/mine.log").read_text()
    second = run(folder, CONFIG, BATCHES)
    assert second.stderr.strip().startswith("Nothing to be done")
    dry = run(folder, CONFIG, "-n")
    assert "This was a dry-run" in dry.stdout + dry.stderr


def test_the_last_line_is_why_a_job_failed(folder):
    large = json.loads(json.dumps(CONFIG))
    large["batches"]["mine"]["batch_size"] = 20
    result = run(folder, large, BATCHES)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == (
        "batch mine: revela: error: corpora mine: 6 chunks are too few for one batch of 20 "
        "(see results/logs/batch/mine.log)"
    )
    assert "Traceback" not in result.stderr
    assert "set -euo" not in result.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("results/batches/mien.parquet", "unknown target .*; did you mean 'results/batches/mine"),
        ("results/tables/x.csv", "unknown target"),
    ],
)
def test_a_misspelt_target_is_named(folder, target, message):
    result = run(folder, CONFIG, target)
    assert result.returncode == 1
    assert re.search(f"revela: error: mine.yaml: {message}", result.stderr)
