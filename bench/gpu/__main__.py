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

from bench.common import machine
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

    Args:
        limits: the sections, and the seconds that each may take.
        measure: returns the rows of a section, and what is wrong, within a number of seconds.
        kept: JSON with the sections of earlier calls; the Markdown is written beside it.
        deadline: time on the monotonic clock at which everything ends.
        code: names the code that is measured: sections of other code are measured again.
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
            made = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "code": code}
            made["seconds"] = round(time.monotonic() - start, 1)
            results[title] = {"rows": rows} | made
            if wrong:
                results[title]["failed"] = f"failed: {wrong.strip().partition(chr(10))[0][:300]}"
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
            heading = list(dict.fromkeys(name for row in rows for name in row))
            cells = [heading, ["---", *["---:"] * (len(heading) - 1)]]
            cells += [[row.get(name, "") for name in heading] for row in rows]
            lines += [f"| {' | '.join(line)} |" for line in cells]
            lines += ["", f"{result['date']}, {result['machine']}, {result['seconds']} s.", ""]
    return "\n".join(lines)


def code() -> str:
    """Return a hash of the package's and the benchmarks' sources."""
    root = Path(__file__).parents[2]
    files = sorted(
        file for folder in ("revela", "bench") for file in root.glob(f"{folder}/**/*.py")
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main() -> None:
    """Run the missing measurements, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, also on a CPU")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument(
        "--again", action="store_true", help="discard the measurements of earlier calls"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.tiny:
        sys.exit("this benchmark needs a GPU; --tiny runs a small version on a CPU")
    deadline = time.monotonic() + 60 * arguments.minutes - 5  # for the end of the last process
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    kept = arguments.output / f"RESULTS-{name.replace(' ', '-')}.json"
    if arguments.again:
        kept.unlink(missing_ok=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    plan = sections(find_device(), arguments.tiny)
    limits = {title: seconds for title, (seconds, _) in plan.items()}
    results = run(limits, partial(in_child, tiny=arguments.tiny), kept, deadline, code())
    failed = [title for title, result in results.items() if "failed" in result]
    done = f"{len(results) - len(failed)} of {len(results)} sections"
    print(f"{kept.with_suffix('.md')}: {done}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
