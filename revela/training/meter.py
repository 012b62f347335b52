"""The cost of each segment of a training."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from revela.common import outputs
from revela.common.memory import memory_gb
from revela.common.usage import SEGMENTS, energy_joules, joules_between

_EVERY = 10  # seconds between writes


class Meter(transformers.TrainerCallback):
    """Records the cost of a segment of a training, from its start until it ends or is killed.

    It is for one process per node, so that the segments of all nodes and restarts add up.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a new file."""
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
        if time.time() - self.segment["seen"] > _EVERY:
            self._write(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write its final values."""
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
