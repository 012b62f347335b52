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
from revela.config.evaluation import AnyRetriever, IrDatasetsBenchmark, LmEvalBenchmark
from revela.config.keys import type_of
from revela.config.text import Pairs
from revela.step import Made, Output

app = typer.Typer()


@step.step(app)
def pair(settings: Pairs, inputs: dict[str, Path], output: Output, word: str = "made") -> Made:
    """Write a word."""
    if word == "folder":
        output.mkdir()
        return Made("made a folder", {}, [])
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


def test_a_step_replaces_only_a_folder_of_its_own(files):
    options = ["--input", f"a={files / 'input'}", "--word", "folder"]
    assert call(files, *options).exit_code == 0
    assert call(files, *options).exit_code == 0
    (files / "out" / "thesis.tex").touch()
    message = f"{files / 'out' / 'thesis.tex'}: not written by revela, or changed since; move it"
    assert message in str(call(files, *options).exception)
    assert (files / "out" / "thesis.tex").exists()


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


def test_help_answers_at_once():
    code = (
        "import sys; from revela.cli import app; "
        "[app([*name, '--help'], standalone_mode=False) for name in ([], ['train'], ['figure'])]; "
        "print(sorted({'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--settings takes Experiment" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("report.training_figures, report.dynamics_figure, start.run", {"torch", "transformers"}),
        ("evaluation.measure, evaluation.bm25", {"transformers", "revela.retriever.encode"}),
    ],
)
def test_jobs_that_need_no_model_import_none(modules, heavy):
    """Of transformers alone that takes seconds, in each job."""
    names = [f"revela.{name}" for name in modules.split(", ")]
    code = f"import sys, {', '.join(names)}; print(sorted({heavy!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


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
    assert 'pooling "last" | "mean" | "cls" | null = null' in lines  # of the encoding, in a model
    assert "encoding EncodingKeys = {…}" in lines
    assert "--benchmark takes LmEvalBenchmark" in lines
    assert "tasks list of string, required" in lines
    assert any(line.startswith("limit integer > 0 | null = null use only the") for line in lines)


def test_a_mapping_whose_keys_have_a_pattern_has_the_type_of_its_values():
    field = IrDatasetsBenchmark.model_json_schema()["properties"]["tasks"]
    assert type_of(field) == "mapping to string"
