"""All GPU benchmarks of training and encoding, in one command, written to RESULTS-<device>.md.

Random weights at the paper's shapes: nothing is downloaded. Sections are independent, each in a
process of its own: one that fails, or for which no time is left, is noted in the file, and the
next call resumes after the finished sections. It needs torch, transformers and peft; other missing
packages are named.

    python -m bench.gpu                       # on a GPU; at most 25 minutes
    python -m bench.gpu --tiny --output DIR   # the same code on any machine, in a minute
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.common import machine
from bench.gpu.sections import Rows, find_device, in_child, sections

SECONDS = 420  # at most, of a section


def run(
    titles: Iterable[str], measure: Callable[[str, float], Rows], kept: Path, deadline: float
) -> dict[str, Any]:
    """Return each section's rows, or why it has none, and write the file after each.

    Args:
        titles: the sections.
        measure: returns the rows of a section, within a number of seconds.
        kept: JSON with the sections of earlier calls; the Markdown is written beside it.
        deadline: time on the monotonic clock after which no section is begun.
    """
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    results: dict[str, Any] = {}
    for title in titles:
        start = time.monotonic()
        if title in done:
            results[title] = done[title]
        elif start > deadline:
            results[title] = {"failed": "not run: no time was left; run the command again"}
        else:
            try:
                made = {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
                results[title] = done[title] = {"rows": measure(title, SECONDS)} | made
            except Exception as error:
                reason = str(error).strip().partition("\n")[0][:300]
                results[title] = {"failed": f"failed: {type(error).__name__}: {reason}"}
            results[title]["seconds"] = round(time.monotonic() - start, 1)
            print(title, json.dumps(results[title], indent=1), flush=True)
        kept.write_text(json.dumps(done))
        kept.with_suffix(".md").write_text(markdown(results), "utf-8")
    return results


def markdown(results: dict[str, Any]) -> str:
    """Return the content of the file."""
    lines = ["# Measured by `python -m bench.gpu`", ""]
    for title, result in results.items():
        lines += [f"## {title}", ""]
        if rows := result.get("rows"):
            heading = list(dict.fromkeys(name for row in rows for name in row))
            cells = [heading, ["---", *["---:"] * (len(heading) - 1)]]
            cells += [[row.get(name, "") for name in heading] for row in rows]
            lines += [f"| {' | '.join(line)} |" for line in cells]
            lines += ["", f"{result['date']}, {result['machine']}, {result['seconds']} s.", ""]
        else:
            lines += [result["failed"], ""]
    return "\n".join(lines)


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
    deadline = time.monotonic() + 60 * arguments.minutes - SECONDS / 3
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    kept = arguments.output / f"RESULTS-{name.replace(' ', '-')}.json"
    if arguments.again:
        kept.unlink(missing_ok=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    titles = sections(find_device(), arguments.tiny)
    results = run(titles, partial(in_child, tiny=arguments.tiny), kept, deadline)
    failed = [title for title, result in results.items() if "failed" in result]
    done = f"{len(results) - len(failed)} of {len(results)} sections"
    print(f"{kept.with_suffix('.md')}: {done}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
