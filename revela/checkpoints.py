"""Trainings that a kill at any moment cannot harm: lock, checkpoints, resuming, signals."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers

from revela import outputs
from revela.errors import RevelaError
from revela.trainlog import LOG, keep_log_until

COMPLETE = "complete"  # written last into a checkpoint: one without it was cut off


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
        shutil.rmtree(work)
    with contextlib.suppress(OSError):  # checkpoints of other settings stay
        (output / "checkpoints" / "lock").unlink()
        (output / "checkpoints").rmdir()


def run(trainer: "ResumableTrainer") -> None:
    """Train from the last checkpoint to the end.

    Raises:
        RevelaError: a signal stopped the training; a checkpoint is saved.
    """
    work = Path(str(trainer.args.output_dir))
    stop = _StopOnSignal()
    trainer.add_callback(stop)
    checkpoint = last_checkpoint(work)
    keep_log_until(work / LOG, step_of(checkpoint))
    with stop.listening():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stop.received:
        raise RevelaError(
            f"stopped by {stop.received} at step {trainer.state.global_step} of "
            f"{trainer.state.max_steps}; the same command goes on from there"
        )


class ResumableTrainer(transformers.Trainer):
    """HF's Trainer, whose checkpoints are marked once they are whole."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.is_world_process_zero():
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            (folder / COMPLETE).touch()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint))


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint of a folder; incomplete ones are removed."""
    checkpoints = sorted(work.glob("checkpoint-*"), key=step_of)
    for folder in [*checkpoints]:
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder)
            checkpoints.remove(folder)
    return checkpoints[-1] if checkpoints else None


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


class _StopOnSignal(transformers.TrainerCallback):
    """On Ctrl-C or SIGTERM finish the step, save a checkpoint and stop."""

    def __init__(self) -> None:
        self.received: str | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the block runs."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._note) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        self.received = signal.Signals(number).name

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask the trainer to save and stop."""
        if self.received:
            control.should_save = control.should_training_stop = True
