"""DeepSpeed ZeRO: optimizer states (stage 2), and weights too (3), sharded over the processes.

Optimizer and schedule are the same as without ZeRO, torch's AdamW and `warmup_decay`, passed to
DeepSpeed's engine, whose own optimizer would decay norms and biases too. In float32 a training is
therefore the same up to rounding with and without ZeRO. In bfloat16 DeepSpeed keeps bfloat16
weights, adapters included, and float32 copies in its optimizer; DDP keeps trained weights in
float32 and computes under autocast.
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

_NOT_SHARDED = 4096  # maximum size: norms and biases, not worth a message each


def deepspeed_config(stage: int) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration for ZeRO stage 2 or 3; None at stage 0, which is DDP.

    The Trainer replaces "auto" with values from its arguments.

    Raises:
        RevelaError: the stage is unknown, there is no launcher, or DeepSpeed is not installed.
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
    # It calls deprecated functions of torch at every step.
    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
    if not torch.cuda.is_available():
        # Without its shared-memory operator it uses gloo: nothing has to be compiled, and processes
        # that wait for a killed one get an error.
        vars(deepspeed.ops)["__compatible_ops__"] = {}


def _is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "ds_id")  # by ZeRO-3


@contextlib.contextmanager
def unsharded() -> Iterator[None]:
    """Load models unsharded within the block, even at stage 3."""
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
    """Gather a module's weights for the block and yield its forward function.

    A sharded module that is called itself gathers its weights at each call, and hangs if processes
    call it a different number of times.
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
    """Return a model's state dict, with sharded trained weights gathered on the CPU.

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
