"""DeepSpeed ZeRO: optimizer states (stage 2), and weights too (3), sharded over the processes.

Optimizer and schedule are the same as without ZeRO, torch's AdamW and `warmup_decay`, passed to
DeepSpeed's engine, whose own optimizer would decay norms and biases too. In float32 a training is
therefore the same up to rounding with and without ZeRO. In bfloat16 DeepSpeed keeps bfloat16
weights, adapters included, and float32 copies in its optimizer; DDP keeps trained weights in
float32 and computes under autocast.
"""

import logging
import os
import warnings
from typing import Any

import torch
from torch import Tensor

from revela.common.errors import RevelaError
from revela.inbatch.sharding import is_sharded

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


def gathered_state(model: Any) -> dict[str, Tensor]:
    """Return a model's state dict, with sharded weights gathered on the CPU.

    All processes must call it. Those below an adapter stay sharded: they are not saved.
    """
    state = model.state_dict(keep_vars=True)
    copies: dict[int, Tensor] = {}
    for name, weight in state.items():
        saved = weight.requires_grad or "base_model." not in name
        if is_sharded(weight) and saved and id(weight) not in copies:
            import deepspeed

            with deepspeed.zero.GatheredParameters([weight]):  # one at a time
                copies[id(weight)] = weight.detach().to("cpu", copy=True)
    # Tied weights stay one tensor.
    return {name: copies.get(id(weight), weight.detach()) for name, weight in state.items()}
