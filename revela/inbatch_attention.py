"""In-batch attention by its first address; its home is `revela.attention`."""

from revela.attention import in_batch_loss, in_batch_similarity, plain_loss

__all__ = ["in_batch_loss", "in_batch_similarity", "plain_loss"]
