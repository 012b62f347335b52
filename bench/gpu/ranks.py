"""Checks that several processes compute the same gradients as one.

Each has a GPU if there are several. Otherwise two share the device with gloo, because NCCL allows
one process per GPU, and NCCL runs in one.
"""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from bench.gpu.exact import BOUNDS, far
from bench.gpu.steps import REVELA, batches_of, learning, models_of

CHUNKS = 4  # of each process


def measure(device: torch.device) -> Iterator[dict[str, str]]:
    """Yield the errors of the mean gradients of processes, compared with one process.

    They have a batch each or, gathered, share one.
    """
    gpus = torch.cuda.device_count()
    kinds = [("gloo", 2)] if gpus < 2 else []
    for backend, world in kinds + [("nccl", gpus)] * (gpus > 0):
        for gathered in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                _gradients(0, 1, "", world, gathered, str(device), folder)
                given = (world, backend, world, gathered, str(device), folder)
                multiprocessing.spawn(_gradients, given, nprocs=world)
                one, *others = (
                    torch.load(Path(folder) / f"{backend}-{rank}.pt")
                    for backend, rank in [("", 0), *((backend, rank) for rank in range(world))]
                )
            assert all(torch.equal(others[0], other) for other in others), "gradients differ"
            error = far(others[0], one)
            assert error < (1 + gathered) * BOUNDS[torch.bfloat16], error
            row = {"processes": str(world), "backend": backend}
            yield row | {"gathered": "yes" if gathered else "", "error": f"{error:.0e}"}


def _gradients(
    rank: int, world: int, backend: str, batches: int, gathered: bool, device: str, folder: str
) -> None:
    place = torch.device(f"cuda:{rank}" if backend == "nccl" else device)
    if backend == "nccl":
        torch.cuda.set_device(place)
    torch.manual_seed(0)
    _, causal, module = models_of("SmolLM2-135M", place, True)
    module = module.eval()  # no dropout
    size = CHUNKS * batches if gathered else CHUNKS
    options = (causal.config.vocab_size, place, True)
    given = batches_of(size, 1, *options)[:1] if gathered else batches_of(size, batches, *options)
    if not gathered or backend:
        given = [_part(given[0], n, CHUNKS) for n in range(batches)]
    step: Any = module
    if backend:
        module.settings = copy.copy(REVELA)
        module.settings.gather_across_devices = gathered
        meet = f"file://{folder}/meet"
        distributed.init_process_group(backend, meet, rank=rank, world_size=world)
        step = DistributedDataParallel(module, find_unused_parameters=True)
    for batch in given[rank::world]:
        learning(step, place)(batch)
    share = 1 if backend else len(given)
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    torch.save(torch.cat(gradients).cpu() / share, Path(folder) / f"{backend}-{rank}.pt")
    if backend:
        # As the last owner of the process group, which it frees with Python's lock held, it would
        # wait for a thread of gloo that waits for the lock.
        del step
        distributed.destroy_process_group()


def _part(batch: dict[str, Any], number: int, size: int) -> dict[str, Any]:
    """Return the chunks of one process."""
    own, total = slice(number * size, (number + 1) * size), len(batch["language_model_ids"])
    found = {"sizes": None, "retriever_lengths": batch["retriever_lengths"][:total][own] * 2}
    for kind in ("ids", "mask"):
        found[f"language_model_{kind}"] = batch[f"language_model_{kind}"][own]
        forms = batch[f"retriever_{kind}"].unflatten(0, (2, total))  # as query, as passage
        found[f"retriever_{kind}"] = forms[:, own].flatten(0, 1)
    return found
