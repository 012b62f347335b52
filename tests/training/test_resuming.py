"""Trainings that are stopped resume, and end with the same weights."""

import math
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from multiprocessing import current_process, resource_sharer
from multiprocessing.connection import Client
from pathlib import Path
from unittest import mock

import pytest
from torch.utils.data import DataLoader

from revela.common.errors import RevelaError
from revela.config.training import Experiment
from revela.training import trainer as training
from revela.training.checkpoints import (
    COMPLETE,
    end_of_job,
    last_checkpoint,
    start_loader_worker,
    step_of,
)
from revela.training.loop import Trainer
from revela.training.trainer import train
from revela.training.trainlog import append_line, read_log
from tests.training.common import (
    LORA,
    as_in_a_terminal,
    assert_same_weights,
    experiment,
    wait_for_step,
)


def count_forward_passes(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Return a mock that is called at each forward pass of a training."""
    spy = mock.create_autospec(Trainer.compute_loss, side_effect=Trainer.compute_loss)
    monkeypatch.setattr(Trainer, "compute_loss", spy)
    return spy


STOPS = ("KILL", "TERM", "INT", "USR1", "HUP")
AS_WITH_A_GPU = """
from revela import cli
from revela.training import trainer
trainer.devices = lambda: ["cuda:0"]
cli.main()
"""


def run_until(
    settings: Experiment, data: Path, output: Path, step: int, how: int, workers: int = 0
) -> str:
    """Train, with a checkpoint after each step, and send a signal after a step.

    Loader workers receive the signal too, except SIGKILL.
    """
    program = ["-c", AS_WITH_A_GPU] if workers else ["-m", "revela"]
    process = subprocess.Popen(
        [sys.executable, *program, "train", "--settings", settings.dump(), "--data", str(data),
         "--output", str(output), "--loader-workers", str(workers), "--checkpoint-minutes", "0"],
        stderr=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal,
    )  # fmt: skip
    children = wait_for_step(process, output, step)
    assert len(children) == workers
    for child in children if how != signal.SIGKILL else ():
        child.send_signal(how)
    process.send_signal(how)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0, "the training ended before it could be stopped"
    return errors


@pytest.mark.parametrize(
    ("how", "lora", "workers"),
    [
        (signal.SIGKILL, LORA, 0),
        (signal.SIGKILL, LORA, 2),
        (signal.SIGTERM, LORA, 2),
        *((signal.Signals[f"SIG{name}"], None, 0) for name in STOPS),
    ],
)
def test_a_killed_training_resumes_and_ends_with_the_same_weights(
    backbone, data, tmp_path, monkeypatch, how, lora, workers
):
    """Also with other options of the machine: without the workers, with checkpointing."""
    settings = experiment(backbone, steps=25, lora=lora, average_with_start=0.5)
    if workers:
        monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])  # a CPU uses no workers
    train(settings, data, tmp_path / "undisturbed", loader_workers=0)
    errors = run_until(settings, data, tmp_path / "killed", 7, how, workers)
    if how != signal.SIGKILL:
        assert f"stopped by {how.name} at step" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "killed" / "retriever").exists()
    (work,) = (tmp_path / "killed" / "checkpoints").glob("*/")
    assert last_checkpoint(work) is not None
    calls = count_forward_passes(monkeypatch)
    options = {"gradient_checkpointing": bool(workers), "loader_workers": 0}
    train(settings, data, tmp_path / "killed", **options)
    assert calls.call_count < 25, "it started over"
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "killed")
    for name in ("step", "loss", "learning_rate", "gradient_norm"):
        logs = [read_log(tmp_path / kind / "log.jsonl") for kind in ("undisturbed", "killed")]
        assert [entry[name] for entry in logs[0]] == [entry[name] for entry in logs[1]]


class _AskedByAKilledTraining:
    """A dataset whose worker is asked for a tensor by a process that ends before it is sent."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, item: int) -> int:
        sharer = resource_sharer._resource_sharer
        sharer.register(send=None, close=lambda: None)  # starts its thread
        Client(sharer._address, authkey=current_process().authkey).close()
        sharer.stop(60)  # after it has seen the end of that connection
        return item


def test_a_loader_worker_says_nothing_when_its_training_is_killed(capfd):
    """So that the last line of the log is the training's own."""
    start = {"num_workers": 1, "worker_init_fn": start_loader_worker}
    assert list(DataLoader(_AskedByAKilledTraining(), **start)) == [0]
    assert capfd.readouterr().err == ""


def test_a_closed_terminal_ends_in_a_checkpoint(backbone, data, tmp_path):
    settings = experiment(backbone, steps=10_000)
    command = [sys.executable, "-m", "revela", "train", "--settings", settings.dump()]
    child, terminal = pty.fork()
    if not child:
        as_in_a_terminal()
        os.execv(command[0], [*command, "--data", str(data), "--output", str(tmp_path / "m")])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        while select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 4096)
        logs = list((tmp_path / "m").glob("checkpoints/*/log.jsonl"))
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
    settings = experiment(backbone, steps=25)
    train(settings, data, tmp_path / "undisturbed")
    run_until(settings, data, tmp_path / "m", 14, signal.SIGKILL)
    (work,) = (tmp_path / "m" / "checkpoints").glob("*/")
    last = last_checkpoint(work)
    damaged, cut = (work / f"checkpoint-{step_of(last) + more}" for more in (1, 2))
    shutil.copytree(last, damaged)
    shutil.copytree(last, cut)
    (cut / COMPLETE).unlink()
    append_line(work / "log.jsonl", {"step": 25, "loss": 0.0})  # of steps after the last checkpoint
    weights = next(damaged.rglob("model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # of the same length
    weights.write_bytes(content)
    train(settings, data, tmp_path / "m")
    printed = capsys.readouterr().out
    assert f"{cut.name}: is incomplete" in printed
    assert f"{damaged.name}: model.safetensors is damaged" in printed
    assert f"resuming from the checkpoint of step {step_of(last)}" in printed
    assert [line["step"] for line in read_log(tmp_path / "m/log.jsonl")] == list(range(1, 26))
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "m")


def test_a_training_stops_before_its_job_ends(backbone, data, tmp_path, monkeypatch):
    settings = experiment(backbone, steps=25)
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


def test_a_training_killed_after_its_last_checkpoint_takes_no_further_step(
    backbone, data, tmp_path, monkeypatch
):
    settings = experiment(backbone, steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(training, "check_folder", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(settings, data, tmp_path / "m")
    calls = count_forward_passes(monkeypatch)
    train(settings, data, tmp_path / "m")
    calls.assert_not_called()
    assert [line["step"] for line in read_log(tmp_path / "m/log.jsonl")] == [1, 2]
    train(settings, data, tmp_path / "whole")
    assert_same_weights(tmp_path / "m", tmp_path / "whole")


def test_other_settings_start_at_step_0_and_keep_these_checkpoints(backbone, data, tmp_path):
    settings = experiment(backbone, steps=40)
    run_until(settings, data, tmp_path / "m", 5, signal.SIGTERM)
    train(experiment(backbone, steps=4, learning_rate=1e-3), data, tmp_path / "m")
    assert [entry["step"] for entry in read_log(tmp_path / "m" / "log.jsonl")] == [1, 2, 3, 4]
    assert list((tmp_path / "m" / "checkpoints").rglob(COMPLETE)), "the others' were lost"
