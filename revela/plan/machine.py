"""The machine that jobs will run on: GPUs, memory, or a partition of Slurm."""

import os
import re
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The machine that jobs will run on."""

    gpus: int  # per training, over all its nodes; 0 also if unknown
    gpu_gb: float | None  # memory of one, None if unknown
    ram_gb: float | None = None  # None if unknown, as on a cluster
    partition: str | None = None
    gradient_checkpointing: bool = False  # of its trainings

    @property
    def has_bfloat16(self) -> bool:
        """Whether precision bfloat16 is used: on a GPU, and on some processors."""
        from revela.retriever.encode import native_dtype

        return self.gpus > 0 or native_dtype("bfloat16").itemsize == 2

    @property
    def gb(self) -> float | None:
        """The memory of the device that jobs compute on, None if unknown."""
        return self.gpu_gb if self.gpus else self.ram_gb


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return Machine(visible_gpus(), None, ram)


def visible_gpus() -> int:
    """Return the number of GPUs that a process may use here, counted as by `launch.sh`."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    gpus = len(re.findall(r"^GPU", listed.stdout, re.MULTILINE))  # without MIG instances
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else min(gpus, len(re.findall(r"[^,]+", visible)))
