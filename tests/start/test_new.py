"""`revela new`: a configuration written for the user's own texts."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config import load_config
from revela.config.encoding import EncodingKeys
from revela.start import new as module
from revela.start.estimate import passages
from revela.text.corpora import Document
from tests.conftest import TEXTS, make_encoder


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Return how to measure steps, which most tests do not."""
    measure = module.run_time
    monkeypatch.setattr(module, "run_time", lambda *_: (90, "contriever 0.1 s"))
    return lambda: monkeypatch.setattr(module, "run_time", measure)


@pytest.fixture(scope="module")
def encoder(backbone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    shutil.copytree(backbone, folder)
    make_encoder(folder, pooling="mean", query_prefix="", passage_prefix="", append_eos=False)
    return folder


def new(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["new", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def notes(count: int, text: str = " ".join(TEXTS), folder: str = "my notes") -> Path:
    Path(folder).mkdir()
    for number in range(count):
        Path(folder, f"{number}.md").write_text(f"# Note {number}\n\n{number} notes: {text}")
    return Path(folder)


def test_config_for_a_folder_of_markdown(encoder):
    out = new(notes(200), "--encoder", encoder)
    words = 200 * (5 + len(" ".join(TEXTS).split()))
    assert f"my notes: about 200 documents, {words:,} words; " in out
    assert "held out: about 40 documents, for halves and titles\n" in out
    assert f" steps from {encoder}; about 1 min 30 s on this machine (a step: " in out
    assert out.endswith("my-notes.yaml: read it, then: revela run my-notes.yaml\n")
    config = load_config(Path("my-notes.yaml"))
    kept, aside = config.corpora["my-notes"], config.corpora["my-notes-aside"]
    assert (kept.path, kept.share, aside.share) == (aside.path, (0, 0.8), (0.8, 1))
    assert kept.skip_repeated
    assert aside.skip_repeated
    reported, tuning = config.benchmarks["my-notes"], config.benchmarks["my-notes-tune"]
    assert reported.tasks == {"my-notes-halves": "halves", "my-notes-titles": "titles"}
    assert (tuning.queries, reported.queries) == ((0, 0.5), (0.5, 1))
    assert config.batches["my-notes"].run_length is None  # short documents
    for name in ("my-notes-contriever", "my-notes-revela"):
        experiment = config.experiments[name]
        assert experiment.retriever == str(encoder)
        assert experiment.encoding == EncodingKeys()  # that of its own files
        assert (experiment.lora, experiment.average_with_start) == (None, 0.5)
        assert experiment.batches_per_step in (32, 2)  # pairs, or batches of 16
    assert experiment.objective.reading == "joint"
    assert experiment.objective.freeze_language_model
    table = config.tables["my-notes"]
    assert table.compared_to == "my-notes-untouched"
    assert len(table.rows) == 5
    assert "$schema" not in Path("my-notes.yaml").read_text()
    with pytest.raises(RevelaError, match=r"my-notes\.yaml: already exists"):
        new("my notes")


def test_config_for_several_encoders_and_long_german_texts_in_a_checkout(encoder):
    """Every encoder is a row, the first is adapted; a batch is from several places."""
    shutil.copytree(encoder, "other")
    Path("workflow").mkdir()
    Path("workflow/schema.json").touch()
    german = "Das Haus steht an dem Fluss, und der Weg zu ihm ist lang. " * 99
    new(notes(200, german), "--encoder", "other", "--encoder", encoder)
    config = load_config(Path("my-notes.yaml"))
    first = Path("my-notes.yaml").read_text().partition("\n")[0]
    assert first == "# yaml-language-server: $schema=workflow/schema.json"
    assert config.models["bm25"].language == "german"
    assert config.batches["my-notes"].run_length == 4
    assert config.experiments["my-notes-revela"].retriever == "other"
    assert config.models["my-notes-untouched-1"].retriever == str(encoder)
    labels = [row.label for row in config.tables["my-notes"].rows]
    assert labels[1:3] == ["other untouched", "tiny untouched"]


@pytest.mark.parametrize("folder", ["C #1 notes", "notes: old", "[draft]", "it's, well"])
def test_a_folder_may_have_any_name(encoder, folder):
    new(notes(200, folder=folder), "--encoder", encoder, "--output", "mine.yaml")
    assert load_config(Path("mine.yaml")).corpora["mine"].path == folder


@pytest.mark.parametrize(
    ("folder", "name"),
    [("Été à Genève", "Ete-a-Geneve"), ("2024", "2024"), ("日本語", "texts"), (".notes", "notes")],
)
def test_entries_are_named_after_the_folder_as_far_as_names_allow(encoder, folder, name):
    Path("link").symlink_to(notes(200, folder=folder))
    new(folder, "--encoder", encoder)
    (file,) = Path().glob("*.yaml")
    config = load_config(file)
    assert list(config.corpora) == [name, f"{name}-aside"]
    assert config.experiments[f"{name}-revela"].data == name
    assert new("link", "--encoder", encoder).endswith("then: revela run link.yaml\n")


@pytest.mark.parametrize(
    ("words", "kept", "steps", "epochs"),
    [
        (10_000, 0.8, 20, 10.0),  # too few for all steps: at most ten passes
        (100_000, 0.8, 64, 2.7),
        (30_000_000, 0.993, 64, 0.01),  # no more is held out than what counts
    ],
)
def test_steps_and_held_out_texts_depend_on_the_size(
    encoder, words, kept, steps, epochs, monkeypatch
):
    sample = [
        Document(str(n), f"Text {n} says that it is one of these few texts.") for n in range(200)
    ]
    monkeypatch.setattr(
        module, "look_joined", lambda corpus, _: (corpus, words / 1000, 1000, sample)
    )
    new(notes(1), "--encoder", encoder)
    config = load_config(Path("my-notes.yaml"))
    assert config.corpora["my-notes"].share[1] == pytest.approx(kept, abs=1e-3)
    assert config.experiments["my-notes-revela"].steps == steps
    (passes,) = re.findall(r"# ([\d.]+) passes", Path("my-notes.yaml").read_text())
    assert float(passes) == pytest.approx(epochs, abs=0.1)


def test_the_gpus_of_this_machine_divide_a_step(encoder, monkeypatch):
    monkeypatch.setattr(module, "visible_gpus", lambda: 3)
    new(notes(200), "--encoder", encoder)
    config = load_config(Path("my-notes.yaml"))
    contriever, revela = (config.experiments[f"my-notes-{n}"] for n in ("contriever", "revela"))
    assert (contriever.batches_per_step, contriever.batches_per_device) == (48, 16)
    assert revela.batches_per_step == 3


def test_a_task_with_too_few_queries_is_left_out(encoder):
    for number in range(200):
        path = notes(0) / "x" if number == 0 else Path("my notes/x")
        path.with_name(f"{number}.md").write_text(
            f"---\ntitle: Note\n---\nNote number {number}. {' '.join(TEXTS)}"
        )
    out = new("my notes", "--encoder", encoder)
    assert "for halves; not for titles, of which only 0 occur just once\n" in out
    tasks = load_config(Path("my-notes.yaml")).benchmarks["my-notes"].tasks
    assert tasks == {"my-notes-halves": "halves"}


def rows(count: int, per_title: int = 1) -> None:
    written = [
        {
            "uid": n,
            "headline": f"Title {n // per_title}",
            "body": f"{n} is it: {TEXTS[n % 5]}\n" * 9,
        }
        for n in range(count)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def test_passages_of_a_text_are_on_one_side(encoder):
    rows(600, per_title=4)
    assert "rows.jsonl: about 150 documents" in new("rows.jsonl", "--encoder", encoder)
    assert load_config(Path("rows.yaml")).corpora["rows-aside"].join_title


def test_config_for_rows_with_fields_and_a_collection(encoder):
    rows(150)
    Path("mine/asked").mkdir(parents=True)
    Path("mine/asked/corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n')
    Path("mine/asked/queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    Path("mine/asked/qrels.tsv").write_text("q\td\t1\n")
    new("rows.jsonl", "--encoder", encoder, "--collection", "mine/asked", "--output", "r.yaml")
    config = load_config(Path("r.yaml"))
    fields = config.corpora["r"].fields
    assert (fields.id, fields.title, fields.text) == ("uid", "headline", "body")
    assert config.table("r").tasks() == ["r-halves", "r-titles"]
    assert config.table("r-asked").tasks() == ["asked"]
    assert config.tables["r-asked"].rows == config.tables["r"].rows
    assert passages(config, held_out=10) == 10 + 10 + 1  # halves, titles, "d"
    Path("mine/asked/qrels.tsv").write_text("q\td\t1\nq\td\t0\n")
    with pytest.raises(RevelaError, match=r"asked/qrels\.tsv:2: 'q' and 'd' have relevance 0 here"):
        new("rows.jsonl", "--collection", "mine/asked", "--output", "again.yaml")
    assert not Path("again.yaml").exists()


@pytest.mark.parametrize(
    ("count", "text", "message"),
    [
        (30, "A few words.", "my notes: too few texts to hold some out: . documents"),
        (110, "A few words here.", "words give about .* chunks to train on"),
        (1, "word " * 9999, "too few texts to hold some out: . documents"),
    ],
)
def test_too_few_texts_are_refused(count, text, message, encoder):
    with pytest.raises(RevelaError, match=message):
        new(notes(count, text), "--encoder", encoder)
    assert not list(Path().glob("*.yaml"))


def test_unusable_encoders_are_refused_in_one_line(encoder, monkeypatch):
    notes(200)
    shutil.copytree(encoder, "broken")
    Path("broken/model.safetensors").unlink()
    for name, message in (
        ("./nothere", r"model '\./nothere': no such folder"),
        ("nobody/nothing", "model 'nobody/nothing' is not in the local cache and the hub cannot"),
        ("broken", "broken: no safetensors weights in it"),
    ):
        with pytest.raises(RevelaError, match=message) as raised:
            new("my notes", "--encoder", encoder, "--encoder", name)
        assert "\n" not in str(raised.value)
    monkeypatch.setattr(module, "_IN_CHECKOUT", ("data/encoders/none", "data/backbones/5m"))
    with pytest.raises(RevelaError, match="no GPU found, and no folder "):
        new("my notes")
    assert not Path("my-notes.yaml").exists()


def test_new_config_runs_through_to_its_verdict(encoder, measured):
    """`revela new` followed by `revela run` gives a table and says what it means."""
    measured()
    shutil.copytree(encoder, "tiny")
    out = new(notes(150, "\n\n".join(TEXTS)), "--encoder", "tiny")
    assert re.search(r"\(a step: contriever \d+\.\d s, revela \d+\.\d s\)", out)
    text = re.sub(r"steps: \d+ #", "steps: 2 #", Path("my-notes.yaml").read_text())
    # One task is enough.
    Path("my-notes.yaml").write_text(re.sub(r", my-notes-\S*titles: titles", "", text))
    command = ["revela", "run", "my-notes.yaml", "--cores", "2"]
    ran = subprocess.run(command, check=True, timeout=900, stdout=subprocess.PIPE, text=True)
    said = r"\nmy-notes: by tasks cut from the texts, adapting tiny (is|makes) .*\nNext:\n  revela"
    assert re.search(said, ran.stdout)
    table = pd.read_csv("results/tables/my-notes.csv", index_col="system")
    assert (table["source"] == "measured").all()
    assert table["my-notes-halves"].between(0, 100).all()
    assert "Difference to tiny untouched" in Path("results/tables/my-notes.md").read_text()
