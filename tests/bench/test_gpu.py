"""`make gpu` on a machine without a GPU and without ten of the packages that it may lack."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch

ROOT = Path(__file__).parents[2]
MISSING = ("pydantic", "nltk", "mteb", "snakemake", "deepspeed", "pytest", "typer")
MISSING += ("sentence_transformers", "sklearn", "scipy")


def bench(folder: Path, *options: str) -> str:
    without = f"import sys\nsys.modules.update(dict.fromkeys({MISSING}))\n"
    (folder / "sitecustomize.py").write_text(without)
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


def test_a_section_that_fails_says_so_and_keeps_its_rows(tmp_path):
    from bench.gpu.__main__ import run

    def measure(title, _):
        rows = [{"x": "1"}, {"x": "2", "y": "3"}]
        return rows, "RuntimeError: no such kernel\nand more" if title == "one" else ""

    kept, limits = tmp_path / "kept.json", {"one": 60, "two": 60}
    results = run(limits, measure, kept, float("inf"))
    text = (tmp_path / "kept.md").read_text()
    table = "| x | y |\n| --- | ---: |\n| 1 |  |\n| 2 | 3 |"
    assert f"## one\n\nfailed: RuntimeError: no such kernel\n\n{table}" in text
    assert json.loads(kept.read_text()).keys() == {"two"}
    late = run(limits, measure, kept, 0.0)
    assert late["one"]["failed"].startswith("not run: no time was left")
    assert late["two"] == results["two"]
    assert "failed" in run(limits, measure, kept, 0.0, "other code")["two"]


def test_no_section_lasts_longer_than_what_is_left(tmp_path):
    from bench.gpu.__main__ import run

    measure, end = mock.Mock(return_value=([], "")), time.monotonic() + 100
    run({"one": 60.0, "two": 1000.0}, measure, tmp_path / "kept", end)
    given = [call.args[1] for call in measure.call_args_list]
    assert given == [60, pytest.approx(100, abs=5)]


def test_the_first_sections_take_less_than_ten_minutes():
    from bench.gpu.sections import sections

    plan = sections(torch.device("cpu"), tiny=False)
    first = [*plan][: [*plan].index("Encoding") + 1]
    assert sum(plan[title][0] for title in first) < 570


def test_the_demo_is_found_from_a_folder_of_its_own():
    from bench.gpu import demo

    assert [*demo.measure(tiny=True)] == [{"": "planned, not run"}]


def _exits():
    yield {"x": "1"}
    os._exit(7)


def _hangs():
    yield {"x": "1"}
    time.sleep(60)


def _divides():
    yield {"x": str(1)}
    yield {"x": 1 / 0}


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (_exits, "its process ended with exit code 7"),
        (_hangs, "took more than 5 s"),
        (_divides, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_section_that_dies_or_hangs_ends_alone(ending, reason, monkeypatch):
    from bench.gpu import sections

    monkeypatch.setattr(sections, "CONTEXT", multiprocessing.get_context("fork"))
    monkeypatch.setattr(sections, "sections", lambda *_: {"one": (5, ending)})
    rows, wrong = sections.in_child("one", 5, tiny=True)
    assert (rows, wrong) == ([{"x": "1"}], reason)


def test_a_batch_that_does_not_fit_is_tried_with_checkpointing_and_leaves_nothing(monkeypatch):
    from bench.gpu import steps

    alive = weakref.WeakSet()

    def measured(shapes, device, tiny, size, together, how, rate):
        assert not alive
        held = torch.nn.Module()  # as the models, in the frame that raises
        alive.add(held)
        if together == 2 or not how:
            raise torch.OutOfMemoryError(str(held))
        return {"B": str(size), "how": how}

    monkeypatch.setattr(steps, "_revela", measured)
    monkeypatch.setattr(steps, "rate_of", lambda *_: 1.0)
    rows = steps.revela("SmolLM2-135M", torch.device("cpu"), True, [(2, 1, ""), (2, 2, "")])
    assert [*rows] == [
        {"B": "2", "how": "checkpointing"},
        {"B": "2", "batches a forward": "2", "GB": "too many"},
    ]
