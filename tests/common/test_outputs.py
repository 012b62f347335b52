"""Outputs are complete or absent, and manifests record their origin."""

import os
import shutil
import subprocess
import time
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.outputs import LEDGER, atomic_output, claim, remove, sha256, write_text


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "out.txt"
    write_text(path, "first")

    def fail():
        with atomic_output(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"out.txt", LEDGER}


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".out.txt.99999998.part").write_text("half")
    (tmp_path / ".out.txt.99999999.part").mkdir()
    living = tmp_path / f".out.txt.{os.getppid()}.part"
    living.write_text("half")
    write_text(tmp_path / "out.txt", "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"out.txt", living.name, LEDGER}


def test_only_what_was_written_here_is_replaced_or_removed(tmp_path):
    ours, changed, link, model = (tmp_path / name for name in ("ours", "changed", "link", "model"))
    for path in (ours, changed):
        write_text(path, "made")
    changed.write_text("by hand")
    link.symlink_to(ours)
    with atomic_output(model) as folder:
        folder.mkdir()
        (folder / "weights").touch()
    (model / "deep").mkdir()
    (model / "deep" / "notes").touch()
    for path, named in ((changed, changed), (link, link), (model, model / "deep" / "notes")):
        for change in (lambda path: write_text(path, ""), remove):
            with pytest.raises(RevelaError, match=f"{named}: not written by revela, or changed"):
                change(path)
    kept = changed.read_text(), link.is_symlink(), len([*model.rglob("*")])
    assert kept == ("by hand", True, 4)
    with pytest.raises(RevelaError, match="deep/notes: not written by revela"):
        claim(model)
    shutil.copytree(model, tmp_path / "copy", ignore=shutil.ignore_patterns("deep"))
    for path in (ours, tmp_path / "copy"):  # a copy has other times and the same content
        remove(path)
        assert not path.exists()


def test_the_commit_of_another_project_is_not_ours(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty"]
    subprocess.run([*commit, "-m", "theirs"], cwd=tmp_path, check=True)
    monkeypatch.setattr(outputs, "__file__", str(tmp_path / "outputs.py"))
    assert outputs._git_commit() is None


def test_others_may_read_what_is_written(tmp_path):
    (tmp_path / "text").touch()
    usual = (tmp_path / "text").stat().st_mode
    with atomic_output(tmp_path / "model") as folder:
        folder.mkdir()
        save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    with atomic_output(tmp_path / "one.safetensors") as file:
        save_file({"a": torch.zeros(1)}, file)
    for path in (tmp_path / "model" / "model.safetensors", tmp_path / "one.safetensors"):
        assert path.stat().st_mode == usual
    assert (tmp_path / "model").stat().st_mode & 0o111


def test_the_hash_of_a_model_is_that_of_its_weights_and_settings(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"w")
    before = sha256(tmp_path)
    for name, counts in (("manifest.json", 0), ("log.jsonl", 0), ("tokenizer.json", 1)):
        (tmp_path / name).write_text("{}")
        assert (sha256(tmp_path) != before) == counts


def test_a_manifest_counts_the_hours_of_all_gpus(tmp_path, monkeypatch):
    usage = mock.Mock(ru_maxrss=3 * 1024**2)  # in kilobytes
    monkeypatch.setattr(outputs.resource, "getrusage", lambda _: usage)
    monkeypatch.setattr(outputs, "STARTED", time.time() - 3600)
    for name, answer in {
        "is_initialized": True, "device_count": 4, "get_device_name": "A100",
        "max_memory_allocated": 2 * 1024**3,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    manifest = outputs.manifest(tmp_path, {}, [])
    assert {"revela", "git_commit", "python", "finished", "seconds"} <= set(manifest)
    assert outputs.manifest(tmp_path, {}, [], started=time.time())["gpu_hours"] < 0.1
    assert (manifest["gpus"], manifest["gpu"]) == (4, "A100")
    assert 4 <= manifest["gpu_hours"] < 4.5
    assert (manifest["peak_memory_gb"], manifest["peak_gpu_memory_gb"]) == (3, 2)
