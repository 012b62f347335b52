"""Two choices for a CPU: attention from its parts, and memory that is kept when it is freed.

PyTorch's fused attention kernel against its parts, with and without gradients, at the shapes of a
batch of 16 chunks of SmolLM2-135M's width: causal self-attention of 32 rows, and 16 readers of 10
documents. And steps of a small model with and without `keep_freed_memory`, in processes of their
own that take turns, since the setting cannot be taken back.

    python -m bench.attention.kernels
"""

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from bench.common import medians, report
from revela.attention.packing import attend, causal_attention
from revela.training.trainlog import keep_freed_memory

COMMAND = "python -m bench.attention.kernels"


def states(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return random states that want gradients."""
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def run(output: Callable[[], Tensor], learning: bool) -> Callable[[], None]:
    """Return a forward and backward pass, or one without gradients."""

    def both() -> None:
        with torch.set_grad_enabled(learning):
            result = output().float().sum()
        if learning:
            result.backward()

    return both


def attention() -> None:
    """Compare in both precisions."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        query = states(32, 9, 160, 64, dtype=dtype)
        key, value = (states(32, 3, 160, 64, dtype=dtype) for _ in range(2))
        readers = states(10, 3, 3 * 240, 64, dtype=dtype)
        documents, read = (states(10, 3, 160, 64, dtype=dtype) for _ in range(2))
        mask = torch.ones(10, 1, 1, 160, dtype=torch.bool)
        mask[5:, ..., 120:] = False
        pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
            "causal": (
                lambda q=query, k=key, v=value: causal_attention(q, k, v),
                lambda q=query, k=key, v=value: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=1.0, enable_gqa=True
                ),
            ),
            "cross-document": (
                lambda q=readers, k=documents, v=read, m=mask: attend(q, k, v, m),
                lambda q=readers, k=documents, v=read, m=mask: F.scaled_dot_product_attention(
                    q, k, v, attn_mask=m, scale=1.0
                ),
            ),
        }
        for (name, (parts, fused)), learning in itertools.product(pairs.items(), (True, False)):
            if not learning and dtype == torch.float32:
                continue  # there the project takes the fused kernel itself
            found = medians({"parts": run(parts, learning), "fused": run(fused, learning)})
            precision = str(dtype).removeprefix("torch.")
            rows.append(
                {
                    "Attention": f"{name}, {precision}{'' if learning else ', no gradients'}",
                    "parts, ms": f"{1000 * found['parts']:.0f}",
                    "fused, ms": f"{1000 * found['fused']:.0f}",
                    "fused / parts": f"{found['fused'] / found['parts']:.2f}",
                }
            )
    report("Attention on a CPU", COMMAND, rows)


def small_step() -> float:
    """Return the median seconds of a small model's training step in this process."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
    config = transformers.LlamaConfig(vocab_size=4096, num_attention_heads=4, **shape)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 4096, (16, 128))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return medians({"step": step}, repeats=10)["step"]


def freed_memory() -> None:
    """Compare steps with and without keeping freed memory."""
    seconds: dict[str, list[float]] = {"--plain": [], "--keep": []}
    for _ in range(3):
        for option, times in seconds.items():
            command = [sys.executable, "-m", "bench.attention.kernels", option]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times.append(float(done.stdout))
    plain, keep = (statistics.median(times) for times in seconds.values())
    row = {"Freed memory": "a step", "returned, ms": f"{1000 * plain:.0f}"}
    row |= {"kept, ms": f"{1000 * keep:.0f}", "returned / kept": f"{plain / keep:.2f}"}
    report("Freed memory on a CPU", COMMAND, [row])


if __name__ == "__main__":
    if "--plain" not in sys.argv:
        keep_freed_memory()
    if {"--plain", "--keep"} & set(sys.argv):
        print(small_step())
    else:
        attention()
        freed_memory()
