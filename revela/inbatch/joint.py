"""Joint reading: one softmax over a chunk's own prefix and all tokens of the documents it reads.

log Sim(i, j) is added to the scores of document j's tokens, whose positions end where those of the
chunk begin: to a language model with rotary positions the documents are the chunk's context, so it
reads them untrained. It is one causal call per layer, whose keys are, for each row, the documents
that it reads, then its own tokens. Keys are copied for each reader; scores of all pairs never exist
at once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from revela.inbatch.cross_document import Exchange, documents_of
from revela.inbatch.decoder import causal_lm
from revela.inbatch.packing import Packing, biased, causal_attention, flash, starts_of, to_device


def joint_lm(language_model: Any, longest: int) -> Any:
    """Return the causal LM below any LoRA, to read chunks of at most `longest` tokens jointly.

    Raises:
        ValueError: as `causal_lm`, or documents cannot be placed before a chunk.
    """
    model = causal_lm(language_model, 2 * longest)
    config, name = model.config.get_text_config(), type(model).__name__
    if not getattr(config, "rope_parameters", None):
        raise ValueError(f"{name} has no rotary positions, which joint reading requires")
    limit = getattr(config, "max_position_embeddings", None) or 2 * longest
    if limit < 2 * longest:
        raise ValueError(
            f"{name} has {limit} positions, but a document and a chunk of {longest} tokens need "
            f"{2 * longest}"
        )
    return model


@dataclass(frozen=True)
class Joint:
    """The keys of E e rows and B h rows, in this order: S tokens in total."""

    position_T: Tensor  # of the rows' own tokens
    pieces: list[int]  # lengths of the rows, then of rows gathered from other processes
    read: list[list[tuple[int, int]]]  # of each row: pieces and how many tokens of them; own last
    keys: Packing  # S tokens in E + B rows
    token_S: Tensor  # among the tokens of all pieces
    bias_S: Tensor  # log-similarity, zero for a row's own tokens; with gradient

    def attend(
        self,
        packing: Packing,
        first: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
    ) -> Tensor:
        """Return (T', H, D) of the rows from `first` on, given keys and values of all pieces."""
        if packing.flash:
            queries, start = sum(packing.lengths[:first]), sum(self.keys.lengths[:first])
            key, value = (x.index_select(0, self.token_S[start:]) for x in (key, value))
            query, key = biased(query[queries:], key, self.bias_S[start:, None, None], scale)
            spans = packing.spans(first), self.keys.spans(first)
            return flash(query, key, value, *spans, scale, causal=True)
        query_R, bias_R = query.split(packing.lengths), self.bias_S.split(self.keys.lengths)
        key_P, value_P = key.split(self.pieces), value.split(self.pieces)
        outputs = []
        for row in range(first, packing.rows):
            keys, values = ([x[p][:n] for p, n in self.read[row]] for x in (key_P, value_P))
            # Recomputed in the backward pass: only one row's scores exist at a time.
            inputs = (query_R[row], keys, values, bias_R[row])
            options: Any = {"use_reentrant": False, "preserve_rng_state": False}
            outputs.append(checkpoint(_attend, *inputs, **options))
        return torch.cat(outputs)


def _attend(query_LHD: Tensor, keys: list[Tensor], values: list[Tensor], bias_S: Tensor) -> Tensor:
    """Return the attention (L, H, D) of one row, whose own keys are the last ones."""
    query, key = biased(query_LHD, torch.cat(keys), bias_S[:, None, None])
    states = (x.transpose(0, 1)[None] for x in (query, key, torch.cat(values)))
    return causal_attention(*states)[0].transpose(0, 1)


def joint_of(
    kept: np.ndarray,
    lengths: list[int],
    similarity: Tensor,
    all_own: bool,
    group: Any,
    flash: bool = False,
) -> tuple[list[int], Joint, Exchange | None]:
    """Find the keys of each row; arguments and e rows as those of `readers_of`."""
    own, row_of, all_lengths, exchange = documents_of(
        kept, lengths, all_own, group, similarity.device
    )
    rows, documents = [*(lengths[j] for j in own), *lengths], len(own)
    pieces = rows + (exchange.lengths if exchange else [])
    read, pairs = [], []
    for row, length in enumerate(rows):
        reader = row - documents
        columns = np.flatnonzero(kept[reader]).tolist() if reader >= 0 else []
        # Rows of the keys count own documents, then gathered ones; pieces have h rows in between.
        found = [row_of[j] + (len(lengths) if row_of[j] >= documents else 0) for j in columns]
        read.append([*zip(found, (all_lengths[j] for j in columns), strict=True), (row, length)])
        pairs += [*(reader * kept.shape[1] + j for j in columns), similarity.numel()]
    starts, longest = starts_of(pieces), max(all_lengths)
    flat = [piece for one in read for piece in one]
    begins = [longest - length for length in rows[:documents]] + [longest] * len(lengths)
    token_S, pair_S, position_T = to_device(
        [
            np.concatenate([starts[piece] + np.arange(length) for piece, length in flat]),
            np.repeat(pairs, [length for _, length in flat]),
            np.concatenate([a + np.arange(n) for a, n in zip(begins, rows, strict=True)]),
        ],
        similarity.device,
    )
    exact = similarity.flatten().to(torch.promote_types(similarity.dtype, torch.float32))
    bias = F.pad(exact.clamp_min(torch.finfo(exact.dtype).tiny).log(), (0, 1))  # last: own tokens
    keys = Packing([sum(n for _, n in one) for one in read], similarity.device, flash)
    joint = Joint(position_T, pieces, read, keys, token_S, bias.index_select(0, pair_S))
    return own, joint, exchange
