"""Training steps at the paper's shapes, relative to the device's rate of matrix products.

Retriever and language model of one shape with random weights, LoRA of rank 256 on both, bfloat16,
chunks whose lengths vary from step to step, as in real data. A batch is a forward and backward
pass; AdamW counts once in 32 batches, as in the paper.
"""

import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import profile

from bench.common import encoder_around, medians, ragged_batch, random_model
from bench.inbatch.dense import plain_pass
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.retriever.lora import add_lora
from revela.training.fused import fuse, without_casts
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela

CHUNKS = 320_000 * 16  # of the paper's training
BATCHES_A_STEP = 32
REPLUG_CHUNKS = 4500 * BATCHES_A_STEP * 16
STEPS = 12
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
PARTS = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]
REVELA = SimpleNamespace(
    temperature=1e-4,
    reading="sum",
    value_norm=True,
    min_similarity=1e-12,
    similarity_precision="float32",
    language_model_loss=False,
    freeze_language_model=False,
    similarity="retriever",
    gather_across_devices=False,
)
REPLUG = SimpleNamespace(
    retriever_temperature=1e-3, language_model_temperature=1e-3, include_self=False
)


def matmul_rate(device: torch.device, size: int) -> float:
    """Return FLOP/s of matrix products in bfloat16."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = medians({"matmul": lambda: [left @ right for _ in range(10)]})["matmul"] / 10
    return 2 * size**3 / seconds


def rate_of(device: torch.device, tiny: bool) -> float:
    """Return the rate that shares refer to."""
    return matmul_rate(device, 256 if tiny else 8192)


def matmul(device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Yield the rates of products of the sizes in a step."""
    for size in [64, 128] if tiny else [1024, 2048, 4096, 8192]:
        yield {"size": str(size), "TFLOP/s": f"{matmul_rate(device, size) / 1e12:.1f}"}


def layer_weights(model: nn.Module) -> list[torch.Tensor]:
    """Return the weights of the layers."""
    return [weight for name, weight in model.named_parameters() if "embed" not in name]


def layer_flops(model: nn.Module, tokens: float) -> float:
    """Return FLOPs of the layers' products: two per token and frozen weight, three if trained."""
    return tokens * sum((4.0 + 2 * w.requires_grad) * w.numel() for w in layer_weights(model))


def model_of(shape: str, device: torch.device, tiny: bool) -> Any:
    """Return a causal language model in bfloat16, created on the device."""
    with torch.device(device):
        return random_model(shape, **(TINY if tiny else {})).to(torch.bfloat16)


def adapted(model: Any, tiny: bool, checkpointing: bool, fused: bool = True) -> Any:
    """Add LoRA to a model as in training, or as peft and transformers compute it."""
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    lora = SimpleNamespace(rank=8 if tiny else 256, alpha=64, dropout=0.1, targets=PARTS)
    model = add_lora(model, lora, seed=0)
    without_casts(model)
    if fused:
        fuse(model)
    return model


def lengths_of(count: int, tiny: bool) -> list[int]:
    """Return lengths in tokens of chunks of at most 120 words, most of them nearly full."""
    full = random.choices((True, False), (85, 15), k=count)
    lengths = [random.randint(120, 156) if one else random.randint(20, 120) for one in full]
    return [length // 8 for length in lengths] if tiny else lengths


def batches_of(
    size: int, together: int, vocabulary: int, device: torch.device, tiny: bool
) -> list[dict[str, Any]]:
    """Return batches as from a collator, a different one for each step."""
    random.seed(size)
    found = []
    for _ in range(2 if tiny else STEPS):
        lengths = lengths_of(size * together, tiny)
        of_retriever = [length + 4 for length in lengths] * 2
        ids, mask = ragged_batch(of_retriever, vocabulary)
        bare, bare_mask = ragged_batch(lengths, vocabulary)
        found.append(
            {
                "retriever_ids": ids.to(device),
                "retriever_mask": mask.to(device),
                "language_model_ids": bare.to(device),
                "language_model_mask": bare_mask.to(device),
                "retriever_lengths": of_retriever,
                "sizes": [size] * together if together > 1 else None,
            }
        )
    return found


def timed(step: Callable[[Any], Any], batches: list[Any], device: torch.device) -> float:
    """Return the seconds of a step; the host may run ahead, as in training."""
    for batch in batches[:2]:
        step(batch)
    synchronize(device)
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    synchronize(device)
    return (time.perf_counter() - start) / len(batches)


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def waits_of(step: Callable[[Any], Any], batch: Any, device: torch.device) -> str:
    """Return the number of times the host waits for the device in a step."""
    if device.type != "cuda":
        return ""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return str(sum("synchroniz" in str(one.message) for one in caught))


def tokens_in(batch: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of real tokens of the retriever and of the language model."""
    return sum(batch["retriever_lengths"]), int(batch["language_model_mask"].sum())


def learning(module: Callable[..., Any], device: torch.device) -> Callable[[dict[str, Any]], None]:
    """Return a forward and backward pass under autocast."""

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = module(**batch)["loss"]
        loss.backward()

    return step


def optimizer_seconds(module: nn.Module, device: torch.device) -> float:
    """Return the seconds of an optimizer's step with existing gradients."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    for weight in weights:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    return timed(lambda _: optimizer.step(), [None] * 4, device)


def peak(device: torch.device, kind: str = "allocated") -> str:
    """Return the peak memory of a GPU, allocated or reserved."""
    if device.type != "cuda":
        return ""
    return f"{torch.cuda.memory_stats()[f'{kind}_bytes.all.peak'] / 1024**3:.1f}"


def revela(
    shapes: str, device: torch.device, tiny: bool, plans: list[tuple[int, int, str]]
) -> Iterator[dict[str, str]]:
    """Measure steps of a retriever and a language model.

    Each plan is B, the batches of a forward pass, and "" or what differs: "checkpointing" or
    "unfused". What does not fit is tried once more with checkpointing.
    """
    rate = rate_of(device, tiny)
    for size, together, how in plans:
        options = (shapes, device, tiny, size, together)
        row = _if_it_fits(*options, how, rate)
        if row is None and not how:
            row = _if_it_fits(*options, "checkpointing", rate)
        yield row or {"B": str(size), "batches a forward": str(together), "GB": "too many"}


def _if_it_fits(*given: Any) -> dict[str, str] | None:
    """Return a row, or None if the device has too little memory; then nothing of it is kept."""
    try:
        return _revela(*given)
    except torch.OutOfMemoryError:
        row = None  # the exception holds the tensors until this block ends
    gc.collect()
    torch.cuda.empty_cache()
    return row


def models_of(
    shapes: str, device: torch.device, tiny: bool, how: str = ""
) -> tuple[Any, Any, Revela]:
    """Return a retriever's transformer, a causal language model, and the objective on both."""
    of_retriever, _, of_language_model = shapes.partition(" + ")
    options = (tiny, how == "checkpointing", how != "unfused")
    retriever = adapted(model_of(of_retriever, device, tiny).model, *options)
    causal = model_of(of_language_model or of_retriever, device, tiny)
    module = Revela(encoder_around(retriever), adapted(causal, *options), REVELA).train()
    return retriever, causal, module


def _revela(
    shapes: str, device: torch.device, tiny: bool, size: int, together: int, how: str, rate: float
) -> dict[str, str]:
    retriever, causal, module = models_of(shapes, device, tiny, how)
    batches = batches_of(size, together, causal.config.vocab_size, device, tiny)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = learning(module, device)
    seconds = timed(step, batches, device)
    measured = {"GB": peak(device), "GB reserved": peak(device, "reserved")}
    measured["waits"] = waits_of(step, batches[0], device)
    rows: list[int] = []  # tokens of e and h rows processed by the language model
    hook = causal.model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    for batch in batches:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            module(**batch)
    hook.remove()
    tokens = [tokens_in(batch) for batch in batches]
    flops = layer_flops(retriever, sum(one for one, _ in tokens))
    flops += layer_flops(causal.model, sum(rows))
    # For the h rows only; a frozen head has no gradient.
    flops += 4.0 * causal.get_output_embeddings().weight.numel() * sum(other for _, other in tokens)
    chunks = size * together
    whole = seconds + optimizer_seconds(module, device) * together / BATCHES_A_STEP
    return {
        "B": str(size),
        "batches a forward": str(together),
        "how": how,
        "ms a batch": f"{1000 * seconds / together:.1f}",
        "tokens/s": f"{sum(map(sum, tokens)) / len(batches) / seconds:,.0f}",
        "of matmul rate": f"{flops / len(batches) / seconds / rate:.0%}",
        **measured,
        "hours of the paper's run": f"{whole / chunks * CHUNKS / 3600:.1f}",
    }


def beside_plain(shape: str, device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Measure the language model's part and plain passes over the same e and h rows."""
    for size in (2, 4) if tiny else (16, 32, 64):
        causal = model_of(shape, device, tiny)
        adapted(causal, tiny, False).train()
        batches = batches_of(size, 1, causal.config.vocab_size, device, tiny)
        row = {"B": str(size)}
        for name, loss in {
            "ours": _ours,
            "plain, packed": _packed,
            "plain, padded, all logits": plain_pass,
        }.items():
            step = learning(partial(_loss_of_batch, loss, causal), device)
            try:
                row[f"{name}, ms"] = f"{1000 * timed(step, batches, device):.1f}"
            except torch.OutOfMemoryError:
                row[f"{name}, ms"] = "out of memory"
            causal.zero_grad()
        yield row


def _loss_of_batch(loss: Any, causal: Any, **batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": loss(causal, batch["language_model_ids"], batch["language_model_mask"])}


def _ours(causal: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    similarity = in_batch_similarity(torch.rand(len(ids), len(ids), device=ids.device), 1e-4)
    return in_batch_loss(causal, ids, mask, similarity, value_norm=True)


def _packed(causal: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return plain_loss(causal, torch.cat([ids, ids]), torch.cat([mask, mask]))


def replug(shape: str, device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Measure REPLUG's batches, whose cost is quadratic in B."""
    rate = rate_of(device, tiny)
    for size in (2, 4) if tiny else (8, 16, 32):
        retriever = adapted(model_of(shape, device, tiny).model, tiny, False)
        causal = model_of(shape, device, tiny)
        fuse(causal)
        module = Replug(encoder_around(retriever), causal, REPLUG).train()
        batches = batches_of(size, 1, causal.config.vocab_size, device, tiny)
        for batch in batches:
            del batch["sizes"]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step = learning(module, device)
        seconds = timed(step, batches[: STEPS // 2], device)
        tokens = [tokens_in(batch) for batch in batches]
        encoded, read = (sum(counts) / len(batches) for counts in zip(*tokens, strict=True))
        scored = size * read
        layers = sum(weight.numel() for weight in layer_weights(causal.model))
        head = causal.get_output_embeddings().weight.numel()
        flops = layer_flops(retriever, encoded) + 2.0 * (read * layers + scored * (layers + head))
        yield {
            "B": str(size),
            "ms a batch": f"{1000 * seconds:.1f}",
            "scored tokens/s": f"{scored / seconds:,.0f}",
            "of matmul rate": f"{flops / seconds / rate:.0%}",
            "hours of the paper's run": f"{seconds / size * REPLUG_CHUNKS / 3600:.1f}",
            "GB": peak(device),
            "waits": waits_of(step, batches[0], device),
        }


def operators(device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Yield the host's and the device's time of a batch, then the most expensive operators."""
    _, causal, module = models_of("SmolLM2-135M" if tiny else "Llama-3.2-1B", device, tiny)
    vocabulary = causal.config.vocab_size
    size = 2 if tiny else 16
    batches = batches_of(size, 1, vocabulary, device, tiny)
    # The same operators on two chunks of a few tokens: the device waits for the host.
    small = batches_of(2, 1, vocabulary, device, tiny=True)
    step = learning(module, device)
    wall, host = timed(step, batches, device), timed(step, small, device)
    cuda = device.type == "cuda"
    with profile() as profiled:  # of the CPU, and of a GPU if there is one
        step(batches[-1])
        synchronize(device)

    def own(event: Any) -> float:
        return float(event.self_device_time_total if cuda else event.self_cpu_time_total)

    # Of a GPU the kernels: the operators that launch them have the same time once more.
    found = profiled.key_averages()
    kernels = [event for event in found if event.device_type == DeviceType.CUDA]
    events = sorted(kernels if cuda else found, key=own, reverse=True)
    total = sum(map(own, events))
    calls = sum(event.count for event in events if own(event))
    called = sum(event.count for event in found if event.key.startswith("aten::"))
    yield {"operator": "a batch", "calls": "", "ms": f"{1000 * wall:.2f}"}
    yield {"operator": "host alone", "calls": str(called), "ms": f"{1000 * host:.2f}"}
    yield {"operator": "device busy", "calls": str(calls), "ms": f"{total / 1000:.2f}"}
    for event in events[: 5 if tiny else 25]:
        yield {
            "operator": event.key[:60].replace("|", "/"),
            "calls": str(event.count),
            "ms": f"{own(event) / 1000:.2f}",
            "of busy": f"{own(event) / max(total, 1e-9):.0%}",
        }
