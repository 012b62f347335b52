"""Scores and logs in; tables and figures out, compared with what the paper reports."""
