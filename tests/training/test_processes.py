"""Several processes train the same model as one, with and without ZeRO, and survive any kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from revela.common.errors import RevelaError
from revela.common.locks import locked
from revela.config.training import Experiment
from revela.text import batching
from revela.training.callbacks import check_adapter
from revela.training.checkpoints import check_processes, last_checkpoint, mark_complete, step_of
from revela.training.trainer import train
from revela.training.trainlog import read_log
from tests.conftest import TEXTS, tiny_llama, train_tokenizer
from tests.training import common
from tests.training.common import (
    assert_same_weights,
    weights_of,
    write_batches,
    write_pairs,
)

ROOT = Path(__file__).parents[2]
# Large enough to be sharded by ZeRO-3.
LORA = {"rank": 80, "alpha": 8, "dropout": 0.1}
NAMES = ("lora", "further", "all-weights", "untied", "replug", "contriever")
ON_FOUR = ("lora-4-0", "replug-4-0", "contriever-4-0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two backbones (with the head's weights tied and untied), batches and pairs."""
    folder = tmp_path_factory.mktemp("processes")
    for name in ("tied", "untied"):
        tokenizer = train_tokenizer(iter(TEXTS * 5), 300)
        model = tiny_llama(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            tie_word_embeddings=name == "tied",
        )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
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
            folder,
            lora=LORA,
            similarity_snapshot_steps=[0, 2],
            save_retriever_steps=[0, 2],
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

    def job(name: str, settings: Experiment, processes: int, stage: int) -> dict:
        return {
            "settings": settings.model_dump(mode="json"),
            "data": str(folder / ("pairs" if name == "contriever" else "batches")) + ".parquet",
            "output": str(folder / f"{name}-{processes}-{stage}"),
            "zero": stage,
            "gradient_checkpointing": name == "lora" and processes > 1,
            "checked": (name, stage) == ("lora", 3),
            # A few tokens at a time, so that processes call the head a different number of times.
            "logits_at_a_time": 2**25 if name == "undisturbed" else 300 * 16,
        }

    for name, settings in experiments(folder).items():
        alone = job(name, settings, 1, 0)
        train(settings, Path(alone["data"]), Path(alone["output"]))
    several = experiments(folder) | {"undisturbed": long(folder)}
    two = [(name, stage) for stage in (0, 2, 3) for name in several]
    two.remove(("undisturbed", 2))
    together(folder, 2, [job(name, several[name], 2, stage) for name, stage in two])
    four = [job(name, settings, 4, 0) for name, settings in several.items()]
    together(folder, 4, [each for each in four if Path(each["output"]).name in ON_FOUR])
    return folder


def together(folder: Path, processes: int, jobs: list[dict]) -> None:
    """Train one after the other in the same processes, because starting them is slow."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    process = launch(processes, "tests.training.train_all", str(folder / "jobs.json"))
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed


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
    left, right = weights_of(one), weights_of(more)
    assert left.keys() == right.keys()
    for weight, tensor in left.items():
        # Adam's first steps have the same length for any gradient: rounding errors are visible.
        torch.testing.assert_close(right[weight], tensor, atol=1e-4, rtol=0, msg=weight)
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
    single = {"steps": 1, "warmup_steps": 0}
    settings = experiment(folder, objective=objective, batches_per_step=1, **single)
    train(settings, tmp_path / "one.parquet", tmp_path / "one")
    gathering = experiment(
        folder,
        objective=objective | {"gather_across_devices": True},
        batches_per_step=2,
        similarity_snapshot_steps=[0],
        **single,
    )
    job = {"settings": gathering.model_dump(mode="json"), "data": str(tmp_path / "two.parquet")}
    job |= {"output": str(tmp_path / "two"), "zero": 0, "logits_at_a_time": 2**25}
    together(tmp_path, 2, [job])
    (one,) = read_log(tmp_path / "one" / "log.jsonl")
    snapshot, two = read_log(tmp_path / "two" / "log.jsonl")
    for number in one.keys() & NUMBERS:
        assert two[number] == pytest.approx(one[number], rel=1e-4), number
    left, right = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for weight, tensor in left.items():
        torch.testing.assert_close(right[weight], tensor, atol=1e-4, rtol=0, msg=weight)
    similarity = torch.tensor(snapshot["snapshot"]["similarity"])
    assert similarity.shape == (4, 4)
    assert not similarity.diagonal().any()


def start(folder: Path, settings: Experiment, output: Path, stage: int) -> subprocess.Popen:
    return launch(
        2, "revela", "train", "--settings", settings.dump(), "--zero", str(stage),
        "--data", str(folder / "batches.parquet"), "--output", str(output),
        "--checkpoint-minutes", "0",
    )  # fmt: skip


def run_until(process: subprocess.Popen, output: Path, step: int) -> list[psutil.Process]:
    """Wait until a step is logged; return the launched processes by rank."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(output.glob("checkpoints/*/log.jsonl"))
        lines = logs[0].read_text().splitlines() if logs else []
        if len(lines) >= step:
            workers = psutil.Process(process.pid).children()
            return sorted(workers, key=lambda worker: worker.environ()["RANK"])
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached: {process.communicate()[0]}")


def gone(workers: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(workers, timeout=30)[1]


def checkpoint_of(output: Path) -> int:
    (work,) = (output / "checkpoints").glob("*/")
    return step_of(last_checkpoint(work))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_training_that_is_killed_repeatedly_ends_with_the_same_weights(trained, tmp_path, stage):
    folder, settings = trained, long(trained)
    undisturbed, output = folder / f"undisturbed-2-{stage}", tmp_path / "killed"

    process = start(folder, settings, output, stage)
    workers = run_until(process, output, 5)
    workers[1].kill()
    printed, _ = process.communicate(timeout=60)
    assert printed.endswith("revela: error: process 1 was killed by SIGKILL\n")
    assert "Traceback" not in printed
    assert gone(workers)
    print(f"kill -9 of rank 1: resumes from {checkpoint_of(output)}")

    process = start(folder, settings, output, stage)
    workers = run_until(process, output, 10)
    process.kill()
    assert gone(workers), "they train on without their launcher"
    process.communicate()
    print(f"kill -9 of the launcher: resumes from {checkpoint_of(output)}")

    process = start(folder, settings, output, stage)
    workers = run_until(process, output, 14)
    process.terminate()
    printed, _ = process.communicate(timeout=60)
    last = printed.splitlines()[-1]
    assert last.startswith("revela: error: stopped by SIGTERM at step"), printed
    assert gone(workers)
    stopped_at = len(read_log(next(output.glob("checkpoints/*/log.jsonl"))))
    assert checkpoint_of(output) == stopped_at, "a signal loses no step"

    if not stage:
        process = start(folder, settings, output, stage)
        workers = run_until(process, output, stopped_at + 1)
        workers[1].send_signal(signal.SIGUSR1)  # the other one is not printed
        printed, _ = process.communicate(timeout=60)
        assert "revela: error: stopped by SIGUSR1 at step" in printed

    process = start(folder, settings, output, stage)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert_same_weights(undisturbed, output)
    logs = [read_log(path / "log.jsonl") for path in (undisturbed, output)]
    for number in {"step", *NUMBERS}:
        assert [entry.get(number) for entry in logs[0]] == [entry.get(number) for entry in logs[1]]
    assert not (output / "checkpoints").exists()


def test_a_second_training_in_a_folder_refuses_in_one_line(folder, tmp_path):
    checkpoints = tmp_path / "m" / "checkpoints"
    with locked(checkpoints, "training"):
        process = start(folder, experiment(folder), tmp_path / "m", 0)
        printed, _ = process.communicate(timeout=60)
    assert printed == f"revela: error: {checkpoints}: another training is using this folder\n"
    assert process.returncode == 1


def test_a_loss_that_is_not_finite_stops_all_processes_in_one_line(folder, tmp_path):
    """A process must not wait in a collective operation for one that has stopped."""
    job = {"settings": experiment(folder).model_dump(mode="json"), "diverging_rank": 1}
    job |= {"data": str(folder / "batches.parquet"), "output": str(tmp_path / "m"), "zero": 0}
    (tmp_path / "jobs.json").write_text(json.dumps([job | {"logits_at_a_time": 2**25}]))
    process = launch(2, "tests.training.train_all", str(tmp_path / "jobs.json"))
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    errors = [line for line in printed.splitlines() if "error" in line.lower()]
    assert len(errors) == 1, printed
    assert errors[0].startswith("revela: error: step 2: loss is nan; lower learning_rate")
    assert "Traceback" not in printed


def test_a_sharded_checkpoint_needs_as_many_processes(tmp_path):
    def check(now: tuple[int, int], written: tuple[int, int]) -> None:
        names = ("zero", "processes")
        mark_complete(tmp_path, dict(zip(names, written, strict=True)))
        check_processes(tmp_path, dict(zip(names, now, strict=True)))

    gathered = {"zero": 0, "processes": 2, "gathered": 1}
    mark_complete(tmp_path, gathered)
    check_processes(tmp_path, gathered)
    with pytest.raises(RevelaError, match="on 2 processes and can only be resumed that way"):
        check_processes(tmp_path, gathered | {"processes": 4})
    check((3, 2), (3, 2))
    check((0, 4), (0, 2))
    for now, written in (((3, 4), (3, 2)), ((0, 2), (3, 2)), ((2, 2), (0, 2))):
        with pytest.raises(RevelaError, match=rf"written with --zero {written[0]} on 2 processes"):
            check(now, written)


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
