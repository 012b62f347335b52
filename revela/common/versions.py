"""What makes a stage's results stale: a number, not its source files."""

STAGE_VERSIONS = {
    "chunk": 3,
    "batch": 1,
    "pair": 1,
    "pretrain": 1,
    "train": 1,
    "collection": 1,
    "evaluate": 1,
    "evaluate_lm": 1,
    "table": 1,
    "compare": 1,
    "listing": 1,
    "cost": 1,
    "figure": 1,
    "step_cost": 1,
    "usage": 1,
}
"""Raise a stage's number when the same inputs and settings give other results than before: what it
made, and all that was made from it, is then made again. `tests/workflow/test_versions.py` fails
where that is forgotten."""
