"""All GPU benchmarks of training and encoding, in one command, written to RESULTS-<device>.md.

Random weights at the paper's shapes: nothing is downloaded. Sections are independent: one that
fails, or for which no time is left, is noted in the file, and the next call resumes after the
finished sections. It needs torch, transformers and peft; other missing packages are named.

    python -m bench.gpu                       # on a GPU; at most 25 minutes
    python -m bench.gpu --tiny --output DIR   # the same code on any machine, in a minute
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.common import machine
from bench.gpu import encoding, exact, ranks, steps

Rows = list[dict[str, str]]


def sections(device: torch.device, tiny: bool) -> dict[str, Callable[[], Rows]]:
    """Return the measurements, the most important first."""
    plan: dict[str, Callable[[], Rows]] = {
        "Attention against plain loops": lambda: exact.attention(device),
        "Losses and gradients against float64": lambda: exact.losses(device, tiny),
        "Adapters and norms against float64": lambda: exact.adapters(device),
        "Matrix products": lambda: steps.matmul(device, tiny),
    }
    for shape in ("SmolLM2-135M",) if tiny else ("Llama-3.2-1B", "SmolLM2-135M"):
        plan |= {
            f"The paper's step, {shape}": lambda s=shape: steps.revela(s, device, tiny),
            f"In-batch attention beside a plain pass, {shape}": lambda s=shape: steps.beside_plain(
                s, device, tiny
            ),
            f"REPLUG's step, {shape}": lambda s=shape: steps.replug(s, device, tiny),
        }
    return plan | {
        "Where a step's time goes": lambda: steps.operators(device, tiny),
        "Encoding": lambda: encoding.measure(device, tiny),
        "Two processes on one device": lambda: ranks.measure(device),
    }


def run(plan: dict[str, Callable[[], Rows]], kept: Path, deadline: float) -> dict[str, Any]:
    """Return each section's rows, or why it has none; `kept` contains those of earlier calls."""
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    results = {}
    for title, measure in plan.items():
        start = time.monotonic()
        if title in done:
            results[title] = done[title]
            continue
        if start > deadline:
            results[title] = {"failed": "not run: no time was left; run the command again"}
            continue
        try:
            results[title] = done[title] = {"rows": measure()}
        except Exception as error:
            traceback.print_exc()
            reason = str(error).strip().partition("\n")[0][:300]
            results[title] = {"failed": f"failed: {type(error).__name__}: {reason}"}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        results[title]["seconds"] = round(time.monotonic() - start, 1)
        print(title, json.dumps(results[title], indent=1), flush=True)
        kept.write_text(json.dumps(done))
    return results


def markdown(results: dict[str, Any], machine: str, command: str) -> str:
    """Return the content of the file."""
    lines = [f"# {machine}", "", f"`{command}`, {time.strftime('%Y-%m-%d')}.", ""]
    for title, result in results.items():
        lines += [f"## {title}", ""]
        if rows := result.get("rows"):
            heading = list(rows[0])
            cells = [heading, ["---", *["---:"] * (len(heading) - 1)]]
            cells += [[row.get(name, "") for name in heading] for row in rows]
            lines += [f"| {' | '.join(line)} |" for line in cells]
        else:
            lines.append(result["failed"])
        lines += ["", f"{result['seconds']} s.", ""] if "seconds" in result else [""]
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    deadline = time.monotonic() + 60 * arguments.minutes - 90  # for the end of a section
    plan = sections(device, arguments.tiny)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    file = arguments.output / f"RESULTS-{name.replace(' ', '-')}.md"
    kept = file.with_suffix(".json")
    if arguments.again:
        kept.unlink(missing_ok=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = run(plan, kept, deadline)
    command = f"python -m bench.gpu{' --tiny' if arguments.tiny else ''}"
    file.write_text(markdown(results, machine(), command), "utf-8")
    failed = [title for title, result in results.items() if "failed" in result]
    print(f"{file}: {len(results) - len(failed)} of {len(results)} sections", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
