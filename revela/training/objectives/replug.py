"""REPLUG: distils a frozen language model's preferences into a retriever (paper, appendix B.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from revela.config.training import ReplugObjective
from revela.inbatch.decoder import causal_lm, packed_attention, run_packed
from revela.inbatch.losses import token_losses
from revela.inbatch.packing import (
    Packing,
    Spans,
    causal_attention,
    flash,
    flash_takes,
    starts_of,
    to_device,
)
from revela.retriever.encode import embed


class Replug(nn.Module):
    """A retriever distilled from how well a frozen LM predicts each chunk given another."""

    def __init__(
        self, retriever: SentenceTransformer, language_model: Any, settings: ReplugObjective
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.language_model = language_model.requires_grad_(False).eval()
        self.settings = settings

    def train(self, mode: bool = True) -> "Replug":
        """Set training mode on the retriever only; the language model is unchanged."""
        super().train(mode)
        self.language_model.eval()
        return self

    def forward(
        self,
        retriever_ids: Tensor,
        retriever_mask: Tensor,
        language_model_ids: Tensor,
        language_model_mask: Tensor,
        retriever_lengths: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Return mean_i KL(P_LM(·|i) ‖ P_retriever(·|i)) of a batch, and the targets' sharpness.

        The retriever's ids (2B, L) are the query forms followed by the passage forms; those of the
        language model (B, L) are the chunks, padded on the right. With `retriever_lengths` the host
        need not wait for the device.
        """
        query_BD, passage_BD = embed(
            self.retriever, retriever_ids, retriever_mask, retriever_lengths
        ).chunk(2)
        with torch.autocast(query_BD.device.type, enabled=False):
            scores_BB = query_BD @ passage_BD.T / self.settings.retriever_temperature
        loss_BB = cross_losses(self.language_model, language_model_ids, language_model_mask)
        target_BB = -loss_BB / self.settings.language_model_temperature
        if not self.settings.include_self:
            own = torch.eye(len(scores_BB), dtype=torch.bool, device=scores_BB.device)
            # A finite floor: the KL of two zero probabilities must be zero, not NaN.
            scores_BB = scores_BB.masked_fill(own, torch.finfo(scores_BB.dtype).min)
            target_BB = target_BB.masked_fill(own, torch.finfo(target_BB.dtype).min)
        target_BB = target_BB.softmax(dim=-1)
        predicted_BB = scores_BB.log_softmax(dim=-1)
        divergence = F.kl_div(predicted_BB, target_BB, reduction="batchmean")
        measures = {
            "top_similarity": predicted_BB.detach().exp().max(dim=1).values.mean(),
            "top_target": target_BB.max(dim=1).values.mean(),
        }
        return {"loss": divergence, "measures": measures}


@torch.no_grad()
def cross_losses(language_model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return ℓ (B, B): ℓ_ij = −log p(D_i | D_j), summed over the real tokens of D_i.

    All prefixes go through the model once, and their keys and values are reused for all D_i. The
    first token of D_i is predicted by the last one of D_j. Only D_j has a BOS: models do not expect
    one within a sequence. The chunks (B, L) are padded on the right.
    """
    bos = language_model.config.bos_token_id
    starts_B = input_ids[:, 0] == (-1 if bos is None else bos)
    # Everything the host needs in one transfer, because each one waits for the device.
    known = torch.stack([attention_mask.sum(1), starts_B]).tolist()
    lengths, device = known[0], input_ids.device
    model = causal_lm(language_model, 2 * max(lengths))
    head = model.get_output_embeddings()
    prefixes = Prefixes(Packing(lengths, device, flash_takes(model, device)))
    ids_T = prefixes.packing.pack(input_ids[:, : max(lengths)])
    hidden_TD = run_packed(model, ids_T, prefixes.packing.position_T, prefixes)
    last_D = hidden_TD.index_select(0, prefixes.packing.starts[1:] - 1)
    if all(known[1]):
        input_ids, attention_mask = input_ids[:, 1:], attention_mask[:, 1:]
        lengths = [length - 1 for length in lengths]
    first_BB = -head(last_D).float().log_softmax(-1)[:, input_ids[:, 0]].T
    # The last token of a chunk predicts nothing.
    lengths = [max(1, length - 1) for length in lengths]
    packing = Packing(lengths, device, prefixes.packing.flash)
    ids_T, targets_T = (packing.pack(x[:, : max(lengths)]) for x in (input_ids, input_ids[:, 1:]))
    real_T = packing.pack(attention_mask[:, 1 : max(lengths) + 1])
    (row_T,) = to_device([np.repeat(np.arange(len(lengths)), lengths)], device)
    columns = []
    with packed_attention(model):  # set once for all prefixes
        for number, length in enumerate(prefixes.packing.lengths):
            after = AfterPrefix(packing, prefixes, number)
            hidden_TD = run_packed(model, ids_T, packing.position_T + length, after)
            losses_T = token_losses(hidden_TD, head, targets_T) * real_T
            columns.append(losses_T.new_zeros(len(lengths)).index_add(0, row_T, losses_T))
    return first_BB + torch.stack(columns, dim=1)


@dataclass(frozen=True)
class Prefixes:
    """Rows that store their keys and values at each layer, packed (T, G, D)."""

    packing: Packing
    remembered: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return causal self-attention (T, H, D)."""
        self.remembered[module.layer_idx] = (key, value)
        return self.packing.attend(module, query, key, value, scale)


class AfterPrefix:
    """Rows that all follow the same prefix of P tokens."""

    def __init__(self, packing: Packing, prefixes: Prefixes, number: int) -> None:
        self.packing, self.prefixes = packing, prefixes
        starts = starts_of(prefixes.packing.lengths)
        self.prefix = slice(starts[number], starts[number + 1])
        if packing.flash:
            # For each row the prefix, followed by the row's own tokens.
            length = prefixes.packing.lengths[number]
            joined = [
                np.r_[:length, length + start : length + end]
                for start, end in pairwise(starts_of(packing.lengths))
            ]
            arrays = [np.concatenate(joined), starts_of([len(row) for row in joined])]
            self.joined_S, key_starts = to_device(arrays, packing.position_T.device)
            self.keys = Spans(key_starts.int(), length + packing.width)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return causal attention (T, H, D) to the prefix and the row itself, in one softmax."""
        before = [states[self.prefix] for states in self.prefixes.remembered[module.layer_idx]]
        if self.packing.flash:
            key, value = (
                torch.cat([prefix, own]).index_select(0, self.joined_S)
                for prefix, own in zip(before, (key, value), strict=True)
            )
            return flash(query, key, value, self.packing.spans(), self.keys, scale, causal=True)
        query_RHLD, key_RGLD, value_RGLD = (
            self.packing.pad(x).transpose(1, 2) for x in (query, key, value)
        )
        joined = [
            torch.cat([prefix.transpose(0, 1).expand(len(own), -1, -1, -1), own], 2)
            for prefix, own in zip(before, (key_RGLD, value_RGLD), strict=True)
        ]
        return self.packing.pack(causal_attention(query_RHLD, *joined).transpose(1, 2))
