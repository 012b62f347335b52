"""The demo on this machine, in a folder of its own: its minutes and its table."""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def measure(tiny: bool) -> list[dict[str, str]]:
    """Run the demo from text to table; return the table's rows, the first one with the minutes."""
    if tiny:
        return [{"": "not run: `make demo` takes minutes"}]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("data", "revela", "bench"):
            Path(folder, name).symlink_to(ROOT / name)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "revela", "run", str(ROOT / "config.demo.yaml")]
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True)
        minutes = (time.perf_counter() - start) / 60
        table = Path(folder, "results/tables/demo.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    return [row | {"minutes": f"{minutes:.1f}" if row is rows[0] else ""} for row in rows]
