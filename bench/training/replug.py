"""Time of REPLUG's B² scores: naive, and by one pass per prefix with reused keys.

Naive: each pair (D_j, D_i) as one padded sequence through the whole model, all logits. A frozen
language model of SmolLM2-135M's width, few layers, ragged lengths of real chunks.

    python -m bench.training.replug
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.common import chunk_lengths, medians, ragged_batch, random_model, report
from revela.common.memory import keep_freed_memory
from revela.retriever.encode import pad
from revela.training.objectives.replug import cross_losses


@torch.no_grad()
def naive(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the same (B, B) losses as `cross_losses`, one column at a time."""
    chunks = [ids[:n].tolist() for ids, n in zip(input_ids, attention_mask.sum(1), strict=True)]
    columns = []
    for prefix in chunks:
        ids, mask = pad([prefix + chunk for chunk in chunks], 0)
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        columns.append((losses * mask[:, 1:])[:, len(prefix) - 1 :].sum(1))
    return torch.stack(columns, dim=1)


def main() -> None:
    """Compare for growing batches."""
    model = random_model("SmolLM2-135M", num_hidden_layers=2).eval()
    rows = []
    for size in (4, 8, 16):
        ids, mask = ragged_batch(chunk_lengths(size, 160), model.config.vocab_size)
        torch.testing.assert_close(
            cross_losses(model, ids, mask), naive(model, ids, mask), rtol=1e-5, atol=1e-2
        )
        found = medians(
            {
                "ours": lambda ids=ids, mask=mask: cross_losses(model, ids, mask),
                "naive": lambda ids=ids, mask=mask: naive(model, ids, mask),
            },
            repeats=3,
        )
        rows.append(
            {
                "B": str(size),
                "ours, ms a chunk": f"{1000 * found['ours'] / size:.0f}",
                "naive, ms a chunk": f"{1000 * found['naive'] / size:.0f}",
                "naive / ours": f"{found['naive'] / found['ours']:.2f}",
            }
        )
    report("REPLUG's scores", "python -m bench.training.replug", rows)


if __name__ == "__main__":
    keep_freed_memory()
    main()
