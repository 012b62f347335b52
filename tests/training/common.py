"""Settings and data of small trainings, and what they are compared by."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from revela.config.training import Experiment
from revela.text import batching, pairs
from tests.conftest import TEXTS


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
        "warmup_steps": min(2, (changes.get("steps") or 8) - 1),
        "precision": "float32",
    }
    return Experiment.model_validate(settings | changes)


def write_batches(path: Path, count: int, every: int = 1) -> Path:
    """Write batches of four chunks; in each `every`-th one pairs of chunks share a document."""
    rows = [
        {
            "source": "code" if n % 2 else "wiki",
            "texts": [f"{n} {TEXTS[(n + k) % 5]}" for k in range(4)],
            "documents": [f"{n}.{k if n % every else k // 2}" for k in range(4)],
        }
        for n in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=batching.SCHEMA), path)
    return path


def write_pairs(path: Path, count: int) -> Path:
    """Write pairs with two negatives."""
    rows = [
        {
            "source": "code",
            "query": TEXTS[n % 5][:30],
            "positive": f"{n} {TEXTS[n % 5][30:]}",
            "negatives": [TEXTS[(n + 1) % 5], TEXTS[(n + 2) % 5]],
        }
        for n in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pairs.SCHEMA), path)
    return path


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


def assert_same_weights(one: Path, other: Path, atol: float = 0) -> None:
    # Adam's first steps have the same length for any gradient: rounding errors are visible.
    torch.testing.assert_close(weights_of(other), weights_of(one), rtol=0, atol=atol)


def wait_for_step(process: subprocess.Popen, output: Path, step: int) -> list[psutil.Process]:
    """Wait until a training has logged a step; return the processes that it has started."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(output.glob("checkpoints/*/log.jsonl"))
        if logs and len(logs[0].read_text().splitlines()) >= step:
            return psutil.Process(process.pid).children()
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not reached: {process.communicate()}")


def as_in_a_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
