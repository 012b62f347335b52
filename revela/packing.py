"""Ragged rows packed into one: a model's linear layers see real tokens only."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Packing:
    """R rows of different lengths in one row of T tokens, without padding between them.

    Attributes:
        rows: R.
        width: L, the longest row's length.
        tokens: T.
        position_T: each token's position in its own row.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        sizes = np.asarray(lengths)
        self.rows, self.width, self.tokens = len(sizes), int(sizes.max()), int(sizes.sum())
        row_T = np.repeat(np.arange(self.rows), sizes)
        position_T = np.arange(self.tokens) - np.repeat(sizes.cumsum() - sizes, sizes)
        both = np.stack([position_T, row_T * self.width + position_T])
        self.position_T, self._slot_T = torch.from_numpy(both).to(device)

    def pad(self, packed: Tensor) -> Tensor:
        """Return (R, L, …) of packed (T, …), zero where a row has ended."""
        padded = packed.new_zeros(self.rows * self.width, *packed.shape[1:])
        return padded.index_copy(0, self._slot_T, packed).unflatten(0, (self.rows, self.width))

    def pack(self, padded: Tensor) -> Tensor:
        """Return (T, …) of padded (R, L, …)."""
        return padded.flatten(0, 1).index_select(0, self._slot_T)
