"""`revela new`: a configuration written for the user's own texts."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config import load_config
from revela.text.corpora import Document
from tests.conftest import TEXTS


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def new(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["new", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def notes(count: int, text: str = " ".join(TEXTS), folder: str = "my notes") -> Path:
    Path(folder).mkdir()
    for number in range(count):
        Path(folder, f"{number}.md").write_text(f"# Note {number}\n\n{text}")
    return Path(folder)


def test_config_for_a_folder_of_markdown(backbone):
    out = new(notes(200), "--backbone", backbone)
    words = 200 * (3 + len(" ".join(TEXTS).split()))
    assert f"my notes: 200 documents, {words:,} words; " in out
    assert out.endswith("my-notes.yaml: read it, then: revela run my-notes.yaml\n")
    config = load_config(Path("my-notes.yaml"))
    kept, aside = config.corpora["my-notes"], config.corpora["my-notes-aside"]
    assert (kept.path, kept.share) == (aside.path, (0, aside.share[0]))
    assert aside.share == (0.9, 1)
    assert config.benchmarks["my-notes"].tasks == ["halves", "titles"]
    assert config.batches["my-notes"].run_length is None  # short documents
    experiment = config.experiments["my-notes-revela"]
    assert experiment.retriever == experiment.language_model == str(backbone)
    assert experiment.warmup_steps == 0.1
    assert "$schema" not in Path("my-notes.yaml").read_text()
    with pytest.raises(RevelaError, match=r"my-notes\.yaml: already exists"):
        new("my notes")


def test_bm25_has_the_language_of_the_texts(backbone):
    german = "Das Haus steht an dem Fluss, und der Weg zu ihm ist lang. " * 9
    assert "; language of BM25: german; " in new(notes(50, german), "--backbone", backbone)
    assert load_config(Path("my-notes.yaml")).models["bm25"].language == "german"
    assert "; language of BM25: english; " in new(notes(200, folder="b"), "--backbone", backbone)


def test_a_linked_folder_gives_its_own_name(backbone):
    Path("link").symlink_to(notes(200))
    assert new("link", "--backbone", backbone).endswith("then: revela run link.yaml\n")


@pytest.mark.parametrize("folder", ["C #1 notes", "notes: old", "[draft]", "it's, well"])
def test_a_folder_may_have_any_name(backbone, folder):
    new(notes(20, folder=folder), "--backbone", backbone, "--output", "mine.yaml")
    assert load_config(Path("mine.yaml")).corpora["mine"].path == folder


@pytest.mark.parametrize(
    ("folder", "name"),
    [("Été à Genève", "Ete-a-Geneve"), ("2024", "2024"), ("日本語", "texts"), (".notes", "notes")],
)
def test_entries_are_named_after_the_folder_as_far_as_names_allow(backbone, folder, name):
    new(notes(20, folder=folder), "--backbone", backbone)
    (file,) = Path().glob("*.yaml")
    config = load_config(file)
    assert list(config.corpora) == [name, f"{name}-aside"]
    assert config.experiments[f"{name}-revela"].data == name


def test_a_config_in_a_checkout_names_its_schema(backbone):
    Path("workflow").mkdir()
    Path("workflow/schema.json").touch()
    Path("mine").mkdir()
    new(notes(20), "--backbone", backbone, "--output", "mine/notes.yaml")
    first = Path("mine/notes.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../workflow/schema.json"


@pytest.mark.parametrize(
    ("words", "per_step", "steps", "epochs"),
    [
        (8_000, 1, 40, 10.0),  # too few for a hundred steps: at most ten passes
        (100_000, 1, 100, 1.7),
        (1_000_000, 5, 117, 1.0),
        (30_000_000, 32, 549, 1.0),
    ],
)
def test_small_corpora_get_smaller_steps_and_more_epochs(
    backbone, words, per_step, steps, epochs, monkeypatch
):
    from revela.start import new as module

    sample = [Document(str(n), "A text.") for n in range(50)]
    monkeypatch.setattr(module, "look", lambda *_: (words / 1000, 1000, sample))
    new(notes(1), "--backbone", backbone)
    experiment = load_config(Path("my-notes.yaml")).experiments["my-notes-revela"]
    assert experiment.batches_per_step == per_step
    assert experiment.steps == pytest.approx(steps, rel=0.1)
    (passes,) = re.findall(r"# ([\d.]+) passes", Path("my-notes.yaml").read_text())
    assert float(passes) == pytest.approx(epochs, abs=0.3)


@pytest.mark.parametrize(("words", "per_step"), [(8_000, 3), (1_000_000, 3), (5_000_000, 27)])
def test_the_gpus_of_this_machine_divide_a_step(backbone, words, per_step, monkeypatch):
    from revela.start import new as module

    sample = [Document(str(n), "A text.") for n in range(50)]
    monkeypatch.setattr(module, "look", lambda *_: (words / 1000, 1000, sample))
    monkeypatch.setattr(module, "visible_gpus", lambda: 3)
    new(notes(1), "--backbone", backbone)
    experiment = load_config(Path("my-notes.yaml")).experiments["my-notes-revela"]
    assert experiment.batches_per_step == per_step
    monkeypatch.setattr(module, "visible_gpus", lambda: 4000)
    with pytest.raises(RevelaError, match="a step has a batch for each of 4000 GPUs"):
        new("my notes", "--backbone", backbone, "--output", "more.yaml")
    with pytest.raises(RevelaError, match=r"^model '\./nothere': no such folder$"):
        new("my notes", "--backbone", "./nothere", "--output", "more.yaml")


def test_short_texts_without_a_title_give_no_task_of_titles(backbone):
    rows = [{"text": "Rivers carry water to the sea."} for _ in range(900)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    new("rows.jsonl", "--backbone", backbone)
    assert load_config(Path("rows.yaml")).benchmarks["rows"].tasks == ["halves"]


def test_config_for_rows_with_fields_and_a_collection(backbone):
    rows = [
        {"uid": n, "headline": f"Title {n}", "body": f"{TEXTS[n % 5]}\n" * 9} for n in range(90)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("mine/asked").mkdir(parents=True)
    Path("mine/asked/corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n')
    Path("mine/asked/queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    Path("mine/asked/qrels.tsv").write_text("q\td\t1\n")
    new("rows.jsonl", "--backbone", backbone, "--collection", "mine/asked", "--output", "r.yaml")
    config = load_config(Path("r.yaml"))
    fields = config.corpora["r"].fields
    assert (fields.id, fields.title, fields.text) == ("uid", "headline", "body")
    assert list(dict(config.table("r").columns)) == ["halves", "titles", "asked"]
    Path("mine/asked/qrels.tsv").write_text("q\td\t1\nq\td\t0\n")
    with pytest.raises(RevelaError, match=r"asked/qrels\.tsv:2: 'q' and 'd' have relevance 0 here"):
        new("rows.jsonl", "--collection", "mine/asked", "--output", "again.yaml")
    assert not Path("again.yaml").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Path("nowhere"), "nowhere: no such file or folder"),
        (lambda: notes(2, "A few words."), "12 words give about .* chunks; a batch has 16"),
        (lambda: _file("x.jsonl", '{"n": 1}\n'), "x.jsonl: no field .* is a text: n"),
        (lambda: _file("x.jsonl", "[]\n"), "x.jsonl: no field .* is a text: none"),
        (lambda: _file("x.jsonl", "{\n"), "x.jsonl:1: broken JSON: "),
        (lambda: _file("\udce9.jsonl", '{"text": "x"}\n'), "rename it: its name is not UTF-8"),
        (lambda: _file("my notes/x.jsonl", "{}\n"), "contains both files of rows and plain texts"),
        (lambda: notes(1, "word " * 9999), r"too few documents to hold out a tenth \(1\)"),
    ],
)
def test_unusable_texts_are_refused_in_one_line(make, message, backbone):
    if "plain" in message:
        notes(1)
    with pytest.raises(RevelaError, match=message):
        new(make(), "--backbone", backbone)
    assert not list(Path().glob("*.yaml"))


def _file(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name.partition("/")[0])


def test_new_config_runs_through_to_its_table(backbone):
    """`revela new` followed by `revela run` gives a table of three systems."""
    import subprocess

    Path("backbone").mkdir()
    shutil.copytree(backbone, "backbone/tiny")
    new(notes(60, "\n\n".join(TEXTS * 2)), "--backbone", "backbone/tiny")
    text = Path("my-notes.yaml").read_text()
    text = re.sub(r"steps: \d+ #", "steps: 3 #", text).replace(
        "warmup_steps: 0.1", "warmup_steps: 1"
    )
    text = text.replace("objective: {name: revela}", "lora: null\n    objective: {name: revela}")
    Path("my-notes.yaml").write_text(text)
    command = ["revela", "run", "my-notes.yaml", "--cores", "2"]
    ran = subprocess.run(command, check=True, timeout=900, stdout=subprocess.PIPE, text=True)
    assert ran.stdout.endswith("retrievers: results/models/my-notes-revela/retriever\n")
    table = pd.read_csv("results/tables/my-notes.csv")
    assert list(table["system"]) == ["BM25", "Backbone untouched", "Revela"]
    assert (table["source"] == "measured").all()
    assert table["titles"].between(0, 100).all()


def test_a_batch_of_long_documents_is_from_several_places(backbone):
    new(notes(30, " ".join(TEXTS * 20)), "--backbone", backbone)
    assert load_config(Path("my-notes.yaml")).batches["my-notes"].run_length == 4
