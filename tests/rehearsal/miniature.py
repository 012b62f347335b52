"""The rehearsal's config: the paper's, with sizes cut down; the same names, rules and jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_SMALLER: dict[str, Callable[[Any], Any]] = {
    "max_documents": lambda count: max(20, count // 10_000),
    "num_pairs": lambda count: count // 10_000,
    "negatives": lambda count: 2,
    "num_batches": lambda count: count // 40_000,
    "batches_per_step": lambda count: max(1, count // 32),
    "batches_per_device": lambda count: max(1, count // 32),
    "encode_batch_size": lambda count: count // 32,
    "steps": lambda count: 2,
    "similarity_snapshot_steps": lambda steps: list(range(len(steps))),
    "sizes": lambda sizes: sizes[:2],
}
_OF_EVERY_EXPERIMENT = {
    "batches_per_step": 1,
    "max_length": 32,
    "warmup_steps": 1,
    "lora": {"rank": 4},
}


def write_miniature(original: Path, path: Path) -> None:
    """Write a config of the same entries, each made in seconds.

    Args:
        original: the config to cut down.
        path: where the smaller one goes.
    """
    config = yaml.safe_load(original.read_text(encoding="utf-8"))
    for section in ("corpora", "batches", "pairs", "experiments", "figures"):
        config[section] = {name: _cut(entry) for name, entry in config[section].items()}
    for entry in config["experiments"].values():
        if "base" not in entry:
            entry.update({**_OF_EVERY_EXPERIMENT, **entry})
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _cut(entry: dict[str, Any]) -> dict[str, Any]:
    """Cut the sizes of an entry, those of nested settings too."""
    smaller: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "sample_from":
            smaller[key] = {name: _SMALLER["num_batches"](count) for name, count in value.items()}
        elif isinstance(value, dict):
            smaller[key] = _cut(value)
        else:
            smaller[key] = _SMALLER[key](value) if key in _SMALLER else value
    return smaller
