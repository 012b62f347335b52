"""What a training tells while it runs: one JSON line a step, a progress bar, memory, its cost."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from revela.common import outputs
from revela.common.usage import PARTS, energy_joules, joules_between

LOG = "log.jsonl"


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a training log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def keep_log_until(path: Path, step: int) -> None:
    """Drop the lines of a log behind `step`, and a last line that was cut off."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if 0 < json.loads(line)["step"] <= step or (step and json.loads(line)["step"] == 0):
                kept.append(line + "\n")
    outputs.write_text(path, "".join(kept))


class Progress(transformers.TrainerCallback):
    """A progress bar with the loss and the time left, on the main process."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar where the training starts or resumes."""
        from tqdm.auto import tqdm

        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc="training",
            unit="step",
            mininterval=2,
            disable=not state.is_world_process_zero,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Advance the bar."""
        if "loss" not in logs:
            return
        self.bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)
        self.bar.update(state.global_step - self.bar.n)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        self.bar.close()


class Meter(transformers.TrainerCallback):
    """Keep a file of what this part of a training costs: from a start to its end or to a kill.

    One process of each node writes, so that the parts of all nodes and restarts add up.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start a file of its own."""
        if not state.is_local_process_zero:
            return
        self.cuda = args.device.type == "cuda"
        self.joules = energy_joules()
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.part: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": outputs.process_start(),
            "began": time.time(),
            "first_step": state.global_step,
            "processes": processes,
            "gpus": processes if self.cuda else 0,
            "gpu": torch.cuda.get_device_name() if self.cuda else None,
            "last_step": state.max_steps,
        }
        name = f"{self.part['started']:.0f}-{self.part['host']}-{self.part['process']}.json"
        self.path = self.work / PARTS / name
        self._write(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write now and then."""
        if state.is_local_process_zero and time.time() - self.part["seen"] > _EVERY:
            self._write(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write for good."""
        if state.is_local_process_zero:
            self._write(state, ended=True)

    def _write(self, state: Any, ended: bool = False) -> None:
        self.part |= {
            "seen": time.time(),
            "step": state.global_step,
            "ended": ended,
            "joules": joules_between(self.joules, energy_joules()),
            "peak_gpu_memory_gb": round(memory_gb(), 3) if self.cuda else None,
        }
        outputs.write_json(self.path, self.part)


_EVERY = 10  # seconds


def memory_gb() -> float:
    """Return the peak memory so far in GB: of the GPU where there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1024**3
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next step instead of returning it.

    A step allocates and frees the same large tensors again and again; on a CPU the page faults of
    fresh memory take a fifth of a small model's time (`bench/attention/allocator.py`).
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # only glibc has mallopt
        libc = ctypes.CDLL("libc.so.6")
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
