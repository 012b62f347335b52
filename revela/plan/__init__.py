"""Planned jobs and files in; what they need, what they will take and where they stand out."""

__all__: list[str] = []
