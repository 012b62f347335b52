"""In-batch attention: the loss of a stock causal LM, given chunks and their similarities."""

from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity, plain_loss

__all__ = ["in_batch_loss", "in_batch_similarity", "plain_loss"]
