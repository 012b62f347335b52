"""Training: every objective learns, resumes after a kill, and reports errors."""

import errno
import json
import math
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from revela.common.errors import RevelaError
from revela.config.training import Experiment
from revela.encoder import load_model, load_tokenizer
from revela.encoding import write_encoding
from revela.release import check
from revela.text import batching, pairs
from revela.training import trainer as training
from revela.training.base import BaseTrainer, training_arguments
from revela.training.checkpoints import COMPLETE, end_of_job, last_checkpoint, step_of
from revela.training.collators import BatchCollator
from revela.training.trainer import train
from revela.training.trainlog import read_log
from tests.conftest import TEXTS, encoder_of


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Eighty batches of four chunks."""
    path = tmp_path_factory.mktemp("data") / "batches.parquet"
    rows = [
        {
            "source": "code" if n % 2 else "wiki",
            "texts": [f"{n} {TEXTS[(n + k) % 5]}" for k in range(4)],
            "documents": [f"{n}.{k // 2}" for k in range(4)],
        }
        for n in range(80)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=batching.SCHEMA), path)
    return path


@pytest.fixture(scope="module")
def pair_data(tmp_path_factory) -> Path:
    """Sixty pairs with two negatives."""
    path = tmp_path_factory.mktemp("data") / "pairs.parquet"
    rows = [
        {
            "source": "code",
            "query": TEXTS[n % 5][:30],
            "positive": TEXTS[n % 5][30:],
            "negatives": [TEXTS[(n + 1) % 5], TEXTS[(n + 2) % 5]],
        }
        for n in range(60)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pairs.SCHEMA), path)
    return path


def experiment(backbone, **changes) -> Experiment:
    settings = {
        "objective": {"name": "revela", "temperature": 0.1, "plain_loss_every": 2},
        "data": "x",
        "retriever": str(backbone),
        "language_model": str(backbone),
        "lora": None,
        "max_length": 33,
        "batches_per_step": 1,
        "steps": 8,
        "learning_rate": 5e-3,
        "warmup_steps": min(2, changes.get("steps", 8) - 1),
        "precision": "float32",
        "checkpoint_steps": 3,
    }
    return Experiment.model_validate(settings | changes)


LORA = {"rank": 4, "alpha": 8, "dropout": 0.1}
REPLUG = {
    "name": "replug",
    "retriever_temperature": 0.1,
    "language_model_temperature": 1.0,
    "include_self": False,
}


def test_revela_trains_and_records_each_step(backbone, data, tmp_path):
    train(
        experiment(backbone, steps=30, similarity_snapshot_steps=[0, 15, 30]), data, tmp_path / "m"
    )
    log = read_log(tmp_path / "m" / "log.jsonl")
    steps = [entry for entry in log if "loss" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, 31))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {
        "loss", "learning_rate", "gradient_norm", "top_similarity", "rows_learning",
        "tokens_per_second", "memory_gb", "plain_loss",
    } <= set(steps[0])  # fmt: skip
    assert "plain_loss" not in steps[1]
    snapshots = {entry["step"]: entry["snapshot"] for entry in log if "snapshot" in entry}
    assert list(snapshots) == [0, 15, 30]
    assert snapshots[0]["documents"] == ["0.0", "0.0", "0.1", "0.1"]
    for row in snapshots[0]["similarity"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["settings"]["learning_rate"] == 5e-3
    assert manifest["inputs"][str(data)]
    assert not (tmp_path / "m" / "checkpoints").exists()
    retriever = encoder_of(tmp_path / "m" / "retriever")
    assert retriever.encode(TEXTS, "query", 32).shape == (5, 16)
    load_model(str(tmp_path / "m" / "language_model"), causal=True)


@pytest.mark.parametrize("objective", ["replug", "contriever"])
def test_the_other_objectives_learn(backbone, data, pair_data, tmp_path, objective):
    if objective == "replug":
        settings, rows = experiment(backbone, objective=REPLUG, steps=30), data
    else:
        settings = experiment(
            backbone,
            objective={"name": "contriever", "temperature": 0.1},
            batches_per_step=6,
            batches_per_device=3,
            language_model=None,
            steps=9,
        )
        rows = pair_data
    train(settings, rows, tmp_path / "m")
    losses = [entry["loss"] for entry in read_log(tmp_path / "m" / "log.jsonl")]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert not (tmp_path / "m" / "language_model").exists()


def test_lora_saves_an_adapter_that_loads(backbone, data, tmp_path):
    lora = {"rank": 4, "alpha": 8}
    train(experiment(backbone, lora=lora, learning_rate=0.05), data, tmp_path / "m")
    weights = load_file(tmp_path / "m" / "retriever" / "adapter_model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert any(tensor.abs().max() > 0 for name, tensor in weights.items() if "lora_B" in name)
    trained = encoder_of(tmp_path / "m" / "retriever")
    untouched = encoder_of(backbone)
    difference = trained.encode(TEXTS, "query", 32) - untouched.encode(TEXTS, "query", 32)
    assert difference.abs().max() > 1e-3


def test_a_retriever_that_sentence_transformers_encodes_differently_stays_unchecked(
    backbone, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "check_folder", check.check_folder)
    settings = experiment(backbone, steps=2, warmup_steps=1, encoding={"pooling": "mean"})

    def other(folder, tokenizer, encoding, *more):
        write_encoding(folder, tokenizer, encoding.model_copy(update={"pooling": "cls"}), *more)

    monkeypatch.setattr(training, "write_encoding", other)
    with pytest.raises(RevelaError, match=r"retriever-unchecked: .* the query short a different"):
        train(settings, data, tmp_path / "m")
    assert not (tmp_path / "m" / "retriever").exists()
    assert (tmp_path / "m" / "retriever-unchecked" / "model.safetensors").exists()
    monkeypatch.setattr(training, "write_encoding", write_encoding)
    train(settings, data, tmp_path / "m")  # from its last checkpoint
    assert encoder_of(tmp_path / "m" / "retriever").encoding == settings.encoding
    assert not (tmp_path / "m" / "retriever-unchecked").exists()


def test_an_adapter_is_trained_further(backbone, data, tmp_path):
    train(experiment(backbone, lora=LORA, steps=2), data, tmp_path / "first")
    first = {key: str(tmp_path / "first" / key) for key in ("retriever", "language_model")}
    again = experiment(backbone, lora=LORA, steps=2, **first)
    train(again, data, tmp_path / "again")
    for key, causal in (("retriever", False), ("language_model", True)):
        before, after = (flat(tmp_path / run / key, causal) for run in ("first", "again"))
        untrained = flat(backbone, causal)
        # From the first training's weights, not from the backbone's.
        assert 0 < (after - before).norm() < (after - untrained).norm()
        settings = json.loads((tmp_path / "again" / key / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(backbone)
    other = experiment(backbone, lora=LORA | {"alpha": 5}, steps=2, **first)
    with pytest.raises(RevelaError, match=r"has rank 4, alpha \d+, .* set lora to the same values"):
        train(other, data, tmp_path / "other")


def test_more_tokens_than_positions_are_refused(backbone, data, tmp_path):
    with pytest.raises(RevelaError, match="has 512 positions; reduce max_length"):
        train(experiment(backbone, max_length=513), data, tmp_path / "m")


def test_nothing_but_safetensors_and_text_is_left(backbone, data, tmp_path):
    train(experiment(backbone, steps=2), data, tmp_path / "m")
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jsonl", ".md", ".jinja"}


def test_accumulated_batches_have_equal_weight(backbone, data, tmp_path):
    """Four batches of one step give the mean of their gradients, and so of their losses."""
    train(experiment(backbone, steps=1, batches_per_step=4), data, tmp_path / "four")
    train(experiment(backbone, steps=4, learning_rate=1e-12), data, tmp_path / "one")
    (together,) = read_log(tmp_path / "four" / "log.jsonl")
    apart = read_log(tmp_path / "one" / "log.jsonl")
    mean = sum(entry["loss"] for entry in apart) / 4
    assert together["loss"] == pytest.approx(mean, rel=1e-4)
    assert together["gradient_norm"] < max(entry["gradient_norm"] for entry in apart)


@pytest.mark.parametrize("most", [2, 3, 8])
def test_several_batches_in_a_forward_pass_change_nothing(backbone, data, tmp_path, most):
    settings = experiment(backbone, steps=3, batches_per_step=4)
    train(settings, data, tmp_path / "one")
    train(settings, data, tmp_path / "more", batches_per_forward=most)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "more")]
    for one, more in zip(*logs, strict=True):
        for name in ("loss", "gradient_norm", "top_similarity", "rows_learning"):
            assert more[name] == pytest.approx(one[name], rel=1e-4)
    one, more = (weights_of(tmp_path / name) for name in ("one", "more"))
    for name, weight in one.items():
        # Adam's first steps have the same length for any gradient: rounding errors are visible.
        torch.testing.assert_close(more[name], weight, atol=1e-3, rtol=0, msg=name)


@pytest.mark.parametrize("lora", [None, LORA | {"dropout": 0.0}])
def test_a_language_model_learns_to_read_before_there_is_a_retriever(
    backbone, data, tmp_path, lora
):
    reading = {"name": "revela", "similarity": "documents", "plain_loss_every": 2}
    kept = {"similarity_snapshot_steps": [0]}
    settings = experiment(
        backbone, objective=reading, lora=lora, steps=4, batches_per_step=2, **kept
    )
    train(settings, data, tmp_path / "reader")
    taught = tmp_path / "reader" / "language_model"
    assert not torch.equal(flat(backbone, causal=True), flat(taught, causal=True))
    assert torch.equal(flat(backbone), flat(tmp_path / "reader" / "retriever"))
    snapshot, *log = read_log(tmp_path / "reader" / "log.jsonl")
    assert snapshot["snapshot"]["top_similarity"] < 1  # the retriever's
    assert ["contrast" in entry for entry in log] == [True, False, True, False]

    def plain_loss(name: str, language_model: Path, frozen: bool) -> float:
        objective = {"name": "revela", "temperature": 0.1, "freeze_language_model": frozen}
        models = {"language_model": str(language_model), "lora": lora}
        after = experiment(backbone, objective=objective, steps=2, **models)
        train(after, data, tmp_path / name)
        return read_log(tmp_path / name / "log.jsonl")[0]["plain_loss"]

    frozen = plain_loss("frozen", taught, frozen=True)
    assert plain_loss("joint", taught, frozen=False) == pytest.approx(frozen, rel=1e-5)
    assert plain_loss("untaught", backbone, frozen=False) != pytest.approx(frozen, rel=1e-5)


def flat(folder: Path, causal: bool = False) -> torch.Tensor:
    model = load_model(str(folder), causal=causal)
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_reads_do_not_depend_on_the_batches_of_a_forward_pass(backbone, data, tmp_path):
    reading = {"name": "revela", "similarity": "documents"}
    settings = experiment(backbone, objective=reading, steps=2, batches_per_step=2)
    for most in (1, 2):
        train(settings, data, tmp_path / str(most), batches_per_forward=most)
    logs = (read_log(tmp_path / str(most) / "log.jsonl") for most in (1, 2))
    for one, two in zip(*logs, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_documents_are_read_only_where_chunks_name_them(backbone, data, tmp_path):
    pq.write_table(pq.read_table(data).drop_columns("documents"), tmp_path / "nameless.parquet")
    reading = {"name": "revela", "similarity": "documents"}
    with pytest.raises(RevelaError, match="its chunks have no document ids"):
        train(
            experiment(backbone, objective=reading), tmp_path / "nameless.parquet", tmp_path / "m"
        )


@pytest.fixture(params=["revela", "replug", "contriever"])
def objective(request, data, pair_data) -> tuple[dict, Path]:
    """The settings of an objective with few steps, and its training data."""
    settings: dict = {"lora": LORA, "batches_per_step": 2, "steps": 4}
    if request.param == "contriever":
        settings |= {"batches_per_device": 2, "language_model": None}
        settings["objective"] = {
            "name": "contriever",
            "temperature": 0.1,
            "encode_batch_size": 4,
        }
        return settings, pair_data
    return settings | ({"objective": REPLUG} if request.param == "replug" else {}), data


def test_gradient_checkpointing_changes_nothing(backbone, objective, tmp_path):
    """In float32, with dropout: recomputed activations are the same."""
    settings, rows = experiment(backbone, **objective[0]), objective[1]
    for on in (False, True):
        train(settings, rows, tmp_path / str(on), gradient_checkpointing=on)
        manifest = json.loads((tmp_path / str(on) / "manifest.json").read_text())
        assert manifest["gradient_checkpointing"] is on
    assert_same_weights(tmp_path / "False", tmp_path / "True")


def test_loader_workers_change_nothing(backbone, objective, tmp_path, monkeypatch, capfd):
    settings, rows = experiment(backbone, **objective[0]), objective[1]
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])  # a CPU uses none
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    collated_in = []
    original = torch.utils.data.DataLoader.__iter__
    monkeypatch.setattr(
        torch.utils.data.DataLoader,
        "__iter__",
        lambda self: collated_in.append(self.num_workers) or original(self),
    )
    for workers in (0, 1, 2):
        train(settings, rows, tmp_path / str(workers), loader_workers=workers)
        assert set(collated_in) == {workers}
        collated_in.clear()
    assert_same_weights(tmp_path / "0", tmp_path / "1")
    assert_same_weights(tmp_path / "0", tmp_path / "2")
    assert "parallelism" not in capfd.readouterr().err


def test_the_code_for_gpus_trains_like_the_code_for_cpus(
    backbone, objective, tmp_path, monkeypatch, request
):
    """In bfloat16, with adapters, recomputed activations and several batches at a time."""
    lora = {"rank": 4, "dropout": 0.0}
    changes = objective[0] | {"lora": lora, "precision": "bfloat16", "steps": 1}
    settings, rows = experiment(backbone, **changes), objective[1]
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1")
    train(settings, rows, tmp_path / "cpu", gradient_checkpointing=True)
    request.getfixturevalue("flash")
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])
    options = {"batches_per_forward": 2, "gradient_checkpointing": True, "loader_workers": 0}
    train(settings, rows, tmp_path / "gpu", **options)
    cpu, gpu = (read_log(tmp_path / name / "log.jsonl") for name in ("cpu", "gpu"))
    assert gpu[0]["loss"] == pytest.approx(cpu[0]["loss"], rel=2e-2)
    assert gpu[0]["gradient_norm"] == pytest.approx(cpu[0]["gradient_norm"], rel=0.1)
    manifest = json.loads((tmp_path / "gpu" / "manifest.json").read_text())
    assert manifest["precision"] == "bfloat16"


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_weights(one: Path, other: Path) -> None:
    expected, found = weights_of(one), weights_of(other)
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def as_in_a_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup


def count_forward_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives an entry at each forward pass of a training."""
    calls: list[int] = []
    original = training._Trainer.compute_loss
    monkeypatch.setattr(
        training._Trainer,
        "compute_loss",
        lambda self, *args, **kwargs: calls.append(1) or original(self, *args, **kwargs),
    )
    return calls


AS_WITH_A_GPU = """
from revela import cli
from revela.training import trainer
trainer.devices = lambda: ["cuda:0"]
cli.main()
"""


def run_until(
    settings: Experiment, data: Path, output: Path, step: int, how: int, workers: int = 0
) -> str:
    """Train in a separate process and send it a signal after it has logged a step.

    Its loader workers receive the signal too, except SIGKILL.
    """
    program = ["-c", AS_WITH_A_GPU] if workers else ["-m", "revela"]
    process = subprocess.Popen(
        [sys.executable, *program, "train", "--settings", settings.dump(), "--data", str(data),
         "--output", str(output), "--loader-workers", str(workers)],
        stderr=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(output.rglob("log.jsonl"))
        if logs and len(logs[0].read_text().splitlines()) >= step:
            children = psutil.Process(process.pid).children()
            assert len(children) == workers
            for child in children if how != signal.SIGKILL else ():
                child.send_signal(how)
            process.send_signal(how)
            break
        time.sleep(0.01)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0, "the training ended before it could be stopped"
    return errors


@pytest.mark.parametrize(
    ("how", "lora"),
    [
        (signal.SIGKILL, None),
        (signal.SIGKILL, LORA),
        (signal.SIGTERM, None),
        (signal.SIGINT, None),
        (signal.SIGUSR1, None),
        (signal.SIGHUP, None),
    ],
)
def test_a_killed_training_resumes_and_ends_with_the_same_weights(
    backbone, data, tmp_path, monkeypatch, how, lora
):
    settings = experiment(backbone, steps=25, checkpoint_steps=3, lora=lora)
    train(settings, data, tmp_path / "undisturbed")
    errors = run_until(settings, data, tmp_path / "killed", 7, how)
    if how != signal.SIGKILL:
        assert f"stopped by {how.name} at step" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "killed" / "retriever").exists()
    (work,) = (tmp_path / "killed" / "checkpoints").glob("*/")
    assert last_checkpoint(work) is not None
    calls = count_forward_passes(monkeypatch)
    train(settings, data, tmp_path / "killed")
    assert len(calls) < 25, "it started over"
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "killed")
    for name in ("step", "loss", "learning_rate", "gradient_norm"):
        logs = [read_log(tmp_path / kind / "log.jsonl") for kind in ("undisturbed", "killed")]
        assert [entry[name] for entry in logs[0]] == [entry[name] for entry in logs[1]]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_training_resumes_with_other_options_of_the_machine(
    backbone, data, tmp_path, monkeypatch, how
):
    """With other values of options that do not change results."""
    settings = experiment(backbone, steps=25, checkpoint_steps=3, lora=LORA)
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])  # a CPU uses no workers
    train(settings, data, tmp_path / "undisturbed", loader_workers=0)
    errors = run_until(settings, data, tmp_path / "moved", 7, how, workers=2)
    if how == signal.SIGTERM:
        assert "stopped by SIGTERM at step" in errors
    assert "Traceback" not in errors
    calls = count_forward_passes(monkeypatch)
    train(settings, data, tmp_path / "moved", gradient_checkpointing=True, loader_workers=0)
    assert len(calls) < 25, "it started over"
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "moved")


def test_a_closed_terminal_ends_in_a_checkpoint(backbone, data, tmp_path):
    settings = experiment(backbone, steps=10_000, checkpoint_steps=10_000)
    command = [sys.executable, "-m", "revela", "train", "--settings", settings.dump()]
    child, terminal = pty.fork()
    if not child:
        as_in_a_terminal()
        os.execv(command[0], [*command, "--data", str(data), "--output", str(tmp_path / "m")])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        while select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 4096)
        logs = list((tmp_path / "m").rglob("log.jsonl"))
        if logs and len(logs[0].read_text().splitlines()) >= 5:
            break
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status)  # not killed by the signal
    (work,) = (tmp_path / "m" / "checkpoints").glob("*/")
    assert step_of(last_checkpoint(work)) == len(read_log(work / "log.jsonl")) >= 5


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    backbone, data, tmp_path, capsys
):
    settings = experiment(backbone, steps=25, checkpoint_steps=3, checkpoints_kept=4)
    train(settings, data, tmp_path / "undisturbed")
    run_until(settings, data, tmp_path / "m", 14, signal.SIGKILL)
    checkpoints = sorted((tmp_path / "m").rglob("checkpoint-*"), key=step_of)
    (checkpoints[-1] / COMPLETE).unlink(missing_ok=True)  # cut off
    weights = next(checkpoints[-2].rglob("model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # of the same length
    weights.write_bytes(content)
    train(settings, data, tmp_path / "m")
    printed = capsys.readouterr().out
    assert f"{checkpoints[-1].name}: is incomplete" in printed
    assert f"{checkpoints[-2].name}: model.safetensors is damaged" in printed
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "m")


def test_a_training_stops_before_its_job_ends(backbone, data, tmp_path, monkeypatch):
    settings = experiment(backbone, steps=25, checkpoint_steps=20)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 30))  # less than the reserve
    with pytest.raises(RevelaError, match=r"stopped by the job's time limit at step 1 of 25"):
        train(settings, data, tmp_path / "m")
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    train(settings, data, tmp_path / "m")
    assert len(read_log(tmp_path / "m" / "log.jsonl")) == 25


def test_the_end_of_the_job_is_read_from_slurm(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert end_of_job() == math.inf
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert end_of_job() == math.inf  # no squeue on this node
    squeue = tmp_path / "squeue"
    for end, expected in (("2026-11-21T20:34:14", datetime(2026, 11, 21, 20, 34, 14)), ("N/A", 0)):
        squeue.write_text(f'#!/bin/sh\n[ "$4" = 7 ] && echo {end}\n')
        squeue.chmod(0o755)
        assert end_of_job() == (expected.timestamp() if expected else math.inf)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1795293097")
    assert end_of_job() == 1795293097


def test_checkpoints_every_few_minutes(backbone, data, tmp_path, monkeypatch):
    saved = []
    original = BaseTrainer._save_checkpoint
    monkeypatch.setattr(
        BaseTrainer,
        "_save_checkpoint",
        lambda self, *a: saved.append(self.state.global_step) or original(self, *a),
    )
    train(experiment(backbone, steps=4, checkpoint_steps=99), data, tmp_path / "m", 0)
    assert saved == [1, 2, 3, 4]


def test_other_settings_start_at_step_0_and_keep_these_checkpoints(backbone, data, tmp_path):
    settings = experiment(backbone, steps=40)
    run_until(settings, data, tmp_path / "m", 5, signal.SIGTERM)
    train(experiment(backbone, steps=4, learning_rate=1e-3), data, tmp_path / "m")
    assert [entry["step"] for entry in read_log(tmp_path / "m" / "log.jsonl")] == [1, 2, 3, 4]
    assert list((tmp_path / "m" / "checkpoints").rglob(COMPLETE)), "the others' were lost"


def test_a_loss_that_is_not_finite_stops_the_training(backbone, data, tmp_path):
    with pytest.raises(RevelaError, match=r"step \d+: .*(nan|inf|not finite); lower learning_rate"):
        train(experiment(backbone, learning_rate=1e30, warmup_steps=0), data, tmp_path / "m")
    assert not (tmp_path / "m" / "retriever").exists()


def test_one_process_means_one_gpu(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # without a launcher
    arguments = training_arguments(experiment(backbone), tmp_path, 4, 2)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == 2
    assert arguments.parallel_mode == transformers.training_args.ParallelMode.NOT_PARALLEL


def test_tensorboard_logs_stay(backbone, data, tmp_path, monkeypatch):
    monkeypatch.setenv("REVELA_TRACKERS", "tensorboard")
    train(experiment(backbone, steps=2), data, tmp_path / "m")
    assert list((tmp_path / "m" / "tensorboard").rglob("events.out.*"))


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


@pytest.mark.parametrize("steps", [8, None])
def test_too_few_rows_for_a_step(backbone, data, tmp_path, steps):
    settings = experiment(backbone, batches_per_step=96, warmup_steps=2).model_copy(
        update={"steps": steps}
    )
    with pytest.raises(RevelaError, match="80 rows are not enough for one step"):
        train(settings, data, tmp_path / "m")


def test_the_collator_shuffles_by_row_and_halves_by_corpus(backbone):
    tokenizer = load_tokenizer(str(backbone))
    collate = BatchCollator(experiment(backbone, first_half=["x"]), tokenizer, tokenizer)
    orders = set()
    for index in (0, 0, 1):
        tensors = collate([{"texts": TEXTS, "source": "y", "index": index}])
        orders.add(str(tensors["language_model_ids"].tolist()))
    assert len(orders) == 2
    whole = collate.tensors([{"texts": TEXTS, "source": "y"}])["retriever_mask"].sum(1)
    half = collate.tensors([{"texts": TEXTS, "source": "x"}])["retriever_mask"].sum(1)
    assert torch.equal(whole[:5], whole[5:])
    assert torch.equal(half[5:], whole[5:])
    assert torch.equal(half[:5], (whole[:5] - 1) // 2 + 1)


def test_two_trainings_in_one_folder(backbone, data, tmp_path):
    import fcntl

    (tmp_path / "m" / "checkpoints").mkdir(parents=True)
    with (tmp_path / "m" / "checkpoints" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RevelaError, match="another training is using this folder"):
            train(experiment(backbone), data, tmp_path / "m")


def test_a_disk_without_locks_is_an_error(backbone, data, tmp_path, monkeypatch):
    def flock(stream, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(RevelaError, match=r"cannot lock .*No locks available; .* with flock"):
        train(experiment(backbone), data, tmp_path / "m")


def test_models_that_cannot_be_loaded(backbone, data, tmp_path, monkeypatch):
    def message(name: str) -> str:
        with pytest.raises(RevelaError) as caught:
            train(experiment(name), data, tmp_path / "m")
        return str(caught.value)

    def raising(name: str):
        import huggingface_hub.errors as errors
        import requests

        def load(*_, **__):
            response = requests.Response()
            response.status_code = 403 if name == "GatedRepoError" else 404
            response.request = requests.Request("GET", "https://huggingface.co").prepare()
            raise getattr(errors, name)("Access denied", response=response)

        return load

    assert "hub cannot be reached" in message("somebody/model")
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", raising("GatedRepoError"))
    assert "is gated: accept its terms" in message("somebody/model")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", raising("RepositoryNotFoundError"))
    assert "check the spelling" in message("somebody/model")


def test_an_adapter_of_another_model_is_refused(backbone, data, tmp_path):
    train(experiment(backbone, steps=1, lora=LORA), data, tmp_path / "m")
    folder = tmp_path / "m" / "retriever"
    weights = load_file(folder / "adapter_model.safetensors")
    head = {f"base_model.model.{key.removeprefix('base_model.')}": w for key, w in weights.items()}
    save_file(head, folder / "adapter_model.safetensors")
    with pytest.raises(RevelaError, match=r"adapter '.*retriever' does not fit LlamaModel"):
        load_model(str(folder))


def test_a_read_only_folder(backbone, data, tmp_path):
    if os.geteuid() == 0:
        folder = Path("/proc/revela")  # not writable even by root
    else:
        folder = tmp_path / "sealed"
        folder.mkdir(mode=0o500)
    with pytest.raises((RevelaError, FileNotFoundError)) as caught:
        train(experiment(backbone), data, folder / "m")
    assert "cannot write" in str(caught.value)


def test_the_warmup_is_logarithmic_or_linear(backbone, data, tmp_path):
    rates = {}
    for kind in ("logarithmic", "linear"):
        train(experiment(backbone, steps=8, warmup_steps=5, warmup=kind), data, tmp_path / kind)
        log = read_log(tmp_path / kind / "log.jsonl")
        rates[kind] = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
    assert max(rates["logarithmic"]) == max(rates["linear"]) == pytest.approx(5e-3)
    # After the first steps the logarithm is far above the line.
    assert rates["logarithmic"][1] > 1.5 * rates["linear"][1]
