"""The original import path of `revela.attention`."""

from revela.attention import in_batch_loss, in_batch_similarity, plain_loss

__all__ = ["in_batch_loss", "in_batch_similarity", "plain_loss"]
