"""Trainings that a kill at any moment cannot harm: lock, checkpoints, resuming, signals."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import broadcast_object_list

from revela import outputs
from revela.errors import RevelaError
from revela.trainlog import LOG, keep_log_until

COMPLETE = "complete.json"  # hashes of a checkpoint's files, written last


@contextlib.contextmanager
def work_folder(output: Path, settings: str, inputs: list[Path]) -> Iterator[Path]:
    """Hold `output` for one training and yield the folder of its checkpoints.

    The folder is that of these settings and inputs, so that changed ones start afresh. It goes
    when the block succeeds; otherwise the same training finds it again.

    Raises:
        RevelaError: another training holds `output`, or it cannot be written.
    """
    known = "".join([settings, *map(outputs.sha256, inputs)])
    work = output / "checkpoints" / hashlib.sha256(known.encode()).hexdigest()[:12]
    with _locked(output / "checkpoints"):
        work.mkdir(parents=True, exist_ok=True)
        yield work
        _leave()
        if int(os.environ.get("RANK", "0")):  # the first cleans up
            return
        shutil.rmtree(work)
    with contextlib.suppress(OSError):  # checkpoints of other settings stay
        (output / "checkpoints" / "lock").unlink()
        (output / "checkpoints").rmdir()


def run(trainer: "ResumableTrainer", checkpoint_minutes: float = 15) -> None:
    """Train from the last checkpoint to the end.

    Args:
        trainer: made anew, its `output_dir` the folder of the checkpoints.
        checkpoint_minutes: between checkpoints at most, besides those every so many steps.

    Raises:
        RevelaError: a signal or the end of the job's time stopped it; a checkpoint is saved.
    """
    work = Path(str(trainer.args.output_dir))
    guard = _Guard(trainer, checkpoint_minutes * 60)
    trainer.add_callback(guard)
    # One process looks and removes, all go on from what it found.
    found = [last_checkpoint(work) if trainer.is_world_process_zero() else None]
    broadcast_object_list(found)
    checkpoint = found[0]
    if trainer.is_world_process_zero():
        keep_log_until(work / LOG, step_of(checkpoint))
    with guard.listening():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if guard.stopped_by and trainer.state.global_step < trainer.state.max_steps:
        _leave()
        raise RevelaError(
            f"stopped by {guard.stopped_by} at step {trainer.state.global_step} of "
            f"{trainer.state.max_steps}; the same command goes on from there"
        )


def _leave() -> None:
    """Leave the other processes when all have come here.

    One that ends before the first has written everything makes the launcher end the others; one
    that ends without leaving is now and then aborted by the threads that it leaves behind.
    """
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


class ResumableTrainer(transformers.Trainer):
    """HF's Trainer, whose checkpoints are marked once they are whole."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # each process writes files of its own
        if self.is_world_process_zero():
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            outputs.write_json(folder / COMPLETE, _hashes(folder))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint))


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest whole checkpoint of a folder; newer ones that are damaged are removed."""
    for folder in sorted(work.glob("checkpoint-*"), key=step_of, reverse=True):
        problem = _problem(folder)
        if problem is None:
            return folder
        print(f"{folder}: {problem}; the one before it is used", flush=True)
        shutil.rmtree(folder)
    return None


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {str(path.relative_to(folder)): outputs.sha256(path) for path in files}


def _problem(folder: Path) -> str | None:
    """Tell what is wrong with a checkpoint, None if it is as it was written."""
    try:
        expected = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "was cut off while it was written"
    found = _hashes(folder)
    for name, digest in expected.items():
        if found.get(name) != digest:
            return f"{name} is {'damaged' if name in found else 'missing'}"
    return None


def step_of(checkpoint: Path | None) -> int:
    """Return the step of a `checkpoint-N` folder, 0 for none."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def load_weights(model: Any, folder: Path) -> None:
    """Load into a model, or into its adapter, what `save_pretrained` wrote to a folder."""
    from safetensors.torch import load_file

    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        return
    missing, unexpected = model.load_state_dict(
        load_file(folder / "model.safetensors"), strict=False
    )
    tied = set(getattr(model, "all_tied_weights_keys", None) or [])
    if unexpected or set(missing) - tied:
        raise RevelaError(f"{folder}: not a checkpoint of this model: {unexpected or missing}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one training.

    Raises:
        RevelaError: another training holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / "lock").open("w")
    except OSError as error:
        raise RevelaError(f"cannot write {folder}: {error.strerror}") from error
    with stream:
        if int(os.environ.get("RANK", "0")) == 0:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RevelaError(f"{folder.parent}: another training is running there") from error
        yield


def end_of_job() -> float:
    """Return when Slurm ends this job, in seconds since the epoch; infinity if it is none's.

    Slurm tells its jobs since version 23.02, but Snakemake hides it from them: then it is asked.
    """
    if "SLURM_JOB_END_TIME" in os.environ:
        return float(os.environ["SLURM_JOB_END_TIME"])
    if "SLURM_JOB_ID" not in os.environ:
        return math.inf
    query = ["squeue", "--noheader", "--format=%e", "--jobs", os.environ["SLURM_JOB_ID"]]
    standard = os.environ | {"SLURM_TIME_FORMAT": "standard"}
    try:
        told = subprocess.run(query, env=standard, capture_output=True, text=True, timeout=60)
        return datetime.fromisoformat(told.stdout.strip()).timestamp()
    except (OSError, ValueError, subprocess.TimeoutExpired):  # no squeue here, or no limit: N/A
        return math.inf


class _Guard(transformers.TrainerCallback):
    """Save a checkpoint every so often; on a signal or near the job's end save one and stop.

    All processes do the same at the same step, whichever of them heard the signal. Of a job's time
    what a step and a checkpoint take is kept in reserve.
    """

    def __init__(self, trainer: transformers.Trainer, interval: float) -> None:
        self.trainer = trainer
        self.interval = interval
        self.end = end_of_job() if trainer.is_world_process_zero() else math.inf
        self.received = 0
        self.stopped_by: str | None = None
        self.saved = self.stepped = time.time()
        self.longest_step = self.longest_save = 0.0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the block runs."""
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, self._note) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        self.received = number

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask the trainer to save, and to stop."""
        now = time.time()
        self.longest_step = max(self.longest_step, now - self.stepped)
        self.stepped = now
        reserve = 60 + 3 * self.longest_step + 2 * self.longest_save
        wishes = [self.received, now > self.end - reserve, now - self.saved >= self.interval]
        if args.world_size > 1:
            agreed = torch.tensor(wishes, device=args.device)
            torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MAX)
            wishes = agreed.tolist()
        received, ends, due = wishes
        if received or ends:
            self.stopped_by = signal.Signals(received).name if received else "the job's time limit"
            control.should_training_stop = True
        control.should_save = control.should_save or bool(received or ends or due)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember when, and how long it took."""
        self.saved = time.time()
        self.longest_save = max(self.longest_save, self.saved - self.stepped)
        self.stepped = self.saved
