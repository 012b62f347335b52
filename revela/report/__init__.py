"""Scores and logs in; what the paper prints out, beside what the paper printed."""
