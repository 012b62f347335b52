"""The log of a training, one JSON line per step. Imports nothing heavy."""

import contextlib
import json
from pathlib import Path
from typing import Any

from revela.common import outputs
from revela.common.errors import reading

LOG = "log.jsonl"


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a training log.

    Raises:
        RevelaError: it cannot be read, or has no steps.
    """
    with reading(path, "a training log"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or not all(isinstance(line, dict) and "step" in line for line in lines):
            raise KeyError("step")
    return lines


def keep_log_until(path: Path, step: int) -> None:
    """Drop the lines of a log after `step`, and a truncated last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if step else []:
        with contextlib.suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    outputs.write_text(path, "".join(kept))
