"""The GPUs of this machine."""

import os
import re
import subprocess


def visible_gpus() -> int:
    """Return the number of GPUs that a process may use here, counted as by `launch.sh`."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    gpus = len(re.findall(r"^GPU", listed.stdout, re.MULTILINE))  # without MIG instances
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else min(gpus, len(re.findall(r"[^,]+", visible)))
