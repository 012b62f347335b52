"""Makes trainings resumable after a kill: a lock, verified checkpoints, signal handlers.

transformers' `enable_jit_checkpoint` handles SIGTERM only, in each process separately, and exits as
if the training had finished. Its Trainer does not detect damaged checkpoints.
"""

import contextlib
import ctypes
import hashlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import transformers
from accelerate import PartialState

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.locks import locked

_LAYOUT = "2"  # of the weights' names in a checkpoint: none of another layout is resumed
COMPLETE = "complete.json"  # of a checkpoint, written last: file hashes, processes


class Stopped(RevelaError):
    """All processes of a training have stopped after the same step."""


@contextlib.contextmanager
def work_folder(
    output: Path, settings: str, inputs: list[Path], written: Iterable[str] = ()
) -> Iterator[Path]:
    """Lock `output` for one training and yield the folder of its checkpoints.

    The folder is named by a hash of settings and inputs: if they change, a training starts from
    step 0. It is removed when the block succeeds; otherwise the same training reuses it.

    Raises:
        RevelaError: another training holds the lock, `output` cannot be written, or one of the
            files and folders to be `written` there is not of a training.
    """
    known = "".join([_LAYOUT, settings, *map(outputs.sha256, inputs)])
    folder = output / "checkpoints"
    work = folder / hashlib.sha256(known.encode()).hexdigest()[:12]
    first = int(os.environ.get("RANK", "0")) == 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _die_with_parent()  # otherwise processes keep training after their launcher is killed
    with contextlib.ExitStack() as stack:
        if first:
            stack.enter_context(locked(folder, "training", innermost=1))
            outputs.check_ours(*(output / name for name in written))
            stack.enter_context(outputs.scratch(work, "[!.]*"))
        yield work
        PartialState().wait_for_everyone()


def _die_with_parent() -> None:
    """Kill this process when its parent dies: it would keep the lock."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start_loader_worker(_: int) -> None:
    """Make a loader's worker process end with the training, not before.

    SIGTERM may be sent to all processes of a job. A worker that it kills would end the training
    before its checkpoint; a worker therefore ends only on the SIGTERM of the training itself.
    """
    _die_with_parent()
    sys.excepthook = _show_unless_disconnected
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_sigterm_of_parent, daemon=True).start()


def _show_unless_disconnected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    # When a training is killed, the thread of a worker that sends it tensors may see the end of
    # their connection before the worker is killed too. Its traceback would end the job's log.
    if not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


def _wait_for_sigterm_of_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def mark_complete(checkpoint: Path, processes: dict[str, int]) -> None:
    """Write the hashes of a checkpoint's files, and the processes that wrote them."""
    written = {"processes": processes, "files": _hashes(checkpoint)}
    outputs.write_json(checkpoint / COMPLETE, written)


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint of a folder; newer damaged ones are removed."""
    for folder in sorted(work.glob("checkpoint-*"), key=step_of, reverse=True):
        problem = _problem(folder)
        if problem is None:
            return folder
        print(f"{folder}: {problem}; using the previous checkpoint", flush=True)
        outputs.remove(folder)
    return None


def check_processes(checkpoint: Path, processes: dict[str, int]) -> None:
    """Check that a sharded checkpoint was written by the current number of processes.

    Raises:
        RevelaError: it was not.
    """
    written = outputs.read_json(checkpoint / COMPLETE)["processes"]
    # With gathering, B grows with the number of processes.
    if written != processes and (written["zero"] or processes["zero"] or "gathered" in processes):
        raise RevelaError(
            f"{checkpoint}: was written with --zero {written['zero']} on {written['processes']} "
            f"processes and can only be resumed that way; remove {checkpoint.parent} to start over"
        )


def step_of(checkpoint: Path | None) -> int:
    """Return the step of a `checkpoint-N` folder, 0 for none."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {str(path.relative_to(folder)): outputs.sha256(path) for path in files}


def _problem(folder: Path) -> str | None:
    """Return the problem of a checkpoint, or None if its files are as they were written."""
    try:
        expected = outputs.read_json(folder / COMPLETE)["files"]
    except (RevelaError, KeyError):
        return "is incomplete"
    hashes = _hashes(folder)
    for name, digest in expected.items():
        if hashes.get(name) != digest:
            return f"{name} is {'damaged' if name in hashes else 'missing'}"
    return None


def end_of_job() -> float:
    """Return when Slurm ends this job, in seconds since the epoch; infinity without a limit.

    Slurm sets it in a job's environment since version 23.02, but Snakemake removes it; squeue is
    queried then.
    """
    if "SLURM_JOB_END_TIME" in os.environ:
        return float(os.environ["SLURM_JOB_END_TIME"])
    if "SLURM_JOB_ID" not in os.environ:
        return math.inf
    query = ["squeue", "--noheader", "--format=%e", "--jobs", os.environ["SLURM_JOB_ID"]]
    standard = os.environ | {"SLURM_TIME_FORMAT": "standard"}
    try:
        answer = subprocess.run(query, env=standard, capture_output=True, text=True, timeout=60)
        return datetime.fromisoformat(answer.stdout.strip()).timestamp()
    except (OSError, ValueError, subprocess.TimeoutExpired):  # no squeue, or no limit (N/A)
        return math.inf


class Guard(transformers.TrainerCallback):
    """Saves checkpoints at intervals; on a signal or before the job's end, saves one and stops.

    All processes act after the same step, whichever of them received the signal. Before the job's
    end it reserves the time that a step and a checkpoint take.
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
        """Handle signals within the block."""
        with contextlib.ExitStack() as stack:
            self.terminals = [stream for stream in (1, 2) if os.isatty(stream)]
            numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
                numbers.append(signal.SIGHUP)
            for number in numbers:
                stack.callback(signal.signal, number, signal.signal(number, self._note))
            yield

    def _note(self, number: int, _: Any) -> None:
        self.received = number
        if number == signal.SIGHUP:  # writing to a closed terminal is an error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self.terminals:
                os.dup2(nowhere, stream)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request a checkpoint or a stop from the trainer."""
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
        """Record the time of the checkpoint and its duration."""
        self.saved = time.time()
        self.longest_save = max(self.longest_save, self.saved - self.stepped)
        self.stepped = self.saved
