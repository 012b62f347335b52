"""Several processes train the same model as one, with and without ZeRO, and survive any kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from revela.common.errors import RevelaError
from revela.config.training import Experiment
from revela.text import batching
from revela.training.callbacks import check_adapter
from revela.training.checkpoints import check_processes, last_checkpoint, mark_complete, step_of
from revela.training.trainer import train
from revela.training.trainlog import read_log
from tests.conftest import ROOT, write_backbone
from tests.training import common
from tests.training.common import assert_same_weights, wait_for_step, write_batches, write_pairs

# Large enough to be sharded by ZeRO-3.
LORA = {"rank": 80, "alpha": 8, "dropout": 0.1}
NAMES = ("lora", "further", "all-weights", "untied", "replug", "contriever")
ON_FOUR = ("lora-4-0", "replug-4-0", "contriever-4-0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two backbones (with the head's weights tied and untied), batches and pairs."""
    folder = tmp_path_factory.mktemp("processes")
    for name in ("tied", "untied"):
        shape = {"hidden_size": 64, "intermediate_size": 128}
        write_backbone(folder / name, tie_word_embeddings=name == "tied", **shape)
    # Of fourteen rows, the last step of an epoch would have two. Every second row shares documents,
    # so that processes have both kinds at once.
    write_batches(folder / "batches.parquet", 14, every=2)
    write_pairs(folder / "pairs.parquet", 66)
    return folder


def experiment(folder: Path, **changes: object) -> Experiment:
    settings = {"batches_per_step": 4, "steps": 3, "warmup_steps": 2} | changes
    return common.experiment(folder / "tied", **settings)


def experiments(folder: Path) -> dict[str, Experiment]:
    replug = {"name": "replug", "retriever_temperature": 0.1, "language_model_temperature": 1.0}
    return {
        "lora": experiment(
            folder, lora=LORA, similarity_snapshot_steps=[0, 2], save_retriever_steps=[0, 2]
        ),
        "further": experiment(  # one adapter is trained on, the other merged and frozen
            folder,
            objective={"name": "revela", "temperature": 0.1, "freeze_language_model": True},
            retriever=str(folder / "lora-1-0/retriever"),
            language_model=str(folder / "lora-1-0/language_model"),
            lora=LORA,
        ),
        "all-weights": experiment(
            folder, weight_decay=0.1, max_gradient_norm=0.5, average_with_start=0.25
        ),
        "untied": experiment(folder, language_model=str(folder / "untied"), steps=None),
        "replug": experiment(folder, objective=replug, lora=LORA, average_with_start=0.25),
        "contriever": experiment(
            folder,
            objective={"name": "contriever", "temperature": 0.1, "encode_batch_size": 4},
            language_model=None,
            batches_per_step=12,
            batches_per_device=3,
        ),
    }


def launch(processes: int, *command: str) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "revela.training.launch", "--standalone", "--nproc_per_node"]
    return subprocess.Popen(
        [*launcher, str(processes), "-m", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def long(folder: Path) -> Experiment:
    """Seven epochs of three steps."""
    return experiment(folder, lora=LORA, steps=20)


@pytest.fixture(scope="module")
def trained(folder) -> Path:
    """All experiments on one process (this one), and on several with each kind of sharding."""

    several = experiments(folder) | {"undisturbed": long(folder)}

    def one(name: str, processes: int, stage: int) -> dict:
        return job(
            several[name],
            data_of(name),
            folder / f"{name}-{processes}-{stage}",
            zero=stage,
            gradient_checkpointing=name == "lora",
            checked=(name, stage) == ("lora", 3),
            # A few tokens at a time, so that processes call the head a different number of times.
            logits_at_a_time=2**25 if name == "undisturbed" else 300 * 16,
        )

    def data_of(name: str) -> Path:
        return folder / f"{'pairs' if name == 'contriever' else 'batches'}.parquet"

    for name in NAMES:
        train(several[name], data_of(name), folder / f"{name}-1-0")
    two = [(name, stage) for stage in (0, 2, 3) for name in several]
    two.remove(("undisturbed", 2))
    together(folder, 2, [one(name, 2, stage) for name, stage in two])
    together(folder, 4, [one(which.split("-")[0], 4, 0) for which in ON_FOUR])
    return folder


def job(settings: Experiment, data: Path, output: Path, **options: object) -> dict:
    """Return a job of `train_all`."""
    files = {"data": str(data), "output": str(output)}
    defaults = {"zero": 0, "gradient_checkpointing": False, "logits_at_a_time": 2**25}
    return {"settings": settings.model_dump(mode="json"), **files, **defaults, **options}


def together(folder: Path, processes: int, jobs: list[dict], returncode: int = 0) -> str:
    """Train one after the other in the same processes, because starting them is slow."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    process = launch(processes, "tests.training.train_all", str(folder / "jobs.json"))
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == returncode, printed
    return printed


NUMBERS = {"loss", "plain_loss", "gradient_norm", "learning_rate", "top_similarity", "accuracy"}


@pytest.mark.parametrize(
    "which",
    [
        *(f"{name}-2-{stage}" for stage in (0, 2, 3) for name in NAMES),
        *ON_FOUR,
    ],
)
def test_the_number_of_processes_changes_nothing(trained, which):
    name, processes, _ = which.rsplit("-", 2)
    one, more = trained / f"{name}-1-0", trained / which
    expected, found = read_log(one / "log.jsonl"), read_log(more / "log.jsonl")
    assert [entry["step"] for entry in expected] == [entry["step"] for entry in found]
    for left, right in zip(expected, found, strict=True):
        assert left.keys() == right.keys()
        for number in left.keys() & NUMBERS:
            assert left[number] == pytest.approx(right[number], rel=1e-5)
    assert_same_weights(one, more, atol=1e-4)
    manifest = json.loads((more / "manifest.json").read_text())
    alone = json.loads((one / "manifest.json").read_text())
    assert manifest["processes"] == int(processes)
    assert manifest["trainable_parameters"] == alone["trainable_parameters"]


def test_a_batch_gathered_from_two_processes_is_one_of_twice_the_size(folder, tmp_path):
    rows = pq.read_table(folder / "batches.parquet").to_pylist()[:2]
    whole = rows[0] | {key: rows[0][key] + rows[1][key] for key in ("texts", "documents")}
    for name, some in (("one", [whole]), ("two", rows)):
        table = pa.Table.from_pylist(some, batching.SCHEMA)
        pq.write_table(table, tmp_path / f"{name}.parquet")
    objective = {"name": "revela", "temperature": 0.1, "plain_loss_every": 0}
    single = {"objective": objective, "batches_per_step": 1, "steps": 1, "warmup_steps": 0}
    train(experiment(folder, **single), tmp_path / "one.parquet", tmp_path / "one")
    gathered = {"batches_per_step": 2, "similarity_snapshot_steps": [0]}
    gathered["objective"] = objective | {"gather_across_devices": True}
    gathering = experiment(folder, **single | gathered)
    together(tmp_path, 2, [job(gathering, tmp_path / "two.parquet", tmp_path / "two")])
    (one,) = read_log(tmp_path / "one" / "log.jsonl")
    snapshot, two = read_log(tmp_path / "two" / "log.jsonl")
    for number in one.keys() & NUMBERS:
        assert two[number] == pytest.approx(one[number], rel=1e-4), number
    assert_same_weights(tmp_path / "one", tmp_path / "two", atol=1e-4)
    similarity = torch.tensor(snapshot["snapshot"]["similarity"])
    assert similarity.shape == (4, 4)
    assert not similarity.diagonal().any()


def start(folder: Path, settings: Experiment, output: Path, stage: int) -> subprocess.Popen:
    return launch(
        2, "revela", "train", "--settings", settings.dump(), "--zero", str(stage),
        "--data", str(folder / "batches.parquet"), "--output", str(output),
        "--checkpoint-minutes", "0",
    )  # fmt: skip


@pytest.mark.parametrize("stage", [0, 3])
def test_a_training_that_is_killed_repeatedly_ends_with_the_same_weights(trained, tmp_path, stage):
    folder, settings = trained, long(trained)
    undisturbed, output = folder / f"undisturbed-2-{stage}", tmp_path / "killed"

    def until(step: int, disturb: Callable[[subprocess.Popen, list], None]) -> str:
        process = start(folder, settings, output, stage)
        workers = wait_for_step(process, output, step)
        workers.sort(key=lambda worker: worker.environ()["RANK"])
        disturb(process, workers)
        printed, _ = process.communicate(timeout=60)
        assert not psutil.wait_procs(workers, timeout=30)[1], "they train on without their launcher"
        return printed

    printed = until(5, lambda _, workers: workers[1].kill())
    assert printed.endswith("revela: error: process 1 was killed by SIGKILL\n")
    assert "Traceback" not in printed
    until(10, lambda launcher, _: launcher.kill())
    printed = until(14, lambda launcher, _: launcher.terminate())
    last = printed.splitlines()[-1]
    assert last.startswith("revela: error: stopped by SIGTERM at step"), printed
    (work,) = (output / "checkpoints").glob("*/")
    stopped_at = len(read_log(work / "log.jsonl"))
    assert step_of(last_checkpoint(work)) == stopped_at, "a signal loses no step"
    if not stage:  # the other process prints nothing
        end = until(stopped_at + 1, lambda _, workers: workers[1].send_signal(signal.SIGUSR1))
        assert "revela: error: stopped by SIGUSR1 at step" in end

    process = start(folder, settings, output, stage)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert_same_weights(undisturbed, output)
    logs = [read_log(path / "log.jsonl") for path in (undisturbed, output)]
    for number in {"step", *NUMBERS}:
        assert [entry.get(number) for entry in logs[0]] == [entry.get(number) for entry in logs[1]]
    assert not (output / "checkpoints").exists()


def test_a_loss_that_is_not_finite_stops_all_processes_in_one_line(folder, tmp_path):
    """A process must not wait in a collective operation for one that has stopped."""
    data, settings = folder / "batches.parquet", experiment(folder)
    printed = together(tmp_path, 2, [job(settings, data, tmp_path / "m", diverging_rank=1)], 1)
    errors = [line for line in printed.splitlines() if "error" in line.lower()]
    assert len(errors) == 1, printed
    assert errors[0].startswith("revela: error: step 2: loss is nan; lower learning_rate")
    assert "Traceback" not in printed


def test_a_sharded_checkpoint_needs_as_many_processes(tmp_path):
    one = {"zero": 0, "processes": 2}
    gathered, sharded = one | {"gathered": 1}, one | {"zero": 3}
    for written, now, possible in (
        (one, one | {"processes": 4}, True),
        (one, one | {"zero": 2}, False),
        (gathered, gathered, True),
        (gathered, gathered | {"processes": 4}, False),
        (sharded, sharded, True),
        (sharded, sharded | {"processes": 4}, False),
        (sharded, one, False),
    ):
        mark_complete(tmp_path, written)
        message = rf"written with --zero {written['zero']} on 2 processes and can only be resumed"
        with nullcontext() if possible else pytest.raises(RevelaError, match=message):
            check_processes(tmp_path, now)


ONES, NAN = torch.ones(2, 3), torch.full((2, 3), torch.nan)


@pytest.mark.parametrize(
    ("trained", "saved"),
    [
        (ONES, {}),
        (ONES, {"lora_B": ONES[:0]}),
        (ONES, {"lora_B": 0 * ONES}),
        (NAN, {"lora_B": NAN}),
    ],
)
def test_an_adapter_that_was_not_saved_as_trained_is_named(tmp_path, trained, saved):
    file = tmp_path / "adapter_model.safetensors"
    save_file({"lora_B": ONES}, file)
    check_adapter(file, {"lora_B.default": ONES})
    save_file({"lora_A": ONES} | saved, file)
    with pytest.raises(RevelaError, match=rf"{file}: lora_B.default is missing, not finite, or"):
        check_adapter(file, {"lora_B.default": trained})
