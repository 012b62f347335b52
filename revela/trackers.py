"""Where a training's measures are shown besides its own log: TensorBoard, Weights & Biases."""

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from revela.errors import RevelaError


def missing(tracker: str) -> str | None:
    """Tell in one line what a tracker lacks here, None if nothing."""
    if importlib.util.find_spec(tracker) is None:
        return f"trackers: {tracker} needs the package {tracker}: pip install {tracker}"
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if tracker == "wandb" and not (os.environ.get("WANDB_API_KEY") or offline):
        return "trackers: wandb needs WANDB_API_KEY in the environment, or WANDB_MODE=offline"
    return None


def prepare(trackers: Iterable[str], output: Path, training: str) -> None:
    """Have the trackers write beside a model, in a run of its name that a resumed training goes on.

    Args:
        trackers: `tensorboard`, `wandb`.
        output: the model's folder.
        training: tells this training from one with other settings.

    Raises:
        RevelaError: a package or a key is missing.
    """
    for tracker in trackers:
        if problem := missing(tracker):
            raise RevelaError(problem)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(output / "tensorboard")
    os.environ["WANDB_DIR"] = str(output)
    os.environ.setdefault("WANDB_PROJECT", "revela")
    os.environ.setdefault("WANDB_NAME", output.name)
    os.environ.setdefault("WANDB_RUN_ID", f"{output.name}-{training}")
    os.environ.setdefault("WANDB_RESUME", "allow")
