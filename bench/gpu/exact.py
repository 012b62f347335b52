"""Checks that a device computes the same as float64 on the CPU.

Plain functions: no test runner is needed. A section fails if a bound is exceeded.
"""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

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


def spans(lengths: list[int], device: torch.device | str) -> Spans:
    """Return the starts of rows of these lengths."""
    starts = torch.from_numpy(starts_of(lengths)).int()
    return Spans(starts.to(device), max(lengths))


def compared(
    names: tuple[str, ...], found: list[Tensor], expected: list[Tensor], *bounds: float
) -> dict[str, str]:
    """Return the errors of named tensors; each must be within its bound."""
    errors = [far(ours, theirs) for ours, theirs in zip(found, expected, strict=True)]
    assert all(error < bound for error, bound in zip(errors, bounds, strict=True)), errors
    return {name: f"{error:.0e}" for name, error in zip(names, errors, strict=True)}


def attention(device: torch.device) -> Iterator[dict[str, str]]:
    """Compare flash attention on packed rows, forward and backward, with plain loops in float64."""
    kernel, dtype = packing.varlen_attn, torch.bfloat16
    heads = [(64, 32, 8), (64, 9, 3), (128, 16, 8)]
    if device.type == "cpu":  # which has no such kernel
        kernel, dtype, heads = varlen_attn, torch.float64, [(8, 4, 2)]
    for (width, many, few), what in itertools.product(heads, ("causal", "prefix", "cross, V-norm")):
        torch.manual_seed(0)
        queries, keys = [3, 160, 1, 97], [3, 160, 1, 97]
        if what == "prefix":
            keys = [length + 50 for length in queries]
        elif what == "cross, V-norm":
            keys = [40, 7, 160, 1]
        shapes = [(sum(queries), many), (sum(keys), few), (sum(keys), few)]
        given = [torch.randn(*shape, width, dtype=torch.float64).to(dtype) for shape in shapes]
        outer = torch.randn(sum(queries), many, width)
        found = []
        for place, kind, way in ((device, dtype, kernel), ("cpu", torch.float64, varlen_attn)):
            inputs = [x.to(place, kind).requires_grad_() for x in given]
            of = spans(queries, place), spans(keys, place)
            with mock.patch.object(packing, "varlen_attn", way):
                if what == "cross, V-norm":
                    tokens = [torch.arange(sum(some), device=place) for some in (keys, queries)]
                    weight = torch.ones(sum(queries), device=place)
                    reads = Reads(tokens[0], of[1], tokens[1], weight, of[0])
                    output = read_packed(*inputs, reads, width**-0.5, value_norm=True)
                else:
                    output = flash(*inputs, *of, width**-0.5, causal=True)
                output.backward(outer.to(place, output.dtype))
            found.append([output, *(x.grad for x in inputs)])
        names = ("output", "of queries", "of keys", "of values")
        row = {"attention": f"{what}, {many} heads of {width}, {few} keys"}
        yield row | compared(names, *found, *[BOUNDS[torch.bfloat16]] * 4)


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
            bounds = [BOUNDS[dtype], 10 * BOUNDS[dtype], 5 * BOUNDS[dtype]]
            if temperature == 1e-4:  # one-hot: the cosines' gradients are rounding errors only
                bounds[1] = float("inf")
            names = ("loss", "of cosines", "of weights")
            yield {
                "precision": str(dtype).removeprefix("torch."),
                "temperature": f"{temperature:g}",
                "reading": reading,
                "attention": "packed" if packed else "padded",
            } | compared(names, found[dtype], found[torch.float64], *bounds)


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
            row = {"precision": str(dtype).removeprefix("torch.")}
            names = ("output", "of adapters")
            yield row | compared(names, found, expected, *[3 * BOUNDS[dtype]] * 2)
        else:
            expected = [one.detach() for one in found]
