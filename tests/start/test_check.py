"""`revela check`: what the targets of a config need from outside, and what of it is missing."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import HfApi
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config import parse_config
from revela.config.text import HubFiles
from revela.start import check
from revela.start.downloads import Repository, bytes_to_download
from tests.conftest import revela
from tests.rehearsal.hub import serving

OURS = {"objective": {"name": "revela"}, "data": "wiki", "retriever": "some/model"}
TASKS = {"folder": ["own"], "mteb": ["SciFact"], "lm-eval": ["piqa"], "ir_datasets": {"trec": "x"}}
CONFIG = {
    "corpora": {
        "wiki": {"source": "hub", "dataset": "some/texts", "file": "rows.jsonl"},
        "gone": {"source": "python-packages", "packages": ["nowhere.at_all"]},
    },
    "batches": {"wiki": {"corpora": ["wiki"]}, "ready": {"hub": "some/batches"}},
    "experiments": {
        "ours": OURS | {"language_model": "some/reader"},
        "gated": OURS | {"data": "ready", "language_model": "some/gated"},
    },
    "models": {
        "lucene": {"kind": "lucene"},
        "api": {"kind": "api", "name": "x", "key": "SOME_KEY"},
        "reader": {"kind": "language-model", "language_model": "ours"},
        "adapted": {
            "kind": "encoder",
            "retriever": "some/model",
            "adapter": "some/adapter",
            "revision": "abc",
        },
    },
    "benchmarks": {
        source: {"source": source, "tasks": tasks} | ({"path": "own"} if source == "folder" else {})
        for source, tasks in TASKS.items()
    },
    "tables": {"main": {"caption": "c", "benchmark": "folder", "rows": ["ours", "gated"]}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A project, and its hub in the folder `hub`."""
    monkeypatch.chdir(tmp_path)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        Path("own/own").mkdir(parents=True, exist_ok=True)
        Path("own/own", file).touch()
    Path("mine.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def needs(*targets: str) -> dict[str, list[str]]:
    """Return the names of repositories and the lacks of this machine, each with its users."""
    found = check._needs(parse_config(CONFIG, "c"), list(targets))
    names = {need: getattr(need, "name", getattr(need, "dataset", need)) for need in found}
    return {names[need]: users for need, users in found.items()}


def test_a_target_needs_what_all_that_it_is_made_of_needs(folder):
    weights = {"some/model", "some/reader", "some/gated"}
    assert set(needs("results/tables/main.csv")) == {*weights, "some/texts", "some/batches"}
    assert needs("results/chunks/wiki.parquet") == {"some/texts": ["corpora wiki"]}
    # LoRA's weights are applied to the backbone again; its texts are no longer needed.
    Path("results/models/ours/retriever").mkdir(parents=True)
    scores = "scores ours SciFact"
    found = needs("results/scores/ours/SciFact.json")
    assert found == {name: [scores] for name in ("some/model", "some/reader", "mteb/scifact")}
    adapted = check._needs(parse_config(CONFIG, "c"), ["results/scores/adapted/own.json"])
    revisions = {repository.name: repository.revision for repository in adapted}
    assert revisions == {"some/model": None, "some/adapter": "abc"}


def test_what_this_machine_lacks(folder, monkeypatch):
    def no_java():
        raise RevelaError("no Java")

    monkeypatch.setattr("revela.evaluation.lucene.java_and_jar", no_java)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delenv("SOME_KEY", raising=False)
    lacks = {
        "results/scores/lucene/own.json": "no Java",
        "results/scores/api/own.json": "SOME_KEY is not in the environment",
        "results/scores/lucene/trec.json": "the package ir_datasets is not installed",
        "results/scores/reader/piqa.json": "the package lm_eval is not installed",
        "results/chunks/gone.parquet": "the package nowhere.at_all is not installed",
    }
    for target, lack in lacks.items():
        assert lack in needs(target), target


@pytest.fixture
def hub(folder, backbone) -> str:
    for name in ("models/some/model", "models/some/gated", "datasets/some/texts"):
        (folder / "hub" / name).mkdir(parents=True)
    shutil.copytree(backbone, folder / "hub/models/some/model", dirs_exist_ok=True)
    shutil.copytree(backbone, folder / "hub/models/some/reader")
    (folder / "hub/models/some/gated/.gated").touch()
    (folder / "hub/datasets/some/texts/rows.jsonl").write_bytes(bytes(2 * 1024**2))
    with serving(folder / "hub") as address:
        yield address


def test_repositories_are_looked_up_on_the_hub_and_offline_in_its_cache(folder, hub, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", hub)
    target = "results/models/ours/retriever"
    fine = revela("check", "mine.yaml", target)
    assert fine.returncode == 0, fine.stderr
    assert fine.stdout.endswith("3 models and data sets can be read, 0.0 GB to download\n")
    lacking = revela("check", "mine.yaml", "all")
    assert lacking.returncode == 1
    missing, gated, last = sorted(lacking.stderr.splitlines())
    assert missing.startswith("data set 'some/batches' does not exist on the hub")
    assert missing.endswith("(needed by batches ready)")
    assert gated.startswith("model 'some/gated' is gated: accept its terms on")
    assert gated.endswith(" and 1 more)")  # the training and the evaluation
    assert last.endswith("error: mine.yaml: 2 needs of the targets are not met, see above")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = revela("check", "mine.yaml", target)
    assert offline.stderr.count("is not in the local cache and the hub cannot be reached") == 3
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert revela("check", "mine.yaml", target, "--download").returncode == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "results/downloads/corpora").mkdir(parents=True)
    (folder / "results/downloads/corpora/wiki.json").touch()
    assert revela("check", "mine.yaml", target).returncode == 0


def split(commit: str) -> SimpleNamespace:
    """Return what `datasets` says of the files of a data set."""
    files = {"train": [f"hf://datasets/some/texts@{commit}/other.jsonl"], "test": []}
    return SimpleNamespace(config=SimpleNamespace(data_files=files))


def test_what_is_to_be_downloaded(folder, hub, monkeypatch):
    """Weights and the files of a data set, which of a corpus are those of its split."""
    size = 2 * 1024**2
    (folder / "hub/datasets/some/texts/other.jsonl").write_bytes(bytes(size))
    api = HfApi(endpoint=hub)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for pattern, expected in {"rows.jsonl": size, "*": 2 * size}.items():
        assert bytes_to_download(Repository("data set", "some/texts", None, pattern)) == expected
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **at: split(at["revision"]))
    for wanted, expected in {"train": size, "tset": "unknown split 'tset'; did you"}.items():
        files = HubFiles(dataset="some/texts", split=wanted)
        found = bytes_to_download(files)
        assert found == expected or expected in found
    weights = (folder / "hub/models/some/model/model.safetensors").stat().st_size
    assert bytes_to_download(Repository("model", "some/model", None, "*.safetensors")) == weights


def test_the_disk_may_have_too_little_room(folder, monkeypatch):
    monkeypatch.setattr(check, "bytes_to_download", lambda _: 9 * 1024**3)
    for free, code in ((28, 0), (26, 1)):
        disk = SimpleNamespace(free=free * 1024**3)
        monkeypatch.setattr("shutil.disk_usage", lambda _, disk=disk: disk)
        done = CliRunner().invoke(app, ["check", "mine.yaml", "results/models/ours/retriever"])
        assert done.exit_code == code
    # Each of the three repositories sends 9 GB.
    assert "27.0 GB" in done.output
