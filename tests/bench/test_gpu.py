"""`make gpu` on a machine without a GPU and without most of the project's dependencies."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
