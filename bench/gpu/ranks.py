"""Checks that two processes compute the same gradients as one process.

Each has a GPU if there are two. Otherwise they share the device, with gloo in place of NCCL, which
allows one process per GPU.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from bench.common import encoder_around
from bench.gpu.exact import BOUNDS, far
from bench.gpu.steps import REVELA, adapted, batches_of, learning, model_of
from revela.training.objectives.revela import Revela


def measure(device: torch.device) -> list[dict[str, str]]:
    """Compare the mean gradient of two batches, one per process, with both in one process."""
    with tempfile.TemporaryDirectory() as folder:
        _gradients(0, 1, str(device), folder)
        multiprocessing.spawn(_gradients, (2, str(device), folder), nprocs=2)
        one, first, second = (torch.load(Path(folder) / f"{n}.pt") for n in ("1-0", "2-0", "2-1"))
    assert torch.equal(first, second), "the processes' gradients differ"
    error = far(first, one)
    assert error < BOUNDS[torch.bfloat16], error
    return [{"processes": "2", "backend": _backend(), "error of gradients": f"{error:.0e}"}]


def _backend() -> str:
    return "nccl" if torch.cuda.device_count() > 1 else "gloo"


def _gradients(rank: int, world: int, device: str, folder: str) -> None:
    backend = _backend()
    place = torch.device(device if backend == "gloo" else f"cuda:{rank}")
    if backend == "nccl":
        torch.cuda.set_device(place)
    torch.manual_seed(0)
    retriever = adapted(model_of("SmolLM2-135M", place, True).model, True, False)
    causal = adapted(model_of("SmolLM2-135M", place, True), True, False)
    module: Any = Revela(encoder_around(retriever), causal, REVELA).eval()  # no dropout
    batches = batches_of(4, 1, causal.config.vocab_size, place, True)[:2]
    if world > 1:
        distributed.init_process_group(
            backend, f"file://{folder}/meet", rank=rank, world_size=world
        )
        module = DistributedDataParallel(module, find_unused_parameters=True)
    for batch in batches[rank::world]:
        learning(module, place)(batch)
    share = 1 if world > 1 else len(batches)
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    torch.save(torch.cat(gradients).cpu() / share, Path(folder) / f"{world}-{rank}.pt")
    if world > 1:
        # As the last owner of the process group, which it frees with Python's lock held, it would
        # wait for a thread of gloo that waits for the lock.
        del module
        distributed.destroy_process_group()
