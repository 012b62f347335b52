"""Time of REPLUG's B² scores: naive, and by one pass per prefix with reused keys.

Naive: each pair (D_j, D_i) as one padded sequence through the whole model, all logits. A frozen
language model of SmolLM2-135M's width, few layers, ragged lengths of real chunks.

    python -m bench.training.replug
"""

from functools import partial
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
        ways = {"ours": partial(cross_losses, model, ids, mask)}
        ways["naive"] = partial(naive, model, ids, mask)
        torch.testing.assert_close(ways["ours"](), ways["naive"](), rtol=1e-5, atol=1e-2)
        found = medians(ways, repeats=3)
        row = {"B": str(size)}
        row |= {f"{way}, ms a chunk": f"{1000 * s / size:.0f}" for way, s in found.items()}
        rows.append(row | {"naive / ours": f"{found['naive'] / found['ours']:.2f}"})
    report("REPLUG's scores", "python -m bench.training.replug", rows)


if __name__ == "__main__":
    keep_freed_memory()
    main()
