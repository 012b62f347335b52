"""Trainings that cannot start or continue say why in one line."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from unittest import mock

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from revela.common.errors import RevelaError
from revela.config.training import Lora
from revela.retriever.load import load_model
from revela.retriever.lora import add_lora
from revela.retriever.source import Source
from revela.retriever.tokenizer import check_vocabulary
from revela.training.trainer import train
from tests.conftest import encoder_of
from tests.training.common import LORA, experiment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 513}, "has 512 positions; reduce max_length"),
        (
            {"max_length": 257, "objective": {"name": "revela", "reading": "joint"}},
            r"for reading: joint: .* has 512 positions, but .* 514$",
        ),
        ({"batches_per_step": 96, "steps": None}, "80 rows are not enough for one step"),
        ({"learning_rate": 1e30, "warmup_steps": 0}, r"step \d+: .*; lower learning_rate"),
    ],
)
def test_what_cannot_be_trained_is_refused(backbone, data, tmp_path, changes, message):
    with pytest.raises(RevelaError, match=message):
        train(experiment(backbone, **changes), data, tmp_path / "m")
    assert not (tmp_path / "m" / "retriever").exists()


@pytest.mark.parametrize("name", ["Revela", "REPLUG"])
def test_a_language_model_that_cannot_be_packed_is_refused(backbone, data, tmp_path, name):
    shutil.copytree(backbone, other := tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    settings = experiment(backbone, objective={"name": name.lower()}, language_model=str(other))
    with pytest.raises(RevelaError, match=f"other: not a .* for {name}: .* attention_dropout"):
        train(settings, data, tmp_path / "m")


def test_documents_are_read_only_where_chunks_name_them(backbone, data, tmp_path):
    pq.write_table(pq.read_table(data).drop_columns("documents"), tmp_path / "nameless.parquet")
    reading = {"name": "revela", "similarity": "documents"}
    settings = experiment(backbone, objective=reading)
    with pytest.raises(RevelaError, match="its chunks have no document ids"):
        train(settings, tmp_path / "nameless.parquet", tmp_path / "m")


def test_the_vocabulary_of_an_adapted_embedding_is_known(backbone):
    lora = Lora(rank=4, targets=["embed_tokens"])
    encoder = encoder_of(backbone)
    encoder[0].model = add_lora(encoder[0].model, lora, 0)
    check_vocabulary("a", encoder)
    encoder.tokenizer.add_tokens("parser")
    with pytest.raises(RevelaError, match=r"^model 'a': its tokenizer has ids up to \d+, but"):
        check_vocabulary("a", encoder)


def test_a_full_disk_is_one_line_of_error(backbone, data, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "revela", "train", "--settings", experiment(backbone).dump(),
         "--data", str(data), "--output", str(tmp_path / "m")],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    assert result.returncode == 1
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "m" / "retriever").exists()


def test_a_disk_without_locks_is_an_error(backbone, data, tmp_path, monkeypatch):
    refused = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=refused))
    with pytest.raises(RevelaError, match=r"cannot lock .*No locks available; .* with flock"):
        train(experiment(backbone), data, tmp_path / "m")


def test_an_adapter_of_another_model_is_refused(backbone, data, tmp_path):
    train(experiment(backbone, steps=1, lora=LORA), data, tmp_path / "m")
    folder = tmp_path / "m" / "retriever"
    weights = load_file(folder / "adapter_model.safetensors")
    head = {f"base_model.model.{key.removeprefix('base_model.')}": w for key, w in weights.items()}
    save_file(head, folder / "adapter_model.safetensors")
    with pytest.raises(RevelaError, match=r"adapter '.*retriever' does not fit LlamaModel"):
        load_model(Source(str(folder)))
