"""Trainings that a kill at any moment cannot harm: lock, checkpoints, resuming, signals."""

import contextlib
import ctypes
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
from transformers.trainer import SCHEDULER_NAME

from revela.attention import zero
from revela.common import outputs
from revela.common.errors import RevelaError
from revela.training.trainlog import LOG, Meter, keep_log_until

COMPLETE = "complete.json"  # hashes of a checkpoint's files, written last
ADAPTER = "adapter_model.safetensors"
PROCESSES = "processes.json"  # how many wrote it, and in what parts


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
    _die_with_launcher()
    with _locked(output / "checkpoints"):
        work.mkdir(parents=True, exist_ok=True)
        yield work
        _wait_for_all()
        if not _is_first():  # it cleans up
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
        RevelaError: a signal or the end of the job's time stopped it (a checkpoint is saved),
            another process died, or the checkpoint is in parts for other processes than these.
    """
    work = Path(str(trainer.args.output_dir))
    guard = _Guard(trainer, checkpoint_minutes * 60)
    trainer.add_callback(guard)
    trainer.add_callback(Meter(work))
    # One process looks and removes, all go on from what it found.
    found = [last_checkpoint(work) if trainer.is_world_process_zero() else None]
    broadcast_object_list(found)
    checkpoint = found[0]
    if trainer.is_world_process_zero():
        keep_log_until(work / LOG, step_of(checkpoint))
    if checkpoint:
        trainer.check_processes(checkpoint)
    with guard.listening():
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except RuntimeError as error:
            if "gloo" not in str(error) and not isinstance(error, torch.distributed.DistError):
                raise
            raise RevelaError(
                f"lost another process after step {trainer.state.global_step}; the same command "
                "goes on from the last checkpoint"
            ) from error
    if guard.stopped_by and trainer.state.global_step < trainer.state.max_steps:
        _wait_for_all()
        raise Stopped(
            f"stopped by {guard.stopped_by} at step {trainer.state.global_step} of "
            f"{trainer.state.max_steps}; the same command goes on from there"
        )


class Stopped(RevelaError):
    """A signal or the end of a job's time has stopped a training, after a checkpoint."""


def _wait_for_all() -> None:
    """Wait until all processes have come here: the launcher ends the others when one ends."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def leave_processes() -> None:
    """Leave the other processes, else threads of theirs now and then abort this one as it ends."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class ResumableTrainer(transformers.Trainer):
    """HF's Trainer, whose checkpoints are marked once they are whole.

    With ZeRO each process writes and reads its own part of weights and optimizer, through
    DeepSpeed's engine; frozen weights are left out.
    """

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # each process writes files of its own
        if self.is_world_process_zero():
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            outputs.write_json(folder / PROCESSES, self.processes())
            outputs.write_json(folder / COMPLETE, _hashes(folder))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, unless the engine's checkpoint has them."""
        if not self.is_deepspeed_enabled:
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        self.deepspeed.save_checkpoint(output_dir, exclude_frozen_parameters=True)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> Any:
        if not self.is_deepspeed_enabled:
            return super()._prepare_for_training(
                max_steps, train_dataloader, resume_from_checkpoint
            )
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if resume_from_checkpoint is not None:
            # Not strict: it has no frozen weights.
            self.deepspeed.load_checkpoint(resume_from_checkpoint, load_module_strict=False)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        return prepared

    def processes(self) -> dict[str, int]:
        """Return in what parts how many processes train."""
        config = self.args.deepspeed or {"zero_optimization": {"stage": 0}}
        stage = config["zero_optimization"]["stage"]
        return {"zero": stage, "processes": self.args.world_size}

    def check_processes(self, checkpoint: Path) -> None:
        """Check that a checkpoint in parts was written by as many processes as there are.

        Raises:
            RevelaError: it was not.
        """
        written = json.loads((checkpoint / PROCESSES).read_text(encoding="utf-8"))
        now = self.processes()
        if written != now and (written["zero"] or now["zero"]):
            raise RevelaError(
                f"{checkpoint}: was written with --zero {written['zero']} on "
                f"{written['processes']} processes and goes on with the same only; remove "
                f"{checkpoint.parent} to start over"
            )


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


def save_weights(model: Any, folder: Path | None) -> None:
    """Write a model, or its adapter, with `save_pretrained`; an adapter's file is checked.

    All processes call it, since weights may be in parts; those without a folder write nothing.

    Raises:
        RevelaError: the adapter in the file is not the one in memory.
    """
    state = zero.whole_state(model)
    adapter = hasattr(model, "peft_config")
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    nonzero = zero.nonzero(list(trained.values())) if adapter else []
    if folder is None:
        return
    model.save_pretrained(folder, state_dict=state)
    if adapter:
        expected = {
            name.replace(".default", ""): (zero.whole_shape(weight), any_number)
            for (name, weight), any_number in zip(trained.items(), nonzero, strict=True)
        }
        check_adapter(folder / ADAPTER, expected)


def check_adapter(file: Path, expected: dict[str, tuple[tuple[int, ...], bool]]) -> None:
    """Check a saved adapter: gathering weights from several processes has left them empty before.

    Args:
        file: in safetensors.
        expected: of each weight the shape, and whether any of its numbers is not zero: LoRA's B
            has none before the first step.

    Raises:
        RevelaError: a weight is missing, of another shape, not finite, or zero against expectation.
    """
    from safetensors.torch import load_file

    found = load_file(file)
    for name, (shape, nonzero) in expected.items():
        weight = found.get(name)
        if weight is None:
            problem = "is missing"
        elif tuple(weight.shape) != shape:
            problem = f"has shape {tuple(weight.shape)}, not {shape}"
        elif not weight.isfinite().all():
            problem = "is not finite"
        elif nonzero and not weight.any():
            problem = "is zero"
        else:
            continue
        raise RevelaError(f"{file}: {name} {problem}; the adapter was not saved whole")


def load_weights(model: Any, folder: Path) -> None:
    """Load into a model, or into its adapter, what `save_pretrained` wrote to a folder."""
    from safetensors.torch import load_file

    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(folder / ADAPTER))
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
        RevelaError: another training holds it, or the disk knows no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / "lock").open("w")
    except OSError as error:
        raise RevelaError(f"cannot write {folder}: {error.strerror}") from error
    with stream:
        if _is_first():
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RevelaError(f"{folder.parent}: another training is running there") from error
            except OSError as error:
                raise RevelaError(
                    f"cannot lock {folder}: {error.strerror}; its disk must be mounted with flock"
                ) from error
        yield


def _die_with_launcher() -> None:
    """Have the kernel end this process with the one that launched it.

    A killed launcher would leave its processes behind, training on and holding the folder.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # only Linux has it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1


def _is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


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
