"""LoRA: puts low-rank adapters on a model, new ones or those of an earlier training."""

from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from revela.common.errors import RevelaError, check_name
from revela.common.hub import explained
from revela.config.training import PROJECTIONS, Lora
from revela.retriever.load import load_adapter
from revela.retriever.source import Source


def add_lora(model: Any, lora: Lora, seed: int, revision: str | None = None) -> Any:
    """Freeze a backbone and put trainable low-rank adapters (in float32) on it.

    Raises:
        RevelaError: a target matches no module, or none that supports an adapter, or the rank is
            larger than the widest target.
    """
    from peft import LoraConfig, get_peft_model

    widths: dict[str, int] = {}
    for name, part in model.named_modules():
        if any(True for _ in part.parameters(recurse=False)):
            last = name.rpartition(".")[2]
            sides = (getattr(part, side, 0) for side in ("in_features", "out_features"))
            widths[last] = max(widths.get(last, 0), *sides)
    targets = lora_targets(model, lora)
    for target in targets:
        check_name("lora.targets", "module", target, widths)
    if lora.rank > (width := max(widths[target] for target in targets)) > 0:
        raise RevelaError(f"lora.rank: {lora.rank} is larger than the widest target, {width}")
    torch.manual_seed(seed)
    settings = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    try:
        config = LoraConfig(**settings, target_modules=targets, revision=revision)
        return get_peft_model(model, config)
    except ValueError as error:
        raise RevelaError(f"lora.targets: {error}") from error


def lora_targets(model: Any, lora: Lora) -> list[str]:
    """Return the names of a model's layers that adapters are put on."""
    if isinstance(lora.targets, list):
        return lora.targets
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear | Conv1D) and part is not head
    }
    # A router or a gate beside the paper's projections stays as it is.
    return PROJECTIONS if linear.issuperset(PROJECTIONS) else sorted(linear)


def continue_lora(model: Any, source: Source, lora: Lora) -> Any:
    """Put the adapter of a source on its backbone, to be trained further.

    Raises:
        RevelaError: as `load_adapter`, or it was trained with other settings.
    """
    from peft import LoraConfig

    with explained("adapter", source.name):
        saved = LoraConfig.from_pretrained(source.name, revision=source.revision)
    settings = (saved.r, saved.lora_alpha, saved.lora_dropout, set(saved.target_modules))
    if settings != (lora.rank, lora.alpha, lora.dropout, set(lora_targets(model, lora))):
        has = f"rank {saved.r}, alpha {saved.lora_alpha}, dropout {saved.lora_dropout}"
        targets = ", ".join(sorted(saved.target_modules))
        advice = "set lora to the same values to train it further"
        raise RevelaError(f"adapter {source.name!r} has {has} and targets {targets}; {advice}")
    return load_adapter(model, source, trained=True)
