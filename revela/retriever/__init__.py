"""What a retriever is: loaded, encoded with, saved, exported, described and published."""

__all__: list[str] = []
