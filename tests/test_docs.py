"""Every command in the documentation runs: long ones as a dry run, the others on small data."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from revela.cli import app
from revela.common.outputs import write_json
from revela.config import load_config
from revela.config.training import Experiment
from revela.evaluation.benchmarks import write_collection
from tests.conftest import TEXTS, make_encoder

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SNAKEMAKE, REVELA, MAKE = "snakemake", "revela|python -m revela", "make"
# Setting up, and a server that is not installed.
OTHERS = r"\. \.venv/bin/activate|mkdir -p ~/mine; cat >|pre-commit install|vllm serve"
# Endless, for four GPUs or the hub, or after a run: tested elsewhere; here only their options.
NOT_RUN = r"revela serve|revela check .* results|revela train|revela report|revela run .* --report"


def blocks() -> list[str]:
    """Return the shell blocks of all pages, without here-documents."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    document = re.compile(r"(<<END).*?\nEND$", re.DOTALL | re.MULTILINE)
    return [document.sub(r"\1", block) for block in found]


def commands() -> list[str]:
    """Return each command once; a block with a prompt also shows the output of its command."""
    found = []
    for block in blocks():
        lines = block.replace("\\\n", " ").splitlines()
        lines = [line[2:] for line in lines if line.startswith("$ ")] or lines
        found += [re.split(r"\s+# ", line)[0].strip() for line in lines]
    return list(dict.fromkeys(line for line in found if line))


def of(program: str) -> list[str]:
    """Return commands with this program, ignoring variables set before it."""
    start = re.compile(rf"^([A-Z_]+=\S+ )*({program})\b")
    return [line for line in commands() if start.search(line)]


def test_every_command_has_a_test():
    tested = {line for program in (SNAKEMAKE, REVELA, MAKE) for line in of(program)}
    others = [line for line in commands() if line not in tested]
    assert [line for line in others if not re.match(OTHERS, line)] == []
    assert min(map(len, map(of, (SNAKEMAKE, REVELA, MAKE)))) > 2


@pytest.mark.parametrize("line", of(MAKE))
def test_make_has_what_is_documented(line):
    subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, check=True, capture_output=True)


PLANNED = [re.sub(" -n(.*--profile)?", r" --cores 8\1", line) for line in of(SNAKEMAKE)]


@pytest.mark.parametrize("line", dict.fromkeys(PLANNED))
def test_snakemake_can_plan_what_is_documented(line, tmp_path):
    assert re.search("--cores|--profile", line), "Snakemake refuses it"
    if "--report" in line or "collections.yaml" in line:
        return  # after a run of the reader's config
    (tmp_path / "mine").mkdir()  # the overlay that the page tells the reader to write
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


def parsed(line: str) -> tuple[str, list[str]]:
    """Return the name of a `revela` command and its arguments."""
    words = shlex.split(line)
    name, *arguments = words[len(words) - words[::-1].index("revela") :]
    return name, arguments


@pytest.mark.parametrize("line", of(REVELA))
def test_revela_knows_the_options(line):
    name, arguments = parsed(line)
    known_commands = typer.main.get_command(app).commands
    assert name in known_commands, f"{line}: no such command"
    known = {option for parameter in known_commands[name].params for option in parameter.opts}
    if name != "run":  # which passes them to Snakemake
        assert {word for word in arguments if word.startswith("--")} <= known


def test_a_training_by_hand_reads_the_data_of_its_experiment():
    pattern = r'settings (config\S*) experiments (\S+)\)"\s+--data (\S+)'
    found = re.findall(pattern, "\n".join(commands()))
    assert found
    for config, name, data in found:
        assert data == load_config(ROOT / config).inputs("experiments", name)["data"]


def yaml_block(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf'```yaml title="{title}"\n(.*?)```', text, re.DOTALL)
    return block


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, backbone) -> Path:
    """A checkout's configs and data, and the files that a reader has at each command."""
    folder = tmp_path_factory.mktemp("reader")
    for path in [*ROOT.glob("config*.yaml"), ROOT / "data"]:
        (folder / path.name).symlink_to(path)
    (folder / "texts").mkdir()
    for n in range(200):
        (folder / f"texts/{n}.md").write_text(f"# Note {n}\n\n{TEXTS[n % 5]} This is note {n}.\n")
    (folder / "mine.yaml").write_text(yaml_block("own-text.md", "mine.yaml"))
    (folder / "queries.tsv").write_text("1\thow to close a socket\n")
    names = range(len(TEXTS))
    documents = [(f"d{n}", "", TEXTS[n]) for n in names]
    queries, judged = [(f"q{n}", TEXTS[n]) for n in names], [(f"q{n}", f"d{n}", 1) for n in names]
    for task in (
        "collections/my-task",
        "collections/scifact",
        "results/benchmarks/pydocs/docstring-to-function",
    ):
        write_collection(folder / task, documents, queries, judged)
    for path, settings, inputs in (
        ("batches/mine", {"corpora": ["mine"]}, {"results/chunks/mine.parquet": "0"}),
        ("chunks/mine", {"source": "files", "path": "texts/"}, {}),
    ):
        made_of = {"settings": settings, "inputs": inputs}
        write_json(folder / f"results/{path}.manifest.json", made_of)
    settings = {"objective": {"name": "revela"}, "data": "mine", "retriever": "data/backbones/5m"}
    trained = Experiment.model_validate(settings | {"language_model": "data/backbones/5m"})
    for name in ("my-retriever", "demo-revela"):
        model = folder / "results/models" / name / "retriever"
        shutil.copytree(backbone, model)
        make_encoder(model)
        manifest = {"settings": trained.model_dump(mode="json"), "steps": 1, "files": []}
        manifest |= {"inputs": {"results/batches/mine.parquet": "0"}}
        manifest |= {"output": f"results/models/{name}", "gpus": 0, "gpu_hours": 0.1}
        manifest |= {"revela": "0", "git_commit": "0"}
        write_json(model.parent / "manifest.json", manifest)
    (folder / "results/.revela").write_text("*\n")  # as the workflow does
    unfinished = folder / "results/models/revela-code-1b/checkpoints/0/checkpoint-1"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_bytes(bytes(1000))
    os.utime(unfinished.parent, (0, 0))  # no activity for a long time
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings_of_corpus = "$(revela settings mine.yaml corpora mine)"
        run(f'revela chunk --settings "{settings_of_corpus}" --output chunks.parquet')
        shutil.copytree("results/models/my-retriever", "my-model")
        run("revela export results/models/my-retriever/retriever my-retriever")
        as_if_measured(patch)
        run("revela new texts/")
        run("revela index texts/ --model my-retriever --output my-index")
    return folder


def as_if_measured(patch: pytest.MonkeyPatch) -> None:
    """Let `revela new` start from a tiny encoder and trust that it can be trained."""
    folders = (str(Path("my-retriever").resolve()), "data/backbones/5m")
    patch.setattr("revela.start.new._IN_CHECKOUT", folders)
    patch.setattr("revela.start.new.run_time", lambda *_: (60, "contriever 0.1 s"))


def run(line: str) -> str:
    """Run a command in this process, or in another one if it runs Snakemake or needs a shell."""
    name, arguments = parsed(line)
    if name == "run" or "$(" in line:
        line = f"{line} -n" if name == "run" else line
        result = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout
    done = CliRunner().invoke(app, [name, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("line", [line for line in of(REVELA) if not re.search(NOT_RUN, line)])
def test_revela_runs_what_is_documented(line, prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path / "own", symlinks=True)
    monkeypatch.chdir(tmp_path / "own")
    made = {"new": "texts.yaml", "export": "my-retriever", "index": "my-index"}
    as_if_measured(monkeypatch)
    if name := made.get(parsed(line)[0]):
        Path(name).rename("before")
    run(line)


def test_what_a_block_shows_is_what_its_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = [block for block in blocks() if block.startswith("$ ")]
    assert shown
    for block in shown:
        line, _, printed = block[2:].partition("\n")
        assert run(line) == printed


PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/ecosystem.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["langchain", "qdrant", "onnx"])
def test_other_programs_give_the_same(program, prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path / "own", symlinks=True)
    monkeypatch.chdir(tmp_path / "own")
    names: dict = {}
    exec(program, names)  # it compares vectors by itself
    if hits := names.get("hits"):
        found = run('revela search my-index "how to close a socket" --by dense --chunks --json')
        rows = [json.loads(line) for line in found.splitlines()]
        scores = [row["score"] for row in rows]
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-5)
        first = [(row["chunk"], row["text"]) for row in rows[:3]]
        assert [(hit.id, hit.payload["text"]) for hit in hits[:3]] == first
