"""Contriever: InfoNCE over own and in-batch negatives (paper, section 5 and appendix D.1)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from revela.config.steps import ContrieverObjective
from revela.encoder import Encoder


class Contriever(nn.Module):
    """A retriever that learns to rank a query's passage above all other passages.

    The others are those of one forward pass in one process, so that the number of negatives is a
    setting (`batches_per_device`) and does not depend on how many processes share a step.
    """

    def __init__(self, retriever: Encoder, settings: ContrieverObjective) -> None:
        super().__init__()
        self.retriever = retriever
        self.settings = settings

    def forward(
        self, query_ids: Tensor, query_mask: Tensor, passage_ids: Tensor, passage_mask: Tensor
    ) -> dict[str, Any]:
        """Return the InfoNCE loss of queries (Q, L), and its accuracy.

        Passages (Q · G, L') are each query's positive, then its G − 1 negatives; those of all
        queries are negatives of each other's.
        """
        query_QD = self._embed(query_ids, query_mask)
        passage_PD = self._embed(passage_ids, passage_mask)
        group = len(passage_PD) // len(query_QD)
        positive_Q = torch.arange(len(query_QD), device=query_QD.device) * group
        with torch.autocast(query_QD.device.type, enabled=False):
            scores_QP = query_QD @ passage_PD.T / self.settings.temperature
        accuracy = (scores_QP.argmax(1) == positive_Q).float().mean()
        return {
            "loss": F.cross_entropy(scores_QP, positive_Q),
            "measures": {
                "accuracy": accuracy,
                "top_similarity": scores_QP.detach().softmax(1).max(1).values.mean(),
            },
        }

    def _embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings (N, D), encoded in batches of `encode_batch_size`.

        Each batch is encoded again in the backward pass, when the gradients of all embeddings are
        known (as GradCache does). Texts of similar length share a batch, cut to its longest.
        """
        size = self.settings.encode_batch_size
        if size is None or len(input_ids) <= size:
            return self.retriever(input_ids, attention_mask)
        length_N = attention_mask.sum(1)
        order_N = length_N.argsort(stable=True)
        longest = length_N[order_N][size - 1 :: size].tolist()
        longest += [int(length_N.max())] if len(input_ids) % size else []
        batches = [
            checkpoint(
                self.retriever,
                input_ids[rows, :width],
                attention_mask[rows, :width],
                use_reentrant=False,
            )
            for rows, width in zip(order_N.split(size), longest, strict=True)
        ]
        return torch.cat(batches)[order_N.argsort()]
