"""A step of each objective on a device, on machines without one."""

import json
import subprocess
import sys

# What the host reads from the device in a step, with and without checkpointing.
READS = {"revela": ["cpu"], "replug": ["tolist"], "contriever": []}


def test_a_step_runs_on_a_device_and_reads_little_from_it():
    """In a separate process: torch supports one device of this kind."""
    command = [sys.executable, "-m", "tests.training.pretended"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
    checkpointing = {f"{name} checkpointing": reads for name, reads in READS.items()}
    assert json.loads(result.stdout) == READS | checkpointing
