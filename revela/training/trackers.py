"""Trackers that receive a training's measures besides its log: TensorBoard, Weights & Biases.

They are set in the environment, e.g. `REVELA_TRACKERS=tensorboard,wandb`; as settings of an
experiment they would make it a different training.
"""

import importlib.util
import os
from pathlib import Path

from revela.common.errors import RevelaError, unknown_name

_KNOWN = ("tensorboard", "wandb")


def chosen() -> list[str]:
    """Return the trackers named in the environment.

    Raises:
        RevelaError: one is unknown.
    """
    names = os.environ.get("REVELA_TRACKERS", "").replace(",", " ").split()
    for name in names:
        if name not in _KNOWN:
            raise RevelaError(f"REVELA_TRACKERS: {unknown_name('tracker', name, _KNOWN)}")
    return names


def missing(tracker: str) -> str | None:
    """Return one line on what a tracker lacks, or None if it is ready."""
    if importlib.util.find_spec(tracker) is None:
        return f"REVELA_TRACKERS: {tracker} needs the package {tracker}: pip install {tracker}"
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if tracker == "wandb" and not (os.environ.get("WANDB_API_KEY") or offline):
        return "REVELA_TRACKERS: wandb also needs WANDB_API_KEY, or WANDB_MODE=offline"
    return None


def prepare(output: Path, training: str) -> None:
    """Set up the chosen trackers to write to a model's folder; a resumed training resumes its run.

    The run is named after the model's folder and the hash of settings and inputs.

    Raises:
        RevelaError: a package or a key is missing, or a tracker is unknown.
    """
    for problem in filter(None, map(missing, chosen())):
        raise RevelaError(problem)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(output / "tensorboard")
    os.environ["WANDB_DIR"] = str(output)
    wandb = {"PROJECT": "revela", "NAME": output.name, "RESUME": "allow"}
    for name, value in (wandb | {"RUN_ID": f"{output.name}-{training}"}).items():
        os.environ.setdefault(f"WANDB_{name}", value)
