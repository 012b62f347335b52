"""Weights that DeepSpeed's ZeRO-3 shards over processes, gathered where they are needed whole."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor


def is_sharded(weight: Tensor) -> bool:
    """Return whether a process holds only a part of a weight."""
    return hasattr(weight, "ds_id")  # by ZeRO-3


@contextlib.contextmanager
def gathered(module: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Gather a module's weights for the block and yield its forward function.

    A sharded module that is called itself gathers its weights at each call, and hangs if processes
    call it a different number of times.
    """
    weights = list(module.parameters())
    if not any(map(is_sharded, weights)):
        yield module
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(weights):
        yield module.forward


def gather(weights: Sequence[Any]) -> None:
    """Gather sharded weights until the next step: autograd compares a gradient's shape."""
    if sharded := list(filter(is_sharded, weights)):
        sharded[0].all_gather(param_list=sharded)
