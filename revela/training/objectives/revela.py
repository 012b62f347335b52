"""Revela: trains a retriever and a language model by in-batch attention (paper, section 3)."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
import torch.distributed as distributed
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from revela.config.training import RevelaObjective
from revela.inbatch.cross_document import all_gather
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.retriever.encode import embed


class Revela(nn.Module):
    """A retriever whose similarities weight what a language model reads in other chunks."""

    def __init__(
        self, retriever: SentenceTransformer, language_model: Any, settings: RevelaObjective
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.language_model = language_model
        self.settings = settings
        if settings.freeze_language_model:
            language_model.requires_grad_(False)
        if settings.similarity == "documents":
            retriever.requires_grad_(False)

    def similarity(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lengths: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Tensor:
        """Return Sim (B, B): query form of chunk i against passage form of chunk j (3.3).

        Across W processes it is (B, W · B). The ids (2B, L) are the B query forms followed by the B
        passage forms, encoded in one forward pass.
        """
        query_BD, passage_BD = embed(self.retriever, input_ids, attention_mask, lengths).chunk(2)
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
        reads: Sequence[Sequence[int]] = (),
        sizes: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Return the loss of a batch, and its `similarity_measures`.

        `sizes` are those of several concatenated batches; `reads` is the chunk of its batch that
        each chunk reads if the retriever does not determine it; with `retriever_lengths` the host
        need not wait for the device.
        """
        if self.settings.similarity == "documents":
            similarity_BB = _one_hot(reads, language_model_ids.device)
        else:
            similarity_BB = self.similarity(retriever_ids, retriever_mask, retriever_lengths, sizes)
        loss = in_batch_loss(
            self.language_model,
            language_model_ids,
            language_model_mask,
            similarity_BB,
            reading=self.settings.reading,
            value_norm=self.settings.value_norm,
            min_similarity=self.settings.min_similarity,
            dual_loss=self.settings.language_model_loss,
            group=self._group(),
            sizes=sizes,
        )
        return {"loss": loss, "measures": similarity_measures(similarity_BB.detach())}

    @torch.no_grad()
    def pulse(
        self,
        language_model_ids: Tensor,
        language_model_mask: Tensor,
        documents: Sequence[Sequence[str | None]],
        sizes: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """Return measures of the language model that do not depend on the retriever.

        `plain_loss` is its loss on a batch without in-batch attention. `contrast`, if chunks share
        a document, is the reduction of the loss when a chunk reads one of its own document instead
        of any other. `documents` are those of each batch's chunks.
        """
        model, ids, mask = self.language_model, language_model_ids, language_model_mask
        # Even if this process does not need them: with sharded weights all processes must run the
        # same passes.
        right, wrong = (
            in_batch_loss(
                model,
                ids,
                mask,
                _one_hot([chunks_to_read(own, share, Random(0)) for own in documents], ids.device),
                reading=self.settings.reading,
                value_norm=self.settings.value_norm,
                sizes=sizes,
            )
            for share in (0, 1)
        )
        measures = {"plain_loss": plain_loss(model, ids, mask, sizes)}
        known = [name for batch in documents for name in batch if name is not None]
        return measures | ({"contrast": wrong - right} if len(set(known)) < len(known) else {})


def _one_hot(reads: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return Sim (B, B) of concatenated batches whose chunks read one chunk each."""
    blocks = [F.one_hot(torch.tensor(batch), len(batch)).float() for batch in reads]
    return torch.block_diag(*blocks).to(device)


def chunks_to_read(
    documents: Sequence[str | None], wrong_share: float, random: Random
) -> list[int]:
    """Return the chunk of its batch that each chunk reads without a retriever.

    It is another chunk of the same document or, with probability `wrong_share`, one of another
    document; if there is none, any other chunk.
    """
    reads = []
    for chunk, document in enumerate(documents):
        rest = [other for other in range(len(documents)) if other != chunk]
        wrong = random.random() < wrong_share
        known = document is not None
        chosen = [other for other in rest if (known and documents[other] == document) != wrong]
        reads.append(random.choice(chosen or rest))
    return reads


def similarity_measures(similarity_BB: Tensor) -> dict[str, Tensor]:
    """Return measures of the similarities' sharpness.

    `top_similarity` is the mean of each row's largest weight. `rows_learning` is the share of rows
    through which any gradient reaches the retriever: if a weight is one up to rounding, the softmax
    passes none.
    """
    top_B = similarity_BB.max(dim=1).values
    return {"top_similarity": top_B.mean(), "rows_learning": (top_B < 1 - 1e-6).float().mean()}
