"""The language model's loss, computed without holding the logits of a whole batch.

torch's `linear_cross_entropy` (2.13) is no substitute: it sums the loss of bfloat16 states in
bfloat16 (0.1 to 1% off), ignores autocast, and does not support a sharded head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from revela.inbatch.sharding import gather, gathered

_LOGITS_AT_A_TIME = 2**25
_LOGITS_AT_A_TIME_ON_A_GPU = 2**27  # large products, in multiples of the kernels' tiles
_TILE = 256


def next_token_loss(hidden_TD: Tensor, head: Any, targets_T: Tensor) -> Tensor:
    """Return the mean cross-entropy of T tokens, in float32 (float64 for float64).

    The head computes the logits (…, V) of some states at a time. They are used for the loss and at
    once for its gradients, then freed: neither kept for the backward pass nor recomputed in it.
    """
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    size, learning = _tokens_at_a_time(head, hidden_TD.device), torch.is_grad_enabled()
    with gathered(head) as logits:
        total = _SummedLoss.apply(hidden_TD, logits, targets_T, size, learning, *weights)
    return total / max(1, len(targets_T))


@torch.no_grad()
def token_losses(hidden_TD: Tensor, head: Any, targets_T: Tensor) -> Tensor:
    """Return each token's cross-entropy (T,) in float32, with the logits of some at a time."""
    size = _tokens_at_a_time(head, hidden_TD.device)
    with gathered(head) as logits:
        losses = [
            F.cross_entropy(logits(hidden).float(), targets, reduction="none")
            for hidden, targets in zip(hidden_TD.split(size), targets_T.split(size), strict=True)
        ]
    return torch.cat(losses)


def _tokens_at_a_time(head: Any, device: torch.device) -> int:
    if device.type == "cpu":
        return max(1, _LOGITS_AT_A_TIME // int(head.out_features))
    tokens = _LOGITS_AT_A_TIME_ON_A_GPU // int(head.out_features)
    return max(_TILE, tokens - tokens % _TILE)


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        logits: Callable[[Tensor], Tensor],
        targets_T: Tensor,
        size: int,
        learning: bool,
        *weights: Tensor,
    ) -> Tensor:
        dtype = torch.promote_types(hidden_TD.dtype, torch.float32)
        total = hidden_TD.new_zeros((), dtype=dtype)
        hidden_gradient = torch.zeros_like(hidden_TD) if learning else None
        gradients: list[Tensor] = []
        for start in range(0, len(targets_T), size):
            some = slice(start, start + size)
            with torch.set_grad_enabled(learning):
                hidden = hidden_TD[some].detach().requires_grad_(learning)
                # Half precision is too coarse for a sum over the vocabulary.
                loss = F.cross_entropy(logits(hidden).to(dtype), targets_T[some], reduction="sum")
            if hidden_gradient is not None:
                hidden_gradient[some], *others = torch.autograd.grad(loss, (hidden, *weights))
                for gradient, more in zip(gradients, others, strict=bool(gradients)):
                    gradient += more
                gradients = gradients or others
            total += loss.detach()
        ctx.save_for_backward(hidden_gradient, *gradients)
        ctx.weights = weights
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        hidden, *weights = (gradient * outer[0] for gradient in ctx.saved_tensors)
        gather(ctx.weights)
        return hidden, None, None, None, None, *(weights or [None] * len(ctx.weights))
