"""Adapters and RMS norms in fewer passes over a GPU's memory, which bounds their speed."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor


def without_casts(model: Any) -> None:
    """Stop adapters from casting their input to float32, which autocast would cast back."""
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False


def fuse(model: Any) -> None:
    """Compute each adapter of a model with its sum, and each RMS norm, in one kernel.

    Norms of another formula stay. Results differ by rounding. Weights must not be sharded: ZeRO-3
    gathers them only for modules that are called.
    """
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear):
            module.lora_variant.update(dict.fromkeys(module.lora_A, _Lora))
        elif hasattr(module, "variance_epsilon") and _is_rms_norm(module.__class__):
            module.forward = functools.partial(_rms_norm, module)


@functools.cache
def _is_rms_norm(kind: type) -> bool:
    """Return whether a class computes x / √(mean x² + ε) · w and nothing else, by trying it."""
    try:
        with torch.device("cpu"):  # whatever the model is being built on
            norm: Any = kind(8)
            x = torch.linspace(1, 2, 8)  # whose mean is not zero
        names = [*dict(norm.named_parameters()), *inspect.signature(norm.forward).parameters]
        return len(names) == 2 and torch.allclose(norm(x), _rms_norm(norm, x))
    except (AttributeError, TypeError):  # it takes other arguments
        return False


class _Lora:
    """A variant of peft's forward pass."""

    @staticmethod
    def forward(layer: Any, active_adapter: str, x: Tensor, result: Tensor, **_: Any) -> Tensor:
        low = layer.lora_A[active_adapter](layer.lora_dropout[active_adapter](x))
        # Autocast skips operators in place.
        low, weight = (t.to(result.dtype) for t in (low, layer.lora_B[active_adapter].weight))
        return _AddProduct.apply(result, low, weight, layer.scaling[active_adapter])


class _AddProduct(torch.autograd.Function):
    """Adds scale · low (…, R) · weightᵀ (R, N) to a result (…, N) in place."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, low: Tensor, weight: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(low, weight)
        ctx.scale = scale
        ctx.mark_dirty(result)
        rows = result.view(-1, result.shape[-1])
        rows.addmm_(low.reshape(-1, low.shape[-1]), weight.T, alpha=scale)
        return result

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        low, weight = ctx.saved_tensors
        rows = outer.reshape(-1, outer.shape[-1])
        of_low = torch.mm(rows, weight).mul_(ctx.scale).view(low.shape)
        of_weight = torch.mm(rows.T, low.reshape(-1, low.shape[-1])).mul_(ctx.scale)
        return outer, of_low, of_weight, None


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):  # it would return float32
        weight = norm.weight.to(x.dtype)
        return torch.nn.functional.rms_norm(x, weight.shape, weight, norm.variance_epsilon)
