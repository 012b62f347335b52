"""The rehearsal's config: the paper's, reduced by common factors, with the same names and jobs.

Counts of documents, batches or pairs are divided by `DATA`, like the hub's data sets, and counts
per step by `STEP`. All ratios are therefore the paper's, and an entry that requests more than its
corpus has fails here too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DATA = 10_000
STEP = 16


def _data(count: Any) -> Any:
    if isinstance(count, dict):
        return {key: _data(value) for key, value in count.items()}
    return max(1, round(count / DATA)) if isinstance(count, int) else count


def _a_step(count: int | None) -> int | None:
    return count and max(1, count // STEP)


_SMALLER: dict[str, Callable[[Any], Any]] = {
    "max_documents": _data,
    "max_chunks": _data,
    "num_batches": _data,
    "num_pairs": _data,
    "sample_from": _data,
    "batches_per_step": _a_step,
    "batches_per_device": _a_step,
    "encode_batch_size": _a_step,
    "steps": lambda count: count and round(count * STEP / DATA),
    # The first steps of a training, whatever its length.
    "similarity_snapshot_steps": lambda steps: list(range(len(steps))),
    "sizes": lambda sizes: sizes[:2],
}
_OF_EVERY_EXPERIMENT = {
    "batches_per_step": _a_step(32),
    "max_length": 32,
    "warmup_steps": 1,
    "lora": {},
}


def write_miniature(original: Path, path: Path) -> None:
    """Write a config with the same entries, each of which takes seconds."""
    config = yaml.safe_load(original.read_text(encoding="utf-8"))
    for section in ("corpora", "batches", "pairs", "experiments", "figures"):
        config[section] = {name: _cut(entry) for name, entry in config[section].items()}
    for entry in config["experiments"].values():
        if "base" not in entry:
            entry.update({**_OF_EVERY_EXPERIMENT, **entry})
            entry["lora"] = entry["lora"] | {"rank": 4}
    for suite in config["benchmarks"].values():
        if suite["source"] != "lm-eval":
            suite["tasks_per_job"] = None  # each job imports for longer than it computes
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _cut(entry: dict[str, Any]) -> dict[str, Any]:
    """Reduce the sizes of an entry, including nested settings."""

    def cut(key: str, value: Any) -> Any:
        if key in _SMALLER:
            return _SMALLER[key](value)
        return _cut(value) if isinstance(value, dict) else value

    return {key: cut(key, value) for key, value in entry.items()}
