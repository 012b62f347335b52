"""Pretraining: it learns, keeps its best checkpoint, and resumes after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from revela.common.errors import RevelaError
from revela.config.training import Backbone
from revela.retriever.load import load_language_model, load_tokenizer
from revela.retriever.source import Source
from revela.training.pretraining import pretrain
from revela.training.trainlog import read_log
from tests.conftest import TEXTS


@pytest.fixture(scope="module")
def chunks(tmp_path_factory) -> list[Path]:
    """Two corpora of 250 and 50 documents, each of two chunks."""
    paths = []
    for name, count in (("a", 250), ("b", 50)):
        path = tmp_path_factory.mktemp("chunks") / f"{name}.parquet"
        rows = [
            {"document": f"{name}{n}", "text": f"{name} {n}: {TEXTS[(n + k) % 5]}"}
            for n in range(count)
            for k in range(2)
        ]
        pq.write_table(pa.Table.from_pylist(rows), path)
        paths.append(path)
    return paths


def settings(**changes) -> Backbone:
    tiny = {
        "corpora": ["a", "b"],
        "vocabulary": 300,
        "hidden_size": 16,
        "intermediate_size": 32,
        "layers": 2,
        "heads": 2,
        "sequence_length": 16,
        "sequences_per_step": 4,
        "tokens": 4 * 16 * 60,
        "learning_rate": 1e-2,
        "warmup_steps": 5,
        "precision": "float32",
        "checkpoint_steps": 20,
    }
    return Backbone.model_validate(tiny | changes)


def test_pretraining_learns_and_records_its_inputs(chunks, tmp_path):
    pretrain(settings(), chunks, tmp_path / "m")
    log = read_log(tmp_path / "m" / "log.jsonl")
    losses = [entry["held_out_loss"] for entry in log if "held_out_loss" in entry]
    assert losses[-1] < losses[0] < 5.7  # log 300
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["held_out_loss"] == pytest.approx(min(losses), abs=1e-3)
    assert manifest["steps"] == 60
    # Every hundredth document of each corpus is held out: 3 and 1.
    tokenizer = load_tokenizer(Source(str(tmp_path / "m")))
    held_out = [
        "\n".join(f"{name} {n}: {TEXTS[(n + k) % 5]}" for k in range(2))
        for name, n in (("a", 0), ("a", 100), ("a", 200), ("b", 0))
    ]
    tokens = sum(len(ids) + 1 for ids in tokenizer(held_out)["input_ids"])
    assert manifest["held_out_tokens"] == tokens // 16 // 4 * 4 * 16
    load_language_model(Source(str(tmp_path / "m")))
    assert {path.name for path in (tmp_path / "m").glob("[!.]*")} == {
        "config.json",
        "generation_config.json",
        "log.jsonl",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_best_checkpoint_is_kept(chunks, tmp_path):
    pretrain(settings(learning_rate=0.3, warmup_steps=30), chunks, tmp_path / "m")
    log = read_log(tmp_path / "m" / "log.jsonl")
    losses = {entry["step"]: entry["held_out_loss"] for entry in log if "held_out_loss" in entry}
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["best_checkpoint_step"] == min(losses, key=losses.__getitem__)
    assert manifest["held_out_loss"] == pytest.approx(min(losses.values()), abs=1e-3)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_pretraining_resumes_and_ends_with_the_same_weights(chunks, tmp_path, how):
    entry = settings(tokens=4 * 16 * 400, checkpoint_steps=10)
    pretrain(entry, chunks, tmp_path / "undisturbed")
    output = tmp_path / "killed"
    inputs = [f"--input={path.stem}={path}" for path in chunks]
    command = [sys.executable, "-m", "revela", "pretrain", *inputs]
    process = subprocess.Popen(
        [*command, "--settings", entry.dump(), "--output", output], stderr=subprocess.PIPE
    )
    while process.poll() is None and not list(
        output.glob("checkpoints/*/checkpoint-20/complete.json")
    ):
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate()
    assert process.returncode, "it was over before it could be killed"
    if how == signal.SIGTERM:
        assert b"stopped by SIGTERM" in errors
        assert b"Traceback" not in errors
    pretrain(entry, chunks, output)
    expected, found = (
        load_file(tmp_path / name / "model.safetensors") for name in ("undisturbed", "killed")
    )
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("undisturbed", "killed")]
    losses = [[(e["step"], e.get("loss"), e.get("held_out_loss")) for e in log] for log in logs]
    assert losses[0] == losses[1]
    assert not (output / "checkpoints").exists()


def test_two_processes_pretrain_the_same_weights_as_one(chunks, tmp_path):
    entry = settings()
    pretrain(entry, chunks, tmp_path / "one")
    launcher = ["revela.training.launch", "--standalone", "--nproc_per_node", "2", "-m"]
    inputs = [f"--input={path.stem}={path}" for path in chunks]
    subprocess.run(
        [sys.executable, "-m", *launcher, "revela", "pretrain", *inputs,
         "--settings", entry.dump(), "--output", tmp_path / "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=300,
    )  # fmt: skip
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    for one, two in zip(*logs, strict=True):
        for number in one.keys() & {"step", "tokens", "loss", "held_out_loss", "gradient_norm"}:
            # Rounding, which differs between processors, grows from step to step.
            tolerance = 1e-4 if one["step"] <= 10 else 2e-3
            assert two[number] == pytest.approx(one[number], rel=tolerance), one["step"]
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert manifest["processes"] == 2
    load_language_model(Source(str(tmp_path / "two")))


def test_a_corpus_of_one_document_is_refused(chunks, tmp_path):
    rows = pq.read_table(chunks[0]).to_pylist()
    one = [row | {"document": "book"} for row in rows]
    pq.write_table(pa.Table.from_pylist(one), tmp_path / "book.parquet")
    with pytest.raises(RevelaError, match=r"book\.parquet: has one document"):
        pretrain(settings(), [tmp_path / "book.parquet", *chunks], tmp_path / "m")


def test_a_corpus_too_small_for_one_sequence(chunks, tmp_path):
    with pytest.raises(RevelaError, match=r"a\.parquet: too few tokens for 4 sequences of 99999"):
        pretrain(settings(sequence_length=99999), chunks[:1], tmp_path / "m")
    assert not (tmp_path / "m" / "model.safetensors").exists()
