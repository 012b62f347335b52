"""The work of a GPU, counted on machines without one."""

import json
import subprocess
import sys

import pytest

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
