"""Indexes texts with a retriever, for search from the shell or in a browser."""

from typing import Literal

Ranking = Literal["hybrid", "dense", "bm25"]
