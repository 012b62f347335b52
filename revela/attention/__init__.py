"""Chunks, similarities and a stock causal LM in; the loss of in-batch attention out."""

from revela.attention.in_batch import in_batch_loss, in_batch_similarity, plain_loss

__all__ = ["in_batch_loss", "in_batch_similarity", "plain_loss"]
