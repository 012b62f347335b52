"""Turns scores and logs into tables and figures, compared with those of the paper."""
