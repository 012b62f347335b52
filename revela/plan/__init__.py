"""Planned jobs and files in; what they need, will take, and where they stand out."""
