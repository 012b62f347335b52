"""A model of one Revela step on a GPU: kernels, FLOP, bytes and milliseconds of each part.

Nothing is measured. A forward and backward pass with flash attention runs on meta tensors, which
have shapes but no values. Each operator counts as one kernel that takes the longer of two times:
its FLOP at the GPU's peak rate, or its bytes read and written at the GPU's bandwidth.
Launches, caches and inefficient shapes are ignored, so that a real step takes longer. All
chunks have full length, each reads one other chunk, as at the paper's temperature (`--reads`), all
weights and adapters are bfloat16, and AdamW counts once in 32 batches.

    python -m bench.modelled_step --batch 16 --checkpointing --tflops 989 --tb-per-second 4.8
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.common import SHAPES, encoder_around, random_model
from bench.gpu.steps import BATCHES_A_STEP, REVELA, TINY, adapted
from revela.inbatch import in_batch
from revela.training.objectives.revela import Revela

COLUMNS = ["kernels", "flop", "bytes", "seconds"]
NO_KERNELS = ("prim.device", "aten.detach", "aten._unsafe_view", "aten.empty", "aten.new_empty")
FLOP = flop_registry | {torch.ops.aten.addmm_: flop_registry[torch.ops.aten.addmm]}
_BACKWARD_FLOP = 2.5  # of flash attention, relative to its forward pass


class Counter(TorchDispatchMode):
    """Counts the operators of a step by the current part."""

    def __init__(self, flops: float, bandwidth: float) -> None:
        super().__init__()
        self.flops, self.bandwidth = flops, bandwidth
        self.parts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(COLUMNS)))
        self.running = "language model, forward"

    def add(self, flop: float, moved: float) -> None:
        """Count one kernel."""
        seconds = max(flop / self.flops, moved / self.bandwidth)
        self.parts[self.running] += [1, flop, moved, seconds]

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if not (function.is_view or any(name in str(function) for name in NO_KERNELS)):
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
            formula = FLOP.get(function.overloadpacket, lambda *_, **__: 0)
            self.add(formula(*args, **kwargs, out_val=result), sum(x.nbytes for x in tensors))
        return result

    def part(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose operators count as a part, except those of the backward pass."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            before = self.running
            self.running = before if before == "backward" else name
            result = function(*args, **kwargs)
            self.running = before
            return result

        return counted

    def flash(self, query: Tensor, key: Tensor, value: Tensor, *given: Any, causal: bool) -> Tensor:
        """Replacement for `packing.flash` on rows of equal length."""
        queries, keys, _ = given
        pairs = (len(queries.starts) - 1) * queries.longest * keys.longest / (1 + causal)
        flop = 2 * pairs * query.shape[1] * (query.shape[2] + value.shape[2])
        return _Kernel.apply(self, flop, value.shape[2], query, key, value)

    def rms_norm(self, x: Tensor, *_: Any) -> Tensor:
        """Replacement for `torch.nn.functional.rms_norm` with frozen weights."""
        return _Kernel.apply(self, 0, x.shape[-1], x)


class _Kernel(torch.autograd.Function):
    """A kernel forward, one backward; flash attention, which has FLOP, reads its output again."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, flop: float, width: int, *inputs: Tensor) -> Tensor:
        ctx.counter, ctx.flop, ctx.inputs = counter, flop, inputs
        output = inputs[0].new_empty(*inputs[0].shape[:-1], width)
        counter.add(flop, sum(x.nbytes for x in (*inputs, output)))
        return output

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        moved = 2 * sum(x.nbytes for x in ctx.inputs) + (1 + bool(ctx.flop)) * outer.nbytes
        ctx.counter.add(_BACKWARD_FLOP * ctx.flop, moved)
        return None, None, None, *(torch.empty_like(x) for x in ctx.inputs)


def model_step(
    shape: str,
    batch: int,
    length: int,
    checkpointing: bool,
    counter: Counter,
    tiny: bool = False,
    fused: bool = True,
    reads: int = 1,
) -> pd.DataFrame:
    """Return a row of `COLUMNS` for each part of a step; retriever and LM have the same shape."""
    with torch.device("meta"):
        one, other = (random_model(shape, **(TINY if tiny else {})).bfloat16() for _ in range(2))
        one, other = (adapted(m, tiny, checkpointing, fused) for m in (one.model, other))
        module = Revela(encoder_around(one), other, REVELA).bfloat16().train()
        ids = torch.zeros(2 * batch, length, dtype=torch.long)
        mask = torch.ones_like(ids)
    kept = sum(np.roll(np.eye(batch, dtype=bool), n, axis=1) for n in range(1, reads + 1))
    read_on_host = kept, [length] * batch
    part, dropout = counter.part, torch.native_dropout
    with (
        mock.patch.multiple(
            in_batch,
            checked=lambda *_: read_on_host,
            flash=counter.flash,
            flash_takes=lambda *_: True,
            next_token_loss=part("head and loss, with its gradient", in_batch.next_token_loss),
            read_packed=part("cross-document attention, forward", in_batch.read_packed),
        ),
        mock.patch("revela.inbatch.packing.flash", counter.flash),
        mock.patch("revela.inbatch.summed.flash", counter.flash),
        mock.patch("revela.retriever.encode.flash_takes", return_value=True),
        mock.patch.object(module, "similarity", part("retriever, forward", module.similarity)),
        # The one kernel that a GPU has for it; meta tensors take three.
        mock.patch("torch.nn.functional.dropout", lambda x, p, on, _: dropout(x, p, on)[0]),
        mock.patch("torch.nn.functional.rms_norm", counter.rms_norm),
        mock.patch("torch.autocast", return_value=nullcontext()),  # not available for meta tensors
        counter,
    ):
        step = module(ids, mask, ids[:batch], mask[:batch], [length] * 2 * batch)
        part("backward", step["loss"].backward)()
    trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    # Reads weight, gradient and two moments in float32, writes all but the gradient.
    part("AdamW, a batch's share", counter.add)(0, 7 * 4 * trained / BATCHES_A_STEP)
    return pd.DataFrame.from_dict(counter.parts, orient="index", columns=COLUMNS)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="Llama-3.2-1B")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=157, help="tokens of a chunk")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--reads", type=int, default=1, help="chunks that each chunk reads")
    parser.add_argument("--unfused", action="store_true", help="adapters and norms as in peft")
    parser.add_argument("--tflops", type=float, default=989.0, help="peak; default: H200, bfloat16")
    parser.add_argument("--tb-per-second", type=float, default=4.8, help="default: H200")
    given = parser.parse_args()
    counter = Counter(given.tflops * 1e12, given.tb_per_second * 1e12)
    shape = given.shape, given.batch, given.length, given.checkpointing
    found = model_step(*shape, counter, fused=not given.unfused, reads=given.reads)
    found.loc["all"] = found.sum()
    table = pd.DataFrame(
        {
            "kernels": found["kernels"],
            "TFLOP": found["flop"] / 1e12,
            "GB": found["bytes"] / 1e9,
            "ms, modelled": 1e3 * found["seconds"],
            "% of the step": 100 * found["seconds"] / found["seconds"]["all"],
            "% of the peak rate": 100 * found["flop"] / found["seconds"] / counter.flops,
        }
    )
    print(f"Modelled, not measured: {vars(given)}\n\n{table.to_markdown(floatfmt=',.1f')}")


if __name__ == "__main__":
    main()
