"""A forward and backward pass of each objective on a simulated device.

Every tensor is fake: it has a shape, a type and a device but no values, and an operator on tensors
of two devices is an error as on a GPU. Values read on the host are those that the same step has
read on the CPU. Prints for each objective the values that the host reads in a step, and the number
of operators per layer, as JSON.
"""

import contextlib
import json
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

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


class Count(TorchDispatchMode):
    """Count the operators that launch a kernel, not views."""

    operators = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not (function.is_view or any(part in str(function) for part in NO_KERNELS)):
            self.operators += 1
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
                    array = value.numpy() if name == "cpu" else None
                    kept = SimpleNamespace(numpy=lambda: array) if name == "cpu" else value
                    found.append((name, kept))
                    return value
                expected, value = known[len(found)]
                assert name == expected
                found.append((name, value))
                return value

            stack.enter_context(mock.patch.object(kind, name, read))
        yield found


def objective(name: str, layers: int, checkpointing: bool) -> Any:
    """Return an objective on tiny models in bfloat16, with LoRA."""

    def load() -> Any:
        model = tiny_llama(num_hidden_layers=layers, hidden_size=32).bfloat16()  # heads of eight
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        return model

    def adapted(model: Any) -> Any:
        model = add_lora(model, Lora(rank=4, dropout=0.1), 0).bfloat16()
        fuse(model)
        return model

    retriever = encoder_around(adapted(load().model))
    if name == "contriever":
        return Contriever(retriever, ContrieverObjective(name=name, encode_batch_size=3))
    if name == "replug":
        return Replug(retriever, load(), ReplugObjective(name="replug"))
    return Revela(retriever, adapted(load()), RevelaObjective(name="revela", temperature=0.1))


def pretended(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and type on the simulated device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="pretend")


def on_device(module: Any) -> Any:
    """Return a module with weights on the simulated device; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    other = pretended(tensor)
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
    """Return the values that a step reads on the host, and its number of operators.

    It runs on the CPU or, given the values, on the simulated device.
    """
    module, inputs = objective(name, layers, checkpointing).train(), inputs_of(name)
    with contextlib.ExitStack() as stack:
        if known is None:
            stack.enter_context(mock.patch("revela.inbatch.packing.varlen_attn", varlen_attn))
        else:
            stack.enter_context(FakeTensorMode())
            module = on_device(module)
            inputs = tree_map_only(torch.Tensor, pretended, inputs)
        reads, count = stack.enter_context(host_reads(known)), stack.enter_context(Count())
        module(**inputs)["loss"].backward()
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    assert all(weight.grad.device == weight.device for weight in trained)
    return reads, count.operators


if __name__ == "__main__":
    backend_registration._setup_privateuseone_for_python_backend("pretend", backend_module=Module())
    for module in ("inbatch.in_batch", "retriever.encode", "training.objectives.replug"):
        mock.patch(f"revela.{module}.flash_takes", return_value=True).start()
    found = {}
    for name, checkpointing in product(("revela", "replug", "contriever"), (False, True)):
        operators = {}
        for layers in (2, 3):
            reads, _ = step(name, layers, checkpointing)
            _, operators[layers] = step(name, layers, checkpointing, reads)
        found[f"{name}{' checkpointing' if checkpointing else ''}"] = {
            "reads": [name for name, _ in reads],
            "operators_a_layer": operators[3] - operators[2],
        }
    print(json.dumps(found))
