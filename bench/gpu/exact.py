"""Checks that a device computes the same as float64 on the CPU.

Plain functions: no test runner is needed. A section fails if a bound is exceeded.
"""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bench.common import random_model
from revela.inbatch import packing
from revela.inbatch.cross_document import Reads
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity
from revela.inbatch.packing import Spans, flash, flash_takes, starts_of
from revela.inbatch.summed import read_packed
from revela.retriever.lora import add_lora
from revela.training.fused import fuse, without_casts
from tests.inbatch.reference import varlen_attn

BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of errors relative to the largest value


def far(found: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest expected value."""
    largest = expected.abs().max().clamp_min(1e-12)
    return float((found.detach().cpu().double() - expected.double()).abs().max() / largest)


def spans(lengths: list[int], device: torch.device) -> Spans:
    """Return the starts of rows of these lengths."""
    starts = torch.from_numpy(starts_of(lengths)).int()
    return Spans(starts.to(device), max(lengths))


def attention(device: torch.device) -> Iterator[dict[str, str]]:
    """Compare flash attention on packed rows, forward and backward, with plain loops in float64."""
    if device.type != "cuda":  # the kernel exists on GPUs only
        yield from _attention(torch.device("cpu"), torch.float64, [(8, 4, 2)])
    else:
        yield from _attention(device, torch.bfloat16, [(64, 32, 8), (64, 9, 3), (128, 16, 8)])


def _attention(device: torch.device, dtype: torch.dtype, heads: Any) -> Iterator[dict[str, str]]:
    kernel = packing.varlen_attn
    for (width, many, few), what in itertools.product(heads, ("causal", "prefix", "cross, V-norm")):
        torch.manual_seed(0)
        queries, keys = [3, 160, 1, 97], [3, 160, 1, 97]
        if what == "prefix":
            keys = [length + 50 for length in queries]
        elif what == "cross, V-norm":
            keys = [40, 7, 160, 1]
        shapes = [(sum(queries), many), (sum(keys), few), (sum(keys), few)]
        given = [torch.randn(*shape, width, dtype=torch.float64).to(dtype) for shape in shapes]
        scale = width**-0.5
        outer = torch.randn(sum(queries), many, width)
        found = []
        for exact in (True, False):
            place = torch.device("cpu") if exact else device
            kind = torch.float64 if exact else dtype
            inputs = [x.to(place, kind).requires_grad_() for x in given]
            packing.varlen_attn = varlen_attn if exact or device.type == "cpu" else kernel
            try:
                of = spans(queries, place), spans(keys, place)
                if what == "cross, V-norm":
                    tokens = [
                        torch.arange(sum(lengths), device=place) for lengths in (keys, queries)
                    ]
                    weight = torch.ones(sum(queries), device=place)
                    reads = Reads(tokens[0], of[1], tokens[1], weight, of[0])
                    output = read_packed(*inputs, reads, scale, value_norm=True)
                else:
                    output = flash(*inputs, *of, scale, causal=True)
                output.backward(outer.to(place, output.dtype))
            finally:
                packing.varlen_attn = kernel
            found.append([output, *(x.grad for x in inputs)])
        errors = [far(ours, theirs) for theirs, ours in zip(*found, strict=True)]
        assert max(errors) < BOUNDS[torch.bfloat16], (what, width, errors)
        names = ("output", "of queries", "of keys", "of values")
        yield {"attention": f"{what}, {many} heads of {width}, {few} keys"} | {
            name: f"{error:.0e}" for name, error in zip(names, errors, strict=True)
        }


def losses(device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Compare in-batch attention's loss and gradients with those of float64 on the CPU."""
    lengths, sizes = [40, 64, 7, 25, 3, 33, 50, 64], [5, 3]
    ids = torch.randint(2, 300, (8, 64), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(64) < torch.tensor(lengths)[:, None]).long()
    cosine = torch.rand(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    small = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2}  # heads of 32 columns
    temperatures = (0.05,) if tiny else (1e6, 0.05, 1e-4)
    readings: dict[str, Any] = {"sum, V-norm": {}, "sum": {"value_norm": False}}
    readings["joint"] = {"reading": "joint"}
    for temperature, reading in itertools.product(temperatures, readings):
        found: dict[Any, list[Tensor]] = {}
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            place = torch.device("cpu") if dtype == torch.float64 else device
            model = random_model("SmolLM2-135M", **small)
            model = model.to(place, torch.float32 if dtype == torch.bfloat16 else dtype)
            scores = cosine.to(place, torch.promote_types(dtype, torch.float32), copy=True)
            similarity = in_batch_similarity(scores.requires_grad_(), temperature, sizes=sizes)
            with torch.autocast(place.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                packed = flash_takes(model, place)
                loss = in_batch_loss(
                    model, ids.to(place), mask.to(place), similarity,
                    sizes=sizes, **readings[reading],
                )  # fmt: skip
            loss.backward()
            weights = torch.cat([p.grad.flatten() for p in model.parameters()])
            found[dtype] = [loss.detach(), scores.grad, weights]
            if dtype == torch.float64:
                continue
            assert packed == (dtype == torch.bfloat16 and device.type == "cuda")
            expected = found[torch.float64]
            errors = [
                far(ours, theirs) for ours, theirs in zip(found[dtype], expected, strict=True)
            ]
            bounds = [BOUNDS[dtype], 10 * BOUNDS[dtype], 5 * BOUNDS[dtype]]
            if temperature == 1e-4:  # one-hot: the cosines' gradients are rounding errors only
                bounds[1] = float("inf")
            bad = [e for e, bound in zip(errors, bounds, strict=True) if not e < bound]
            assert not bad, (temperature, reading, dtype, errors)
            names = ("loss", "of cosines", "of weights")
            yield {
                "precision": str(dtype).removeprefix("torch."),
                "temperature": f"{temperature:g}",
                "reading": reading,
                "attention": "packed" if packed else "padded",
            } | {name: f"{error:.0e}" for name, error in zip(names, errors, strict=True)}


def adapters(device: torch.device) -> Iterator[dict[str, str]]:
    """Compare fused adapters and RMS norms with those of peft and transformers in float64."""
    lora = SimpleNamespace(rank=32, alpha=16, dropout=0.0, targets=["q_proj", "v_proj", "up_proj"])
    ids = torch.randint(2, 300, (4, 40), generator=torch.Generator().manual_seed(0))
    expected: list[Tensor] = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = add_lora(random_model("SmolLM2-135M", num_hidden_layers=2).model, lora, seed=0)
        torch.manual_seed(1)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in trained:
            torch.nn.init.normal_(weight, std=0.02)  # adapters start at zero
        if expected:
            fuse(model)
            model.to(device, torch.float32)
        else:
            model.double()
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            without_casts(model)
            states = model(input_ids=ids.to(model.device)).last_hidden_state
        torch.manual_seed(2)
        states.backward(torch.randn(states.shape).to(states))
        found = [states, torch.cat([weight.grad.flatten() for weight in trained])]
        if expected:
            errors = [far(ours, theirs) for ours, theirs in zip(found, expected, strict=True)]
            assert max(errors) < 3 * BOUNDS[dtype], (dtype, errors)
            yield {
                "precision": str(dtype).removeprefix("torch."),
                "output": f"{errors[0]:.0e}",
                "of adapters": f"{errors[1]:.0e}",
            }
        else:
            expected = [one.detach() for one in found]
