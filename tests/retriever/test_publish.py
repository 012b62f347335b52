"""A retriever's model card, and its upload to a hub."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import httpx
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.common.outputs import read_json, write_json
from revela.retriever import push as upload
from revela.retriever.card import make_card
from revela.retriever.source import Source
from tests.conftest import make_encoder
from tests.rehearsal import hub
from tests.retriever.test_release import experiment


@pytest.fixture
def retriever(backbone, tmp_path, monkeypatch) -> Path:
    """A retriever as written by a training, with the manifests of its data, and a score."""
    monkeypatch.chdir(tmp_path)
    small = shutil.copytree(backbone, tmp_path / "backbone" / "small")
    (small / "README.md").write_text("---\nlicense: apache-2.0\n---\nSmall.")
    results = tmp_path / "results"
    settings = experiment(Path("backbone/small"), lora=None)
    folder = results / "models" / "mine" / "retriever"
    shutil.copytree(backbone, folder)
    make_encoder(folder)
    # A manifest of an earlier version has this key.
    older = settings.model_dump(mode="json") | {"gradient_checkpointing": True}
    manifest = {"settings": older, "inputs": {"results/batches/b.parquet": "0"}, "steps": 7}
    manifest |= {"output": "results/models/mine", "gpus": 2, "gpu_hours": 1.25}
    write_json(folder.parent / "manifest.json", manifest | {"revela": "0.1.0", "git_commit": "abc"})

    made = {
        "batches/b": {"corpora": ["c", "d"]},
        "chunks/c": {"source": "hub", "dataset": "some/texts"},
        "chunks/d": {"source": "files", "path": "/home/me/texts"},
    }
    for name, of in made.items():
        inputs = {f"results/chunks/{corpus}.parquet": "0" for corpus in of.get("corpora", ())}
        write_json(results / f"{name}.manifest.json", {"settings": of, "inputs": inputs})
    write_json(results / "scores/mine/SciFact.json", {"task": "SciFact", "ndcg_at_10": 0.5})
    revision = {"revision": Source(str(folder)).fingerprint()}
    write_json(results / "scores/mine/SciFact.manifest.json", revision)
    queries = "".join(f",{number},{number % 2}\n" for number in range(100))
    (results / "scores/mine/SciFact.queries.csv").write_text("subset,query,ndcg_at_10\n" + queries)
    return folder


def test_a_card_says_what_the_model_is_and_its_example_runs(retriever, tmp_path):
    text = make_card(retriever, str(retriever))
    data = ModelCard(text).data
    assert (data.license, data.base_model) == ("apache-2.0", None)
    assert (data.library_name, data.datasets) == ("sentence-transformers", ["some/texts"])
    (result,) = data.eval_results
    assert (result.dataset_name, result.metric_value) == ("SciFact", 0.5)
    low, high = map(float, re.search(r"\| SciFact \| 50.0 \| (\S+) to (\S+) \|", text).groups())
    # A mean of 100 coins has a standard deviation of 0.05.
    assert (low, high) == (pytest.approx(40, abs=1.5), pytest.approx(60, abs=1.5))
    assert "- The backbone: apache-2.0.\n- The data set some/texts: not stated.\n" in text
    assert "Data: c (some/texts); d (files)." in text
    assert "7 steps, 1.25 GPU-hours; revela 0.1.0, commit abc." in text
    assert "/home/me" not in text
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
    assert re.fullmatch(r"tensor\(\[\[\S+, +\S+\]\]\)\n", ran.stdout), ran.stderr
    assert "retriever: small" in text
    manifest = retriever.parents[2] / "scores/mine/SciFact.manifest.json"
    write_json(manifest, {"revision": "earlier"})
    assert "SciFact" not in make_card(retriever, "x")
    step = shutil.copytree(retriever, retriever.parent / "steps" / "3")
    assert ModelCard(make_card(step, "x")).data.model_name == "mine@3"
    shutil.copytree(retriever, tmp_path / "elsewhere" / "copy")
    assert make_card(tmp_path / "elsewhere" / "copy", "x") is None
    # A training's manifest is of its own retrievers, not of all folders beside them.
    assert make_card(shutil.copytree(retriever, retriever.parent / "copy"), "x") is None


def test_the_card_of_a_backbone_on_the_hub(retriever):
    manifest = retriever.parent / "manifest.json"
    facts = read_json(manifest)
    facts["settings"] |= {"retriever": "some/model", "lora": {"rank": 4}}
    write_json(manifest, facts | {"git_commit": None})
    data = ModelCard(make_card(retriever, "x")).data
    assert (data.base_model, data.base_model_relation) == ("some/model", "adapter")
    merged = make_card(retriever, "x", merged=True)
    assert ModelCard(merged).data.base_model_relation == "finetune"
    assert "revela 0.1.0." in merged


def test_a_card_is_the_same_from_any_folder(retriever, monkeypatch):
    here = make_card(retriever, "x")
    monkeypatch.chdir("backbone")
    assert make_card(retriever, "x") == here
    monkeypatch.chdir("..")
    manifest = retriever.parent / "manifest.json"
    write_json(manifest, read_json(manifest) | {"output": str(retriever.parent)})
    assert make_card(retriever, "x") == here


def test_licences_and_the_duties_that_come_with_them(retriever, tmp_path):
    own = "license: other\nlicense_name: own\nlicense_link: https://example.org/own"
    for described, said in (
        ("tags: [a", "- The backbone: not stated."),
        ("license: [cc-by-sa-3.0, gfdl]", "- The backbone: cc-by-sa-3.0, gfdl."),
        (own, "- The backbone: [own](https://example.org/own).\n"),
        ("license: llama3.2", "must begin with Llama"),
    ):
        (tmp_path / "backbone" / "small" / "README.md").write_text(f"---\n{described}\n---\n")
        assert said in (card := make_card(retriever, "x"))
        if described == own:
            assert ModelCard(card).data.license_name == "own"
    assert "a name that begins with Llama" in push(retriever, "some/mine", "--dry-run")
    assert "a name that begins with" not in push(retriever, "some/Llama-mine", "--dry-run")


def push(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["push", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.stdout


def test_a_dry_run_lists_the_files_and_needs_no_token(retriever, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(upload, "HfApi", None)
    (retriever / ".snakemake_timestamp").touch()
    (retriever / ".secrets").mkdir()
    (retriever / ".secrets" / "token.txt").touch()
    printed = push(retriever, "some/mine", "--dry-run").splitlines()
    assert not re.search("snakemake_timestamp|secrets", str(printed))
    files = {"README.md", "model.safetensors", "modules.json", "1_Pooling/config.json"}
    assert {line.split()[1] for line in printed[:-1]} >= files
    assert printed[-1] == f"some/mine: {len(printed) - 1} files would be uploaded"
    with pytest.raises(RevelaError, match="set HF_TOKEN in the environment to upload"):
        push(retriever, "some/mine")
    for name in ("my model", "a/b/c", "mine"):
        with pytest.raises(RevelaError, match=f"{name}': not ORGANISATION/NAME"):
            push(retriever, name, "--dry-run")


def test_what_others_could_not_load_is_not_pushed(retriever, tmp_path):
    with pytest.raises(RevelaError, match=r"not a retriever of `revela train`"):
        push(tmp_path / "backbone" / "small", "some/mine", "--dry-run")
    (retriever / "adapter_config.json").write_text('{"base_model_name_or_path": "results/x"}')
    with pytest.raises(RevelaError, match=r"an adapter of 'results/x', which is not on the hub"):
        push(retriever, "some/mine", "--dry-run")
    (retriever / "adapter_config.json").unlink()
    (retriever / "1_Pooling" / "config.json").unlink()
    with pytest.raises(RevelaError, match=r"cannot be loaded: Pooling\.__init__\(\) missing"):
        push(retriever, "some/mine", "--dry-run")


def test_a_private_upload_never_goes_to_a_public_repository(retriever, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(upload.HfApi, "create_repo", lambda *_, **__: None)  # exists: no error
    monkeypatch.setattr(upload.HfApi, "model_info", lambda *_: mock.Mock(private=False))
    sent = mock.Mock()
    monkeypatch.setattr(upload.HfApi, "create_commit", sent)
    with pytest.raises(RevelaError, match="some/mine: exists and is public"):
        upload.push(retriever, "some/mine", private=True, dry_run=False)
    sent.assert_not_called()
    monkeypatch.setattr(upload.HfApi, "create_repo", mock.Mock(side_effect=httpx.ConnectError("")))
    with pytest.raises(RevelaError, match=r"^https?://\S+ cannot be reached$"):
        upload.push(retriever, "some/mine", private=False, dry_run=False)


def test_an_upload_loads_from_the_hub(retriever, tmp_path):
    with hub.serving(tmp_path / "hub") as address:
        environment = hub.environment(address, tmp_path / "cache")

        def run(token: str, *command: str) -> subprocess.CompletedProcess:
            options = {
                "capture_output": True,
                "text": True,
                "env": environment | {"HF_TOKEN": token},
            }
            return subprocess.run([sys.executable, *command], **options)

        command = ["-m", "revela", "push", str(retriever), "some/mine"]
        refused = run("hf_wrong", *command)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].startswith("revela: error: model 'some/mine'")
        pushed = run("hf_right", *command)
        assert pushed.returncode == 0, pushed.stderr
        assert "uploaded" in pushed.stdout
        assert "hf_" not in pushed.stdout + pushed.stderr + refused.stdout + refused.stderr
        there = tmp_path / "hub" / "models" / "some" / "mine"
        for file in retriever.rglob("[!.]*.*"):
            if file.is_file():
                assert (there / file.relative_to(retriever)).read_bytes() == file.read_bytes()
        card = (there / "README.md").read_text()
        (example,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        assert 'SentenceTransformer("some/mine")' in example
        assert run("", "-c", example).stdout.startswith("tensor([[")
        # An adapter of an earlier upload would be loaded instead of the weights.
        (there / "adapter_config.json").write_text("{}")
        (there / "LICENSE").touch()
        assert run("hf_right", *command).returncode == 0
        assert not (there / "adapter_config.json").exists()
        assert (there / "LICENSE").exists()
    assert json.loads((there / "modules.json").read_text())


def test_a_card_names_the_ready_made_batches(retriever):
    settings = {"corpora": [], "hub": "some/batches", "source": "wikipedia"}
    made = {"settings": settings, "inputs": {}}
    write_json(retriever.parents[2] / "batches/b.manifest.json", made)
    text = make_card(retriever, "x")
    assert ModelCard(text).data.datasets == ["some/batches"]
    assert "- The data set some/batches: not stated.\n" in text
