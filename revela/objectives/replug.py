"""REPLUG: the retriever learns a frozen language model's preferences (paper, appendix B.3)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from revela.config import ReplugObjective
from revela.encoder import Encoder

_TOKENS_PER_CHUNK = 1024


class Replug(nn.Module):
    """A retriever distilled from how well each chunk lets a frozen LM predict each other."""

    def __init__(self, retriever: Encoder, language_model: Any, settings: ReplugObjective) -> None:
        super().__init__()
        self.retriever = retriever
        self.language_model = language_model.requires_grad_(False).eval()
        self.settings = settings

    def train(self, mode: bool = True) -> "Replug":
        """Set training mode on the retriever only; the language model stays as it is."""
        super().train(mode)
        self.language_model.eval()
        return self

    def forward(
        self,
        retriever_ids: Tensor,
        retriever_mask: Tensor,
        language_model_ids: Tensor,
        language_model_mask: Tensor,
    ) -> dict[str, Any]:
        """Return mean_i KL(P_LM(·|i) ‖ P_retriever(·|i)) of a batch, and the targets' sharpness.

        Args:
            retriever_ids: (2B, L) query forms above passage forms.
            retriever_mask: (2B, L).
            language_model_ids: (B, L) chunks, padded on the right.
            language_model_mask: (B, L).
        """
        query_BD, passage_BD = self.retriever(retriever_ids, retriever_mask).chunk(2)
        with torch.autocast(query_BD.device.type, enabled=False):
            scores_BB = query_BD @ passage_BD.T / self.settings.retriever_temperature
        loss_BB = cross_losses(self.language_model, language_model_ids, language_model_mask)
        target_BB = -loss_BB / self.settings.language_model_temperature
        if not self.settings.include_self:
            own = torch.eye(len(scores_BB), dtype=torch.bool, device=scores_BB.device)
            # A finite floor: KL of two zero probabilities must be zero, not NaN.
            scores_BB = scores_BB.masked_fill(own, torch.finfo(scores_BB.dtype).min)
            target_BB = target_BB.masked_fill(own, torch.finfo(target_BB.dtype).min)
        target_BB = target_BB.softmax(dim=-1)
        predicted_BB = scores_BB.log_softmax(dim=-1)
        divergence = F.kl_div(predicted_BB, target_BB, reduction="batchmean")
        return {
            "loss": divergence,
            "measures": {
                "top_similarity": predicted_BB.detach().exp().max(dim=1).values.mean(),
                "top_target": target_BB.max(dim=1).values.mean(),
            },
        }


@torch.no_grad()
def cross_losses(language_model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return ℓ (B, B): ℓ_ij = −log p(D_i | D_j), summed over the real tokens of D_i.

    The prefix D_j goes through the model once; its keys and values serve all D_i. The first token
    of D_i is predicted by the last one of D_j. A BOS belongs to D_j alone: within the sequence it
    would be a token that no model expects.

    Args:
        language_model: a causal LM.
        input_ids: (B, L) chunks, padded on the right.
        attention_mask: (B, L).
    """
    from transformers import DynamicCache

    size = len(input_ids)
    columns = []
    prefixes = [row[:length] for row, length in zip(input_ids, attention_mask.sum(1), strict=True)]
    bos = language_model.config.bos_token_id
    if bos is not None and bool((input_ids[:, 0] == bos).all()):
        input_ids, attention_mask = input_ids[:, 1:], attention_mask[:, 1:]
    for prefix_ids in prefixes:
        cache = DynamicCache()
        prefix = language_model(
            input_ids=prefix_ids[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(size)
        output = language_model.get_decoder()(
            input_ids=input_ids, past_key_values=cache, use_cache=True
        )
        first_B = -prefix.logits[0, -1].float().log_softmax(-1)[input_ids[:, 0]]
        head = language_model.get_output_embeddings()
        rest_B = _summed_losses(output.last_hidden_state, head, input_ids, attention_mask)
        columns.append(first_B + rest_B)
    return torch.stack(columns, dim=1)


def _summed_losses(
    hidden_BLD: Tensor, head: Any, input_ids: Tensor, attention_mask: Tensor
) -> Tensor:
    """Return each row's summed next-token loss (B,), with the logits of few rows at a time."""
    rows = max(1, _TOKENS_PER_CHUNK // input_ids.shape[1])
    sums = []
    for hidden, ids, mask in zip(
        hidden_BLD.split(rows), input_ids.split(rows), attention_mask.split(rows), strict=True
    ):
        logits = head(hidden[:, :-1]).float()
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        sums.append((losses * mask[:, 1:]).sum(1))
    return torch.cat(sums)
