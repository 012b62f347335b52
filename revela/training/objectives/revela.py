"""Revela: retriever and language model learn together by in-batch attention (paper, section 3)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from revela.attention.cross_document import all_gather
from revela.attention.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.config.steps import RevelaObjective
from revela.encoder import Encoder


class Revela(nn.Module):
    """A retriever whose similarities weigh what a language model reads in other chunks."""

    def __init__(self, retriever: Encoder, language_model: Any, settings: RevelaObjective) -> None:
        super().__init__()
        self.retriever = retriever
        self.language_model = language_model
        self.settings = settings
        if settings.freeze_language_model:
            language_model.requires_grad_(False)

    def similarity(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lengths: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Tensor:
        """Return Sim (B, B): query form of chunk i against passage form of chunk j (3.3).

        Across W processes it is (B, W · B). The ids (2B, L) are the B query forms above the B
        passage forms, so that one forward pass does both.
        """
        query_BD, passage_BD = self.retriever(input_ids, attention_mask, lengths).chunk(2)
        with torch.autocast(query_BD.device.type, enabled=False):
            if self.settings.similarity_precision == "bfloat16":
                query_BD, passage_BD = query_BD.bfloat16(), passage_BD.bfloat16()
            group = self._group()
            passages_PD = all_gather(passage_BD, group) if group else passage_BD
            cosine_BP = (query_BD @ passages_PD.T).float()
            return in_batch_similarity(cosine_BP, self.settings.temperature, group, sizes)

    def _group(self) -> Any:
        together = self.settings.gather_across_devices and distributed.is_initialized()
        return distributed.group.WORLD if together else None

    def forward(
        self,
        retriever_ids: Tensor,
        retriever_mask: Tensor,
        language_model_ids: Tensor,
        language_model_mask: Tensor,
        retriever_lengths: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Return the loss of a batch, and its `similarity_measures`.

        `sizes` are those of several batches behind each other; `retriever_lengths` spare reading
        them from the device.
        """
        similarity_BB = self.similarity(retriever_ids, retriever_mask, retriever_lengths, sizes)
        loss = in_batch_loss(
            self.language_model,
            language_model_ids,
            language_model_mask,
            similarity_BB,
            value_norm=self.settings.value_norm,
            min_similarity=self.settings.min_similarity,
            dual_loss=self.settings.language_model_loss,
            group=self._group(),
            sizes=sizes,
        )
        return {"loss": loss, "measures": similarity_measures(similarity_BB.detach())}

    @torch.no_grad()
    def plain_loss(
        self,
        language_model_ids: Tensor,
        language_model_mask: Tensor,
        sizes: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the language model's loss on a batch without in-batch attention."""
        return plain_loss(self.language_model, language_model_ids, language_model_mask, sizes)


def similarity_measures(similarity_BB: Tensor) -> dict[str, Tensor]:
    """Return how sharp the similarities are.

    `top_similarity` is the mean of each row's largest weight. `rows_learning` is the share of rows
    through which any gradient reaches the retriever: where one weight is one to rounding, the
    softmax passes none.
    """
    top_B = similarity_BB.max(dim=1).values
    return {"top_similarity": top_B.mean(), "rows_learning": (top_B < 1 - 1e-6).float().mean()}
