"""Peak memory of in-batch attention's language model part, forward and backward.

Against the dense way at one layer, where that still fits, and as the batch grows. With `--large`
instead a whole step (retriever and language model of SmolLM2-135M's full size, gradient
checkpointing, bfloat16) at B = 64 and 128. The peak is the resident memory above what stood
before the step, so that weights do not count, but their gradients do.

    python -m bench.attention.memory
    python -m bench.attention.memory --large
"""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from bench.attention.step import batch, dense, ours, similarities
from bench.common import chunk_lengths, ragged_batch, random_model, report
from revela.config.steps import Encoding, RevelaObjective
from revela.encoder import Encoder
from revela.training.objectives.revela import Revela


def peak_gb(run: Callable[[], object]) -> float:
    """Return the peak memory of a run in GB, above what is resident before it."""
    gc.collect()
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024**2
    raise KeyError(name)


def against_dense() -> None:
    """Compare at one layer, and go on alone where the dense way does not fit."""
    model = random_model("SmolLM2-135M", num_hidden_layers=1)
    rows = []
    for size in (8, 16, 32, 64, 128):
        ids, mask = batch(size, model.config.vocab_size)
        found = {}
        for uniform in (False, True):
            similarity = similarities(size, uniform)
            model.zero_grad()
            found[uniform] = peak_gb(ours(model, ids, mask, similarity))
        model.zero_grad()
        other = peak_gb(dense(model, ids, mask, similarity)) if size <= 32 else None
        rows.append(
            [
                str(size),
                f"{found[False]:.2f}",
                f"{1000 * found[False] / size:.0f}",
                f"{found[True]:.2f}",
                f"{other:.2f}" if other else "",
                f"{other / found[False]:.1f}" if other else "",
            ]
        )
    heading = ["B", "one-hot, GB", "MB a chunk", "uniform, GB", "dense, GB", "dense / one-hot"]
    report("Memory at one layer", "python -m bench.attention.memory", heading, rows)


def large_batches() -> None:
    """Take a whole step of large batches at full size."""
    rows = []
    for size in (64, 128):
        models = [random_model("SmolLM2-135M") for _ in range(2)]
        for model in models:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        module = Revela(
            Encoder(models[0].model, None, Encoding()), models[1], RevelaObjective(name="revela")
        )
        ids, mask = ragged_batch(chunk_lengths(size, 156), 49152)
        retriever = ragged_batch([n + 4 for n in chunk_lengths(size, 156)] * 2, 49152)

        def step(module: Revela = module, inputs: tuple = (*retriever, ids, mask)) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = module(*inputs)["loss"]
            loss.backward()

        rows.append([str(size), f"{peak_gb(step):.1f}", f"{_status('VmHWM'):.1f}"])
    heading = ["B", "step, GB", "whole process, GB"]
    report("Memory of large batches", "python -m bench.attention.memory --large", heading, rows)


if __name__ == "__main__":
    large_batches() if "--large" in sys.argv else against_dense()
