"""The paper's steps at their real sizes, without a hub.

A second call skips finished parts; remove the folder to run all again. Each part runs in its own
processes; parts that do not fit into memory are reported and skipped.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.life_size import results
from bench.life_size.plan import EXPERIMENTS, make_plan
from bench.life_size.processes import Failed, Skipped, apart
from bench.life_size.text import CORPORA, Chunking
from bench.life_size.training import Training
from revela.common.outputs import write_json

_TFLOPS = 0.05  # until the first part has finished


def main() -> None:
    """Run all parts, and write the tables after each."""
    parser = argparse.ArgumentParser(prog="bench.life_size", description=__doc__)
    names = [*EXPERIMENTS, *(f"chunk-{corpus}" for corpus in CORPORA)]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="repeatable")
    parser.add_argument("--text-gb", type=float, default=1.0, help="text of each corpus")
    parser.add_argument("--folder", type=Path, default=Path(".life-size"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["TQDM_DISABLE"] = "1"  # of the libraries
    plan = apart(make_plan, options.folder)
    parts = [
        *(Training(step, options.folder) for step in plan.steps),
        *(
            Chunking(corpus, plan.corpora[corpus], options.folder, options.text_gb)
            for corpus in CORPORA
        ),
    ]
    found = {name: _read(options.folder, name) for name in names}
    todo = [
        part
        for part in parts
        if part.name in (options.only or names)
        and ("result" not in found[part.name] or found[part.name]["key"] != part.key)
    ]
    start, finished = time.monotonic(), 0.0
    for number, part in enumerate(todo):
        rate = finished / (time.monotonic() - start) if finished else _TFLOPS
        minutes = sum(other.tflop for other in todo[number:]) / rate / 60
        print(f"{part.name}: {number + 1} of {len(todo)}, {minutes:.0f} min left", flush=True)
        found[part.name] = {"key": part.key, "machine": plan.machine, **_tried(part)}
        write_json(_file(options.folder, part.name), found[part.name])
        results.write(found)
        finished += part.tflop
    print(results.write(found))
    if any("failed" in found[name] for name in options.only or names):
        sys.exit("life-size: some parts were not completed")


def _tried(part: Any) -> dict[str, Any]:
    try:
        return {"result": part.run()}
    except Skipped as reason:
        print(f"    skipped: {reason}", flush=True)
        return {"skipped": str(reason)}
    except Exception as error:  # the other parts run whatever the error
        reason = str(error) if isinstance(error, Failed) else repr(error)
        print(f"    failed: {reason}", flush=True)
        return {"failed": reason}


def _file(folder: Path, name: str) -> Path:
    return folder / "parts" / f"{name}.json"


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = _file(folder, name)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    main()
