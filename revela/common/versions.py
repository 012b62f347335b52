"""Versions of the stages: changing a number makes results stale, changing code does not."""

STAGE_VERSIONS = {
    "download": 1,
    "chunk": 6,
    "batch": 1,
    "pair": 3,
    "train": 1,
    "collection": 3,
    "evaluate": 3,
    "evaluate_lm": 1,
    "judgements": 1,
    "fuse": 1,
    "table": 4,
    "compare": 2,
    "listing": 1,
    "figure": 1,
    "step_cost": 1,
    "usage": 2,
}
"""Increase a stage's number when the same inputs and settings give different results than before:
its results, and all that depend on them, are then recomputed. `tests/workflow/test_versions.py`
fails if this is forgotten."""
