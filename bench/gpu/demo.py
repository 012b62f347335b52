"""The demo on this machine, in a folder of its own: its minutes and its table."""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def measure(tiny: bool) -> Iterator[dict[str, str]]:
    """Run the demo, or plan it if `tiny`; yield its table, the first row with the minutes."""
    if missing := [name for name in ("pydantic", "snakemake", "mteb") if not find_spec(name)]:
        yield {"": f"not run: {', '.join(missing)} missing"}
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").symlink_to(ROOT / "data")
        # Of several GPUs one: the demo's steps cannot be divided among all.
        environment = {"CUDA_VISIBLE_DEVICES": "0"} | os.environ
        environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "revela", "run", str(ROOT / "config.demo.yaml")]
        start = time.perf_counter()
        subprocess.run([*command, *["-n"] * tiny], cwd=folder, env=environment, check=True)
        minutes = (time.perf_counter() - start) / 60
        if tiny:
            yield {"": "planned, not run"}
            return
        table = Path(folder, "results/tables/demo.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    yield from (row | {"minutes": f"{minutes:.1f}" if row is rows[0] else ""} for row in rows)
