"""The machine that jobs will run on: GPUs, memory, or a partition of Slurm."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from revela.common.errors import RevelaError, unknown_name

_SECONDS = 10  # timeout of the driver or Slurm


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


def this_machine(gradient_checkpointing: bool = False) -> Machine:
    """Return the machine that this process runs on."""
    found = _own_gpus()
    return Machine(
        gpus=len(found),
        gpu_gb=min(found, default=None),
        ram_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3,
        gradient_checkpointing=gradient_checkpointing,
    )


def gpus_asked(resources: Mapping[str, Any]) -> int:
    """Return the GPUs that a job's resources ask for: `gres` on each node, or `gpu` in all."""
    each = 0
    for resource in str(resources.get("gres", "")).split(","):
        name, *details = resource.split(":")  # gpu, gpu:4, gpu:a100:4
        if name == "gpu":
            each += int(details[-1]) if details and details[-1].isdecimal() else 1
    return each * resources.get("nodes", 1) or resources.get("gpu", 0)


def _lines(*command: str) -> list[str]:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return answer.stdout.splitlines()


def _own_gpus() -> list[float]:
    """Return the memory in GB of each GPU that a process may use here."""
    try:
        lines = _lines("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        every = [float(line) / 1024 for line in lines]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return every if visible is None else every[: len([v for v in visible.split(",") if v])]


def partition_resources(name: str, gpus: bool) -> str:
    """Return the generic resources of a partition's nodes, as sinfo states them.

    Raises:
        RevelaError: Slurm does not answer, or the partition is unknown, is not up or, if `gpus`,
            has no GPUs.
    """
    try:
        lines = [line.split("|") for line in _lines("sinfo", "--noheader", "--format=%R|%a|%G")]
    except (OSError, subprocess.SubprocessError) as error:
        raise RevelaError(f"sinfo does not answer: {error}") from error
    own = [(state, resources) for partition, state, resources in lines if partition == name]
    if not own:
        raise RevelaError(unknown_name("partition", name, {line[0] for line in lines}))
    if not any(state == "up" for state, _ in own):
        raise RevelaError("it is not up")
    if gpus and not any("gpu" in resources for _, resources in own):
        raise RevelaError("its nodes have no GPUs")
    return ", ".join(sorted({resources for _, resources in own}))
