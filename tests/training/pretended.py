"""A forward and backward pass of each objective on a simulated device.

Every tensor is fake: it has a shape, a type and a device but no values, and an operator on tensors
of two devices is an error as on a GPU. Values read on the host are those that the same step has
read on the CPU. Prints for each objective the values that the host reads in a step, and the number
of operators per layer, as one line of JSON.
"""

import collections
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from bench.common import encoder_around
from revela.config.training import ContrieverObjective, Lora, ReplugObjective, RevelaObjective
from revela.retriever.encode import pad
from revela.retriever.lora import add_lora
from revela.training.fused import fuse
from revela.training.objectives.contriever import Contriever
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela
from tests.conftest import tiny_llama
from tests.inbatch.reference import varlen_attn

READS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__")
NO_KERNELS = ("prim.device", "aten.detach", "aten._unsafe_view", "aten.empty", "aten.new_empty")
CHUNKS = [[5, 9, 3, 7], [4, 4, 8], [6, 2, 11, 30, 7], [12, 3]]


class Module(backend_registration._DummyBackendModule):
    """The interface that torch expects of a device module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(0)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


@dataclass
class Read:
    """A value that was copied to the host."""

    values: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.values


class Count(TorchDispatchMode):
    """Count the operators that launch a kernel, not views."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if not (function.is_view or any(part in name for part in NO_KERNELS)):
            self.operators[name] += 1
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def host_reads(known: list[Any] | None = None) -> Iterator[list[Any]]:
    """Yield a list that records values read on the host; given one, replay its values instead."""
    found: list[Any] = []
    kind = torch.Tensor if known is None else FakeTensor
    with contextlib.ExitStack() as stack:
        for name in READS:
            original = getattr(kind, name)

            def read(self, *args, name=name, original=original, **kwargs):
                if known is None:
                    value = original(self, *args, **kwargs)
                    found.append((name, Read(value.numpy()) if name == "cpu" else value))
                    return value
                expected, value = known[len(found)]
                assert name == expected
                found.append((name, value))
                return value

            stack.enter_context(mock.patch.object(kind, name, read))
        yield found


def objective(name: str, layers: int, checkpointing: bool) -> Any:
    """Return an objective on tiny models in bfloat16, with LoRA."""

    def load(causal: bool) -> Any:
        model = tiny_llama(num_hidden_layers=layers, hidden_size=32)  # heads of eight columns
        model = (model if causal else model.model).bfloat16()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        return model

    def adapted(causal: bool) -> Any:
        model = add_lora(load(causal), Lora(rank=4, dropout=0.1), 0)
        for weight in model.parameters():
            weight.data = weight.data.bfloat16()
        fuse(model)
        return model

    retriever = encoder_around(adapted(False))
    if name == "contriever":
        settings = ContrieverObjective(name="contriever", encode_batch_size=3)
        return Contriever(retriever, settings)
    if name == "replug":
        return Replug(retriever, load(True), ReplugObjective(name="replug"))
    return Revela(retriever, adapted(True), RevelaObjective(name="revela", temperature=0.1))


def on_device(module: Any, device: str) -> Any:
    """Return a module with weights on a device, without values."""
    moved: dict[int, Any] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    other = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    if isinstance(tensor, torch.nn.Parameter):
                        other = torch.nn.Parameter(other, tensor.requires_grad)
                    tensors[name] = moved.setdefault(id(tensor), other)
    return module


def inputs_of(name: str) -> dict[str, Any]:
    """Return the inputs from a collator; for Revela two batches."""
    ids, mask = pad(CHUNKS, 0)
    lengths = [len(chunk) for chunk in CHUNKS]
    if name == "contriever":
        queries = {"query_ids": ids[:2], "query_mask": mask[:2], "query_lengths": lengths[:2]}
        return queries | {"passage_ids": ids, "passage_mask": mask, "passage_lengths": lengths}
    return {
        "retriever_ids": torch.cat([ids, ids]),
        "retriever_mask": torch.cat([mask, mask]),
        "retriever_lengths": lengths * 2,
        "language_model_ids": ids,
        "language_model_mask": mask,
        **({"sizes": [2, 2]} if name == "revela" else {}),
    }


def step(name: str, layers: int, checkpointing: bool, known: Any = None) -> Any:
    """Run a step on the CPU or, given the values read on the host, on the simulated device.

    Returns:
        The values read on the host, and the operators.
    """
    module, inputs = objective(name, layers, checkpointing).train(), inputs_of(name)
    with contextlib.ExitStack() as stack:
        if known is None:
            stack.enter_context(mock.patch("revela.inbatch.packing.varlen_attn", varlen_attn))
        else:
            stack.enter_context(FakeTensorMode())
            module = on_device(module, "pretend")
            inputs = {
                key: torch.empty(given.shape, dtype=given.dtype, device="pretend")
                if isinstance(given, torch.Tensor)
                else given
                for key, given in inputs.items()
            }
        reads, count = stack.enter_context(host_reads(known)), stack.enter_context(Count())
        module(**inputs)["loss"].backward()
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    assert all(weight.grad.device == weight.device for weight in trained)
    return reads, count.operators


def main() -> None:
    """Run steps of each objective and print their counts."""
    backend_registration._setup_privateuseone_for_python_backend("pretend", backend_module=Module())
    for module in ("inbatch.in_batch", "retriever.encode", "training.objectives.replug"):
        mock.patch(f"revela.{module}.flash_takes", return_value=True).start()
    found = {}
    for name in ("revela", "replug", "contriever"):
        for checkpointing in (False, True):
            operators = {}
            for layers in (2, 3):
                reads, _ = step(name, layers, checkpointing)
                _, operators[layers] = step(name, layers, checkpointing, reads)
            each = operators[3] - operators[2]
            key = f"{name}{' checkpointing' if checkpointing else ''}"
            found[key] = {
                "reads": [name for name, _ in reads],
                "operators": operators[2].total(),
                "operators_a_layer": each.total(),
            }
            if "-v" in sys.argv:
                print(key, *each.most_common(), sep="\n  ", file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
