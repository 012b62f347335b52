"""The log of a training, one JSON line per step, and the cost of each of its segments."""

import contextlib
import ctypes
import gc
import json
import os
import resource
import socket
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from revela.common import outputs
from revela.common.errors import reading
from revela.common.usage import SEGMENTS, energy_joules, joules_between

LOG = "log.jsonl"
_EVERY = 10  # seconds between writes of a segment's cost


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a training log.

    Raises:
        RevelaError: it cannot be read, or has no steps.
    """
    with reading(path, "a training log"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or not all(isinstance(line, dict) and "step" in line for line in lines):
            raise KeyError("step")
    return lines


def keep_log_until(path: Path, step: int) -> None:
    """Drop the lines of a log after `step`, and a truncated last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if step else []:
        with contextlib.suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    outputs.write_text(path, "".join(kept))


class Meter(transformers.TrainerCallback):
    """Records the cost of a segment of a training, from its start until it ends or is killed.

    One process per node writes, so that the segments of all nodes and restarts add up.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a new file."""
        if not state.is_local_process_zero:
            return
        self.cuda = args.device.type == "cuda"
        self.joules = energy_joules()
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.segment: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": outputs.STARTED,
            "began": time.time(),
            "first_step": state.global_step,
            "processes": processes,
            "gpus": processes if self.cuda else 0,
            "gpu": torch.cuda.get_device_name() if self.cuda else None,
            "last_step": state.max_steps,
        }
        name = "{started:.0f}-{host}-{process}.json".format_map(self.segment)
        self.path = self.work / SEGMENTS / name
        self._write(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Update it every ten seconds."""
        if state.is_local_process_zero and time.time() - self.segment["seen"] > _EVERY:
            self._write(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write its final values."""
        if state.is_local_process_zero:
            self._write(state, ended=True)

    def _write(self, state: Any, ended: bool = False) -> None:
        self.segment |= {
            "seen": time.time(),
            "step": state.global_step,
            "ended": ended,
            "joules": joules_between(self.joules, energy_joules()),
            "peak_gpu_memory_gb": round(memory_gb(), 3) if self.cuda else None,
        }
        outputs.write_json(self.path, self.segment)


def memory_gb() -> float:
    """Return the peak memory so far in GB: of the GPU if there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1024**3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next step, except for tensors of 8 MB and more.

    A step allocates and frees the same tensors again and again; on a CPU the page faults of new
    memory slow down a small model. Large tensors are returned: if they are kept, as glibc by
    default does up to 32 MB, the heap of a large model with gradient checkpointing fragments to
    nearly three times its size; keeping them saves an eighth of its time
    (`bench/training/freed_memory.py`).
    """
    with contextlib.suppress(OSError, AttributeError):  # only glibc has mallopt
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**23)  # M_MMAP_THRESHOLD


def return_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` has kept."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
