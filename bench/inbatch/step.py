"""Time and memory of in-batch attention's language model part, forward and backward.

Compared with a plain padded pass over the same e and h rows with all logits (the cost without
attention between chunks), with joint reading, and with the dense implementation. SmolLM2-135M's
width, few layers, ragged lengths of real chunks of at most 160 tokens; random weights. The peak is
the resident memory above that before the step: weights do not count, but their gradients do.

With `--large`, the memory of a complete step (retriever and language model of SmolLM2-135M's
full size, gradient checkpointing, bfloat16) at B = 64 and 128.

    python -m bench.inbatch.step [--sizes B …]
    python -m bench.inbatch.step --large [--sizes B …]
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.common import (
    chunk_lengths,
    encoder_around,
    medians,
    peak_gb,
    ragged_batch,
    random_model,
    report,
    resident_gb,
)
from bench.inbatch.dense import dense_loss, plain_pass
from revela.common.memory import keep_freed_memory
from revela.config.training import RevelaObjective
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity
from revela.training.objectives.revela import Revela

COMMAND = "python -m bench.inbatch.step"
LENGTH = 160
SIZES = [8, 16, 32, 64, 128]
DENSE_FITS = 32  # maximum B


def runs(model: Any, size: int, uniform: bool = False) -> dict[str, Callable[[], None]]:
    """Return a step of each implementation on a batch of real lengths of at most `LENGTH` tokens.

    Similarities are `uniform`, or as sharp as the paper's.
    """
    vocabulary = model.config.vocab_size
    ids, mask = ragged_batch([LENGTH, *chunk_lengths(size - 1, LENGTH)], vocabulary)
    torch.manual_seed(size)
    similarity = in_batch_similarity(torch.rand(size, size), 1e6 if uniform else 1e-4)
    similarity.requires_grad_()
    return {
        "ours": lambda: in_batch_loss(model, ids, mask, similarity).backward(),
        "joint": lambda: in_batch_loss(model, ids, mask, similarity, reading="joint").backward(),
        "plain": lambda: plain_pass(model, ids, mask).backward(),
        "dense": lambda: dense_loss(model, ids, mask, similarity, True).backward(),
    }


def memory(sizes: list[int]) -> None:
    """Compare at one layer, without the dense implementation where it does not fit."""
    model = random_model("SmolLM2-135M", num_hidden_layers=1)

    def peak(size: int, way: str, uniform: bool = False) -> float:
        model.zero_grad()
        return peak_gb(runs(model, size, uniform)[way])

    rows = []
    for size in sizes:
        sharp = peak(size, "ours")
        row = {
            "B": str(size),
            "one-hot, GB": f"{sharp:.2f}",
            "MB a chunk": f"{1000 * sharp / size:.0f}",
            "uniform, GB": f"{peak(size, 'ours', uniform=True):.2f}",
            "joint, uniform, GB": f"{peak(size, 'joint', uniform=True):.2f}",
        }
        if size <= DENSE_FITS:
            dense = peak(size, "dense")
            row |= {"dense, GB": f"{dense:.2f}", "dense / one-hot": f"{dense / sharp:.1f}"}
        rows.append(row)
    report("Memory at one layer", COMMAND, rows)


def against_plain_and_dense(sizes: list[int]) -> None:
    """Compare at one layer, where the dense implementation fits."""
    model = random_model("SmolLM2-135M", num_hidden_layers=1)
    sharp = [(size, False) for size in sizes if size <= DENSE_FITS]
    rows = []
    for size, uniform in [*sharp, *((size, True) for size, _ in sharp if size > 8)]:
        ways = runs(model, size, uniform)
        dense = ways.pop("dense")
        found = medians(ways)
        # Not interleaved: the state of the heap after it would slow down the next run.
        found |= medians({"dense": dense}, repeats=3)
        row = {"B": str(size), "similarities": "uniform" if uniform else "one-hot"}
        row["ms a chunk"] = f"{1000 * found['ours'] / size:.0f}"
        for one, other in (("dense", "ours"), ("ours", "plain"), ("joint", "ours")):
            row[f"{one} / {other}"] = f"{found[one] / found[other]:.2f}"
        rows.append(row)
    report("One layer: against dense and plain", COMMAND, rows)


def as_the_batch_grows(sizes: list[int]) -> None:
    """Compare at four layers: the cost per chunk should not depend on the batch."""
    model = random_model("SmolLM2-135M", num_hidden_layers=4)
    ways = {}
    for size in sizes:
        own = runs(model, size)
        ways[f"ours {size}"] = own["ours"]
        if size <= DENSE_FITS:
            ways[f"plain {size}"] = own["plain"]
    found = medians(ways, repeats=3)
    base = 16 if 16 in sizes else sizes[0]
    rows = []
    for size in sizes:
        ours = found[f"ours {size}"]
        row = {"B": str(size), "ms a chunk": f"{1000 * ours / size:.0f}"}
        row[f"of B = {base}"] = f"{ours / size / (found[f'ours {base}'] / base):.2f}"
        if size <= DENSE_FITS:
            row["ours / plain"] = f"{ours / found[f'plain {size}']:.2f}"
        rows.append(row)
    report("Four layers: as the batch grows", COMMAND, rows)


def large_batches(sizes: list[int]) -> None:
    """Measure a complete step of large batches at full size."""
    rows = []
    for size in sizes:
        models = [random_model("SmolLM2-135M") for _ in range(2)]
        for model in models:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        module = Revela(encoder_around(models[0].model), models[1], RevelaObjective(name="revela"))
        lengths = chunk_lengths(size, 156)
        forms = ragged_batch([length + 4 for length in lengths] * 2, 49152)
        loss = torch.autocast("cpu", torch.bfloat16)(partial(module, *forms))
        bare = ragged_batch(lengths, 49152)
        peak = peak_gb(lambda loss=loss, bare=bare: loss(*bare)["loss"].backward())
        row = {"B": str(size), "step, GB": f"{peak:.1f}"}
        rows.append(row | {"whole process, GB": f"{resident_gb('VmHWM'):.1f}"})
    report("Memory of large batches", f"{COMMAND} --large", rows)


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+")
    arguments = parser.parse_args()
    if arguments.large:
        large_batches(arguments.sizes or [64, 128])
        return
    sizes = arguments.sizes or SIZES
    memory(sizes)
    keep_freed_memory()  # only from here on: it would hide the peaks
    against_plain_and_dense(sizes)
    as_the_batch_grows(sizes)


if __name__ == "__main__":
    main()
