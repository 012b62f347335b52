"""Settings of small trainings, and what they are compared by."""

import signal
from pathlib import Path

import torch
from safetensors.torch import load_file

from revela.config.training import Experiment


def experiment(backbone, **changes) -> Experiment:
    settings = {
        "objective": {"name": "revela", "temperature": 0.1, "plain_loss_every": 2},
        "data": "x",
        "retriever": str(backbone),
        "language_model": str(backbone),
        "lora": None,
        "max_length": 33,
        "batches_per_step": 1,
        "steps": 8,
        "learning_rate": 5e-3,
        "warmup_steps": min(2, changes.get("steps", 8) - 1),
        "precision": "float32",
    }
    return Experiment.model_validate(settings | changes)


LORA = {"rank": 4, "alpha": 8, "dropout": 0.1}
REPLUG = {
    "name": "replug",
    "retriever_temperature": 0.1,
    "language_model_temperature": 1.0,
    "include_self": False,
}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.parent.relative_to(folder)}/{name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_weights(one: Path, other: Path) -> None:
    expected, found = weights_of(one), weights_of(other)
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def as_in_a_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
