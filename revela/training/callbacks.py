"""Saves models and similarities, at the end of a training and at given steps."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import send_to_device
from safetensors.torch import load_file
from torch import Tensor

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.inbatch.in_batch import plain_loss
from revela.training import zero
from revela.training.objectives.revela import similarity_measures

ADAPTER = "adapter_model.safetensors"


def save_model(
    model: Any,
    path: Path,
    writes: bool,
    write: Callable[[Path, Any], None],
    start: Mapping[str, Tensor] | None = None,
    share: float = 0.0,
) -> None:
    """Write a folder by `write`, which gets a path and the model's gathered state.

    Its weights are `averaged` with a share of those of the `start`, if given. All processes must
    call it, since weights may be sharded; only one `writes`.

    Raises:
        RevelaError: the adapter in the file differs from the one in memory.
    """
    state = zero.gathered_state(model)
    if not writes:
        return
    means = averaged(state, start or {}, share)
    of_memory = {_memory(state[name]): mean for name, mean in means.items()}
    state = {name: of_memory.get(_memory(weight), weight) for name, weight in state.items()}
    with outputs.atomic_output(path) as folder:
        write(folder, state)
        if (file := folder / ADAPTER).exists():
            check_adapter(file, {name: state[name] for name in _trained(model)})


def start_weights(model: Any) -> dict[str, Tensor]:
    """Return copies on the CPU of the weights that will be trained; all processes must call it."""
    state = zero.gathered_state(model)
    return {name: state[name].to("cpu", copy=True) for name in _trained(model)}


def averaged(
    trained: Mapping[str, Tensor], start: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Return (1 - share) · trained + share · start of the weights of a start, in their dtype.

    A new adapter's sum is a product of two weights, of which one starts at zero: that one alone is
    averaged, which scales the product by 1 - share.
    """
    return {
        name: ((1 - share) * trained[name].float().cpu() + share * first.float()).to(first.dtype)
        for name, first in start.items()
        if ".lora_" not in name or not first.any()
    }


def _memory(weight: Tensor) -> tuple[int, torch.Size]:
    """Return what tied weights, of which the trained ones name one, have in common."""
    return weight.data_ptr(), weight.shape


def _trained(model: Any) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def check_adapter(file: Path, expected: dict[str, Tensor]) -> None:
    """Check that a saved adapter has the trained weights; sharded ones may be saved empty.

    Raises:
        RevelaError: a weight in the file is missing, differs, or is not finite.
    """
    weights = load_file(file)
    for name, weight in expected.items():
        saved = weights.get(name.removeprefix("0.model.").replace(".default", ""))
        if saved is None or not torch.equal(saved, weight.cpu()):  # NaN equals nothing
            raise RevelaError(
                f"{file}: {name} is missing, not finite, or differs from the trained weights"
            )


class AtSteps(transformers.TrainerCallback):
    """Calls functions after given steps; step 0 is before the first one."""

    def __init__(self, *calls: tuple[list[int], Callable[[int], None]]) -> None:
        self.calls = calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Call the functions of step 0."""
        if state.global_step == 0:
            self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Call the functions of this step."""
        for steps, call in self.calls:
            if state.global_step in steps:
                call(state.global_step)


@torch.no_grad()
def record_similarities(trainer: Any, step: int) -> None:
    """Log the in-batch similarities and losses of the first batch (figure 6)."""
    module, row = trainer.model, trainer.train_dataset[0]
    tensors = trainer.data_collator.tensors([row])
    inputs = send_to_device(tensors, trainer.args.device)
    training, settings = module.training, module.settings
    module.eval()
    # All processes have the same batch, which must not be gathered.
    module.settings = settings.model_copy(update={"gather_across_devices": False})
    with trainer.accelerator.autocast():
        similarity = module.similarity(inputs["retriever_ids"], inputs["retriever_mask"])
        result = module(**inputs)
        ids, mask = inputs["language_model_ids"], inputs["language_model_mask"]
        plain = plain_loss(module.language_model, ids, mask)
    module.train(training)
    module.settings = settings
    snapshot = {
        "texts": row["texts"],
        "documents": row.get("documents"),
        "similarity": similarity.float().tolist(),
        "loss": float(result["loss"]),
        "plain_loss": float(plain),
        **{name: float(value) for name, value in similarity_measures(similarity).items()},
    }
    trainer.write_line({"step": step, "snapshot": snapshot})
