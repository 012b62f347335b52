"""The work of a GPU, counted on machines without one."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from revela.training.at_once import rows_at_once
from tests.training.common import experiment

# Host reads per step, and operators per layer, forward and backward, over all models.
READS = {"revela": ["cpu"], "replug": ["tolist"], "contriever": []}
OPERATORS = {
    "revela": 465,
    "revela checkpointing": 626,
    "replug": 410,
    "replug checkpointing": 480,
    "contriever": 768,  # queries, and passages in two batches that are encoded twice
    "contriever checkpointing": 980,
}


@pytest.fixture(scope="module")
def found() -> dict:
    """Steps in a separate process: torch supports one device of this kind."""
    command = [sys.executable, "-m", "tests.training.pretended"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("objective", OPERATORS)
def test_a_step_runs_on_a_device_and_keeps_to_its_budget(found, objective):
    assert found[objective]["reads"] == READS[objective.split()[0]]
    assert found[objective]["operators_a_layer"] <= OPERATORS[objective]


@pytest.mark.parametrize(
    ("gigabytes", "shapes", "rows"),
    [
        (80, [(16, 2048), (16, 2048)], (2, False)),
        (80, [(28, 3072), (16, 2048)], (1, False)),
        (141, [(16, 2048), (16, 2048)], (4, False)),
        (24, [(16, 2048), (16, 2048)], (4, True)),
        (80, [(30, 576), (30, 576)], (4, False)),
        (141, [(30, 576), (30, 576)], (8, False)),
        (0, [(16, 2048), (16, 2048)], (1, False)),  # no GPU
    ],
)
def test_what_a_gpu_computes_at_once(gigabytes, shapes, rows, monkeypatch, tmp_path):
    models = {"retriever": tmp_path / "one", "language_model": tmp_path / "other"}
    for folder, (layers, hidden) in zip(models.values(), shapes, strict=True):
        folder.mkdir()
        config = {"num_hidden_layers": layers, "hidden_size": hidden}
        (folder / "config.json").write_text(json.dumps(config))
        for file in ("model.safetensors", "tokenizer.json"):
            (folder / file).touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gigabytes))
    memory = SimpleNamespace(total_memory=gigabytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    names = {key: str(folder) for key, folder in models.items()}
    settings = experiment("a/b", max_length=160, batches_per_step=32, **names)
    batch = {"texts": 16 * ["a"]}
    assert rows_at_once(settings, batch, 0, None) == rows
    assert rows_at_once(settings, batch, 2, True) == (2, True)
    on_pairs = {"name": "contriever", "encode_batch_size": 64 if gigabytes == 141 else None}
    changes = {"objective": on_pairs, "batches_per_step": 256, "batches_per_device": 64}
    settings = experiment("a/b", max_length=160, **changes, **names)
    recomputed = rows_at_once(settings, {"negatives": ["a"]}, 0, None)
    assert recomputed == (64, gigabytes in (24, 80) and shapes[0] != (30, 576))
