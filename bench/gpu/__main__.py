"""All GPU benchmarks of training and encoding, in one command, written to RESULTS-<device>.md.

Random weights at the paper's shapes: nothing is downloaded. Sections are independent, each in a
process of its own with a time limit of its own: for one that fails, or for which no time is left,
the file says so, and the next call of the same code resumes after the finished sections. It needs
torch, transformers, peft and accelerate.

    python3 -m bench.gpu                       # on a GPU; at most 25 minutes
    python3 -m bench.gpu --tiny --output DIR   # the same code on any machine, in two minutes
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.common import machine, markdown_table
from bench.gpu.sections import Rows, find_device, in_child, sections

LEAST = 15  # seconds that any section takes


def run(
    limits: Mapping[str, float],
    measure: Callable[[str, float], tuple[Rows, str]],
    kept: Path,
    deadline: float,
    code: str = "",
) -> dict[str, Any]:
    """Return each section's rows, and why there are no more, and write the file after each.

    `measure` returns the rows of a section, and what is wrong, within its seconds in `limits` and
    before `deadline` on the monotonic clock. Sections in the JSON `kept` of the same code stay.
    """
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    done = {title: one for title, one in done.items() if one["code"] == code}
    results: dict[str, Any] = {}
    for title, limit in limits.items():
        start = time.monotonic()
        seconds = min(limit, deadline - start)
        if title in done:
            results[title] = done[title]
        elif seconds < LEAST:
            results[title] = {"failed": "not run: no time was left; run the command again"}
        else:
            rows, wrong = measure(title, seconds)
            made = {"rows": rows, "date": time.strftime("%Y-%m-%d"), "machine": machine()}
            results[title] = made | {"code": code, "seconds": round(time.monotonic() - start, 1)}
            if wrong:
                results[title]["failed"] = f"failed: {wrong.strip().splitlines()[0][:300]}"
            else:
                done[title] = results[title]
            print(title, json.dumps(results[title], indent=1), flush=True)
        kept.write_text(json.dumps(done))
        kept.with_suffix(".md").write_text(markdown(results), "utf-8")
    return results


def markdown(results: dict[str, Any]) -> str:
    """Return the content of the file."""
    lines = ["# Measured by `python3 -m bench.gpu`", ""]
    for title, result in results.items():
        lines += [f"## {title}", ""]
        if "failed" in result:
            lines += [result["failed"], ""]
        if rows := result.get("rows"):
            made = f"{result['date']}, {result['machine']}, {result['seconds']} s."
            lines += [markdown_table(rows), "", made, ""]
    return "\n".join(lines)


def code() -> str:
    """Return a hash of the package's and the benchmarks' sources."""
    root = Path(__file__).parents[2]
    files = sorted([*root.glob("revela/**/*.py"), *root.glob("bench/**/*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main() -> None:
    """Run the missing measurements, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, also on a CPU")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.tiny:
        sys.exit("this benchmark needs a GPU; --tiny runs a small version on a CPU")
    deadline = time.monotonic() + 60 * arguments.minutes - 5  # for the end of the last process
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    kept = arguments.output / f"RESULTS-{name.replace(' ', '-')}.json"
    arguments.output.mkdir(parents=True, exist_ok=True)
    plan = sections(find_device(), arguments.tiny).items()
    limits = {title: seconds for title, (seconds, _) in plan}
    results = run(limits, partial(in_child, tiny=arguments.tiny), kept, deadline, code())
    failed = [title for title, result in results.items() if "failed" in result]
    done = f"{len(results) - len(failed)} of {len(results)} sections"
    print(f"{kept.with_suffix('.md')}: {done}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
