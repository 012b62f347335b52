"""DeepSpeed ZeRO: optimizer states (stage 2), and weights too (3), sharded over the processes.

Optimizer and schedule are those of every training, torch's AdamW and `warmup_decay`, handed to
DeepSpeed's engine: its own optimizer decays norms and biases too. So in float32 a training is the
same to rounding with and without ZeRO. In bfloat16 DeepSpeed computes in weights of that precision,
adapters included, and its optimizer keeps float32 copies; DDP keeps what is trained in float32 and
computes under autocast.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from revela.common.errors import RevelaError

_NOT_SHARDED = 4096  # numbers at most: norms and biases, not worth a message each


def deepspeed_config(stage: int) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration for ZeRO stage 2 or 3; None at stage 0, which is DDP.

    The Trainer fills in what is "auto" from its arguments.

    Raises:
        RevelaError: another stage, no launcher, or DeepSpeed is not installed.
    """
    if stage not in (0, 2, 3):
        raise RevelaError(f"--zero {stage}: allowed are 0 (DDP), 2 and 3")
    if not stage:
        return None
    if "RANK" not in os.environ:
        raise RevelaError(
            f"--zero {stage} needs a launcher, also for one process: "
            "python -m revela.training.launch --standalone --nproc_per_node GPUS -m revela train …"
        )
    _prepare_deepspeed()
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True, "overlap_comm": True}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = _NOT_SHARDED
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
    }


def _prepare_deepspeed() -> None:
    try:
        import deepspeed
    except ImportError as error:
        raise RevelaError(f"--zero needs DeepSpeed (pip install '.[cluster]'): {error}") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # It calls torch by names that torch is about to change, at every step.
    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
    if not torch.cuda.is_available():
        # Without its operator for shared memory gloo is used: nothing has to be compiled, and
        # processes that wait for one that was killed get an error.
        vars(deepspeed.ops)["__compatible_ops__"] = {}


def _is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "ds_id")  # by ZeRO-3


@contextlib.contextmanager
def unsharded() -> Iterator[None]:
    """Have models that are loaded while the block runs whole in this process, also at stage 3."""
    if "deepspeed" not in sys.modules:
        yield
        return
    from transformers.integrations import deepspeed

    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        vars(deepspeed)["_hf_deepspeed_config_weak_ref"] = kept


@contextlib.contextmanager
def gathered(module: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield the function of a module whose weights are gathered while the block runs.

    Called as a module, one that is sharded would gather its weights at each call, and wait for
    ever where processes call it a different number of times.
    """
    weights = list(module.parameters())
    if not any(map(_is_sharded, weights)):
        yield module
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(weights):
        yield module.forward


def gather(weights: Sequence[Any]) -> None:
    """Gather sharded weights until the next step: autograd compares a gradient's shape."""
    if sharded := list(filter(_is_sharded, weights)):
        sharded[0].all_gather(param_list=sharded)


def gathered_state(model: Any) -> dict[str, Tensor]:
    """Return a model's state dict, with trained weights that are sharded gathered on the CPU.

    All processes must call it. Frozen weights stay sharded.
    """
    state = model.state_dict(keep_vars=True)
    copies: dict[int, Tensor] = {}
    for weight in state.values():
        if _is_sharded(weight) and weight.requires_grad and id(weight) not in copies:
            import deepspeed

            with deepspeed.zero.GatheredParameters([weight]):  # one at a time
                copies[id(weight)] = weight.detach().to("cpu", copy=True)
    # Tied weights stay one tensor.
    return {name: copies.get(id(weight), weight.detach()) for name, weight in state.items()}
