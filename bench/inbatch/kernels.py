"""PyTorch's fused attention kernel on a CPU compared with separate operations.

With and without gradients, at the shapes of a batch of 16 chunks of SmolLM2-135M's width: causal
self-attention of 32 rows, and 16 readers of 10 documents.

    python -m bench.inbatch.kernels
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.common import medians, report
from revela.common.memory import keep_freed_memory
from revela.inbatch.packing import attend, causal_attention

COMMAND = "python -m bench.inbatch.kernels"


def states(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return random states that require gradients."""
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
                continue  # here the project itself uses the fused kernel
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


if __name__ == "__main__":
    keep_freed_memory()
    attention()
