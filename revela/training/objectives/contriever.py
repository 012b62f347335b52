"""Contriever: InfoNCE over own and in-batch negatives (paper, section 5 and appendix C.1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from revela.config.training import ContrieverObjective
from revela.inbatch.packing import to_device
from revela.retriever.encode import embed


class Contriever(nn.Module):
    """A retriever that learns to rank a query's passage above all other passages.

    The others are those of the same forward pass in one process, so that the number of negatives is
    a setting (`batches_per_device`) and does not depend on the number of processes.
    """

    def __init__(self, retriever: SentenceTransformer, settings: ContrieverObjective) -> None:
        super().__init__()
        self.retriever = retriever
        self.settings = settings

    def forward(
        self,
        query_ids: Tensor,
        query_mask: Tensor,
        passage_ids: Tensor,
        passage_mask: Tensor,
        query_lengths: Sequence[int] | None = None,
        passage_lengths: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Return the InfoNCE loss of queries (Q, L), and its accuracy.

        Passages (Q · G, L') are each query's positive, then its G − 1 negatives; all passages of
        other queries are negatives too. With the lengths the host need not wait for the device.
        """
        query_QD = self._embed(query_ids, query_mask, query_lengths)
        passage_PD = self._embed(passage_ids, passage_mask, passage_lengths)
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

    def _embed(
        self, input_ids: Tensor, attention_mask: Tensor, lengths: Sequence[int] | None
    ) -> Tensor:
        """Return embeddings (N, D), encoded in batches of `encode_batch_size`.

        Each batch is encoded again in the backward pass, when the gradients of all embeddings are
        known (as in GradCache). Texts of similar length share a batch, trimmed to its longest.
        """
        size = self.settings.encode_batch_size
        if size is None or len(input_ids) <= size:
            return embed(self.retriever, input_ids, attention_mask, lengths)
        lengths_N = np.asarray(lengths or attention_mask.sum(1).tolist())
        order = lengths_N.argsort(kind="stable")
        order_N, place_N = to_device([order, order.argsort()], input_ids.device)
        embeddings = []
        for rows_R in order_N.split(size):
            own, order = lengths_N[order[:size]].tolist(), order[size:]
            ids_RL, mask_RL = (
                tensor.index_select(0, rows_R)[:, : max(own)]
                for tensor in (input_ids, attention_mask)
            )
            embeddings.append(
                checkpoint(embed, self.retriever, ids_RL, mask_RL, own, use_reentrant=False)
            )
        return torch.cat(embeddings).index_select(0, place_N)
