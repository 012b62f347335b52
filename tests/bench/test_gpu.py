"""`make gpu` on a machine without a GPU and without most of the project's dependencies."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# Nor datasets and pandas, which sentence-transformers imports where they are installed.
MISSING = ("pydantic", "nltk", "mteb", "snakemake", "deepspeed", "pytest", "typer")


def bench(folder: Path, *options: str) -> str:
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({MISSING}))\n"
    )
    command = [sys.executable, "-m", "bench.gpu", "--tiny", "--output", str(folder), *options]
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not result.returncode, result.stdout + result.stderr
    return (folder / "RESULTS-CPU.md").read_text()


def test_every_section_runs_and_what_is_done_is_not_run_again(tmp_path):
    text = bench(tmp_path)
    assert "failed" not in text
    kept = json.loads((tmp_path / "RESULTS-CPU.json").read_text())
    assert [title for title in kept if f"## {title}\n" not in text] == []
    kept["Encoding"]["rows"] = [{"kept": "by hand"}]
    (tmp_path / "RESULTS-CPU.json").write_text(json.dumps(kept))
    assert "by hand" in bench(tmp_path, "--minutes", "0")  # no time for another section


def test_a_section_that_fails_says_so_and_leaves_the_others(tmp_path):
    from bench.gpu.__main__ import run

    def measure(title, _):
        if title == "one":
            raise RuntimeError("no such kernel\nand more")
        return [{"x": "1"}, {"x": "2", "y": "3"}]

    kept = tmp_path / "kept.json"
    results = run(["one", "two"], measure, kept, float("inf"))
    text = (tmp_path / "kept.md").read_text()
    assert "## one\n\nfailed: RuntimeError: no such kernel\n" in text
    assert "| x | y |\n| --- | ---: |\n| 1 |  |\n| 2 | 3 |" in text
    assert json.loads(kept.read_text()).keys() == {"two"}
    late = run(["one", "two"], measure, kept, 0.0)
    assert late["one"]["failed"].startswith("not run: no time was left")
    assert late["two"] == results["two"]


def test_the_demo_is_found_from_a_folder_of_its_own():
    from bench.gpu import demo

    assert demo.measure(tiny=True) == [{"": "planned, not run"}]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (lambda: os._exit(7), "its process ended with exit code 7"),
        (lambda: time.sleep(60), "took more than 5 s"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_section_that_dies_or_hangs_ends_alone(ending, reason, monkeypatch):
    from bench.gpu import sections

    monkeypatch.setattr(sections, "CONTEXT", multiprocessing.get_context("fork"))
    monkeypatch.setattr(sections, "sections", lambda *_: {"one": ending})
    with pytest.raises(RuntimeError, match=reason):
        sections.in_child("one", 5, tiny=True)


def test_a_batch_that_does_not_fit_is_tried_with_checkpointing_and_leaves_nothing(monkeypatch):
    from bench.gpu import steps

    class Held:
        alive = 0

        def __init__(self):
            Held.alive += 1

        def __del__(self):
            Held.alive -= 1

    def measured(shape, device, tiny, size, together, checkpointing, fused, rate):
        assert Held.alive == 0
        held = Held()  # as the models, in the frame that raises
        if together == 2 or not checkpointing:
            raise torch.OutOfMemoryError(str(held))
        return {"B": str(size), "checkpointing": "yes"}

    monkeypatch.setattr(steps, "_revela", measured)
    monkeypatch.setattr(steps, "rate_of", lambda *_: 1.0)
    rows = steps.revela("SmolLM2-135M", torch.device("cpu"), tiny=True)
    assert rows[0] == {"B": "2", "checkpointing": "yes"}
    assert rows[-1] == {"B": "2", "batches a forward": "2", "GB": "too many"}
