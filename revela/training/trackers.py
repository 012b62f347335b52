"""Where a training's measures are shown besides its own log: TensorBoard, Weights & Biases.

That is no setting of an experiment: watching a training must not make it another one. The
environment names them, e.g. `REVELA_TRACKERS=tensorboard,wandb`.
"""

import importlib.util
import os
from pathlib import Path

from revela.common.errors import RevelaError, unknown_name

_KNOWN = ("tensorboard", "wandb")


def chosen() -> list[str]:
    """Return the trackers that the environment names.

    Raises:
        RevelaError: it names one that is unknown.
    """
    names = os.environ.get("REVELA_TRACKERS", "").replace(",", " ").split()
    for name in names:
        if name not in _KNOWN:
            raise RevelaError(f"REVELA_TRACKERS: {unknown_name('tracker', name, _KNOWN)}")
    return names


def missing(tracker: str) -> str | None:
    """Tell in one line what a tracker lacks here, None if nothing."""
    if importlib.util.find_spec(tracker) is None:
        return f"REVELA_TRACKERS: {tracker} needs the package {tracker}: pip install {tracker}"
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if tracker == "wandb" and not (os.environ.get("WANDB_API_KEY") or offline):
        return "REVELA_TRACKERS: wandb needs WANDB_API_KEY as well, or WANDB_MODE=offline"
    return None


def prepare(output: Path, training: str) -> None:
    """Have the chosen trackers write beside a model, in a run that a resumed training goes on.

    Args:
        output: the model's folder.
        training: tells this training from one with other settings.

    Raises:
        RevelaError: a package or a key is missing, or a tracker is unknown.
    """
    for tracker in chosen():
        if problem := missing(tracker):
            raise RevelaError(problem)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(output / "tensorboard")
    os.environ["WANDB_DIR"] = str(output)
    os.environ.setdefault("WANDB_PROJECT", "revela")
    os.environ.setdefault("WANDB_NAME", output.name)
    os.environ.setdefault("WANDB_RUN_ID", f"{output.name}-{training}")
    os.environ.setdefault("WANDB_RESUME", "allow")
