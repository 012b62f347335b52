"""Time of in-batch attention's language model part, forward and backward.

Against a plain padded pass over the same e and h rows with whole logits (what it would cost
without any attention between chunks) and against the dense way of building it. SmolLM2-135M's
width, few layers, ragged lengths of real chunks of at most 160 tokens; random weights.

    python -m bench.attention.step
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.attention.dense import dense_loss, plain_pass
from bench.common import chunk_lengths, medians, ragged_batch, random_model, report
from revela.attention.in_batch import in_batch_loss, in_batch_similarity
from revela.training.trainlog import keep_freed_memory

LENGTH = 160


def similarities(size: int, uniform: bool) -> Tensor:
    """Return weights as sharp as the paper's temperature makes them, or all alike."""
    torch.manual_seed(size)
    cosine = torch.rand(size, size)
    return in_batch_similarity(cosine, 1e6 if uniform else 1e-4).requires_grad_()


def ours(model: Any, ids: Tensor, mask: Tensor, similarity: Tensor) -> Callable[[], None]:
    """Return a run of this project's in-batch attention."""
    return lambda: in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()


def dense(model: Any, ids: Tensor, mask: Tensor, similarity: Tensor) -> Callable[[], None]:
    """Return a run of the dense way."""
    return lambda: dense_loss(model, ids, mask, similarity, True).backward()


def plain(model: Any, ids: Tensor, mask: Tensor) -> Callable[[], None]:
    """Return a run of the plain pass."""
    return lambda: plain_pass(model, ids, mask).backward()


def batch(size: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return a batch of real lengths, the longest of `LENGTH` tokens."""
    return ragged_batch([LENGTH, *chunk_lengths(size - 1, LENGTH)], vocabulary)


def against_plain_and_dense() -> None:
    """Compare at one layer, where the dense way still fits; B = 64 at a third of the width."""
    whole = random_model("SmolLM2-135M", num_hidden_layers=1)
    third = {"hidden_size": 192, "intermediate_size": 512}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1}
    narrow = random_model("SmolLM2-135M", num_hidden_layers=1, **third, **heads)
    rows = []
    for size, model, uniform in (
        (8, whole, False),
        (16, whole, False),
        (32, whole, False),
        (64, narrow, False),
        (16, whole, True),
        (32, whole, True),
    ):
        ids, mask = batch(size, model.config.vocab_size)
        similarity = similarities(size, uniform)
        found = medians(
            {
                "ours": ours(model, ids, mask, similarity),
                "plain": plain(model, ids, mask),
            }
        )
        # Not in turn: what it leaves of the heap would slow down whoever comes next.
        found |= medians({"dense": dense(model, ids, mask, similarity)}, repeats=3)
        rows.append(
            [
                f"{size}{', narrow' if model is narrow else ''}",
                "uniform" if uniform else "one-hot",
                f"{float(mask.float().mean()):.2f}",
                f"{1000 * found['ours'] / size:.0f}",
                f"{found['dense'] / found['ours']:.2f}",
                f"{found['ours'] / found['plain']:.2f}",
            ]
        )
    heading = ["B", "similarities", "real tokens", "ms a chunk", "dense / ours", "ours / plain"]
    report("One layer: against dense and plain", "python -m bench.attention.step", heading, rows)


def as_the_batch_grows() -> None:
    """Compare at four layers: a chunk should cost the same in any batch."""
    model = random_model("SmolLM2-135M", num_hidden_layers=4)
    runs = {}
    for size in (8, 16, 32, 64, 128):
        ids, mask = batch(size, model.config.vocab_size)
        runs[f"ours {size}"] = ours(model, ids, mask, similarities(size, uniform=False))
        if size <= 32:
            runs[f"plain {size}"] = plain(model, ids, mask)
    found = medians(runs, repeats=3)
    base = found["ours 16"] / 16
    rows = []
    for size in (8, 16, 32, 64, 128):
        chunk = found[f"ours {size}"] / size
        plain_time = found.get(f"plain {size}")
        rows.append(
            [
                str(size),
                f"{1000 * chunk:.0f}",
                f"{chunk / base:.2f}",
                f"{found[f'ours {size}'] / plain_time:.2f}" if plain_time else "",
            ]
        )
    heading = ["B", "ms a chunk", "of B = 16", "ours / plain"]
    report("Four layers: as the batch grows", "python -m bench.attention.step", heading, rows)


if __name__ == "__main__":
    keep_freed_memory()
    against_plain_and_dense()
    as_the_batch_grows()
