"""Functions as commands: parsed settings and inputs, atomic outputs, manifests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from revela import step
from revela.common.errors import RevelaError
from revela.common.outputs import sha256
from revela.common.versions import STAGE_VERSIONS
from revela.config.evaluation import AnyRetriever, LmEvalBenchmark
from revela.config.text import Pairs
from revela.step import Made, Output

app = typer.Typer()


@step.step(app)
def pair(settings: Pairs, inputs: dict[str, Path], output: Output, word: str = "made") -> Made:
    """Write a word."""
    output.write_text(word)
    if word == "broken":
        raise RevelaError("broken")
    return Made(f"wrote {word}", {"letters": len(word)}, [inputs["a"].with_name("more")])


@step.step(app)
def evaluate(model: AnyRetriever, benchmark: LmEvalBenchmark, output: Output) -> Made:
    """Write the model's settings."""
    output.write_text(model.kind)
    return Made("done", {})


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("input", "more"):
        (tmp_path / name).write_text(name)
    return tmp_path


def call(files: Path, *options: object) -> Result:
    settings = ["--settings", '{"corpora": ["a"], "negatives": 2}']
    return run("pair", *settings, "--output", files / "out", *options)


def test_a_command_leaves_its_output_and_a_manifest(files):
    result = call(files, "--input", f"a={files / 'input'}", "--word", "long")
    assert (result.exit_code, result.stdout) == (0, "wrote long\n")
    assert (files / "out").read_text() == "long"
    manifest = json.loads((files / "out.manifest.json").read_text())
    assert manifest["settings"] == Pairs(corpora=["a"], negatives=2).model_dump()
    assert manifest["inputs"] == {str(files / n): sha256(files / n) for n in ("input", "more")}
    assert manifest["letters"] == 4
    assert manifest["stage_version"] == STAGE_VERSIONS["pair"]


def test_a_step_that_fails_leaves_nothing(files):
    given = ["--input", f"a={files / 'input'}"]
    assert str(call(files, *given, "--word", "broken").exception) == "broken"
    assert {path.name for path in files.glob("[!.]*")} == {"input", "more"}
    call(files, *given)
    call(files, *given, "--word", "broken")
    assert (files / "out").read_text() == "made"


def test_the_function_itself_is_as_it_was(files):
    made = pair(Pairs(corpora=["a"]), {"a": files / "input"}, files / "out")
    assert made.summary == "wrote made"
    assert not (files / "out.manifest.json").exists()


def test_each_option_of_settings_has_its_own_name(files):
    suite = {"source": "lm-eval", "tasks": ["t"]}
    given = ["--benchmark", json.dumps(suite), "--output", files / "out"]
    assert run("evaluate", "--model", '{"kind": "bm25s"}', *given).exit_code == 0
    manifest = json.loads((files / "out.manifest.json").read_text())
    assert manifest["settings"]["model"] == {"kind": "bm25s", "language": "english"}
    assert manifest["settings"]["benchmark"]["tasks"] == ["t"]
    wrong = run("evaluate", "--model", '{"kind": "bm25"}', *given)
    assert str(wrong.exception).startswith("--model: kind: unknown value 'bm25'; did you mean")
    without = run("evaluate", "--model", "{}", *given)
    assert str(without.exception) == "--model: kind: missing"


HEAVY = {"torch", "transformers", "pandas", "numpy"}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("from revela.cli import app; app(['--help'], standalone_mode=False)", HEAVY),
        ("from revela.cli import app; app(['train', '--help'], standalone_mode=False)", HEAVY),
        ("from revela.cli import app; app(['status', '.'], standalone_mode=False)", HEAVY),
        (
            "import revela.report.training_figures, revela.report.page, revela.start.run",
            {"torch", "transformers"},
        ),
        (
            "import revela.evaluation.measure, revela.evaluation.bm25",
            {"transformers", "revela.retriever.encode"},
        ),
    ],
)
def test_what_needs_no_model_imports_none(tmp_path, code, heavy):
    """Of transformers alone that takes seconds, in each job."""
    code += f"; import sys; print(sorted({heavy!r} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stderr


def test_a_shell_completes_commands():
    code = "import sys; sys.argv = ['revela']; from revela.cli import main; main()"
    asked = {"_REVELA_COMPLETE": "complete_bash", "COMP_WORDS": "revela chu", "COMP_CWORD": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (0, "chunk\n"), result.stderr


def test_help_lists_the_keys_of_settings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [" ".join(line.split()) for line in run("evaluate", "--help").stdout.splitlines()]
    assert "--model takes Bm25Model | LuceneModel | EncoderModel | ApiModel" in lines
    assert "b number ≥ 0 ≤ 1 = 0.4" in lines
    assert any(line.startswith('prefixes "paper" | "train" | "authors" | null') for line in lines)
    assert "encoding EncodingKeys = {…}" in lines
    assert "--benchmark takes LmEvalBenchmark" in lines
    assert "tasks list of string, required" in lines
    assert any(line.startswith("limit integer > 0 | null = null use only the") for line in lines)
