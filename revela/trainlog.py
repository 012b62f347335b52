"""What a training tells while it runs: one JSON line a step, a progress bar, its memory."""

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from revela import outputs

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


def memory_gb() -> float:
    """Return the peak memory so far in GB: of the GPU where there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1024**3
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next step instead of returning it.

    A step allocates and frees the same large tensors again and again; on a CPU the page faults of
    fresh memory take a fifth of a small model's time (`bench/allocator.py`).
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # only glibc has mallopt
        libc = ctypes.CDLL("libc.so.6")
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
