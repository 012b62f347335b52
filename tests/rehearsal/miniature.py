"""The rehearsal's config: the paper's, cut by common factors; the same names, rules and jobs.

Whatever counts documents, batches or pairs is divided by `DATA`, as the hub's data sets are, and
what counts them a step by `STEP`. So every ratio is the paper's, and what asks for more than there
is fails here as it would there.
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
        if key in _SMALLER:
            smaller[key] = _SMALLER[key](value)
        else:
            smaller[key] = _cut(value) if isinstance(value, dict) else value
    return smaller
