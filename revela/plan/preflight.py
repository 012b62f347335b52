"""Checks before a run what its jobs need, whether it is available, and what they cost.

    jobs → counts, findings, costs → three tables, one JSON file

Jobs that are affected by an error are skipped; the others run.
"""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from revela.common import outputs
from revela.common.errors import RevelaError, check_name
from revela.config.file import Config
from revela.plan.checks import Finding, check
from revela.plan.costs import Plan
from revela.plan.counts import Rows, Text
from revela.plan.jobs import Job
from revela.plan.machine import Machine
from revela.plan.show import show_table

_COUNTED = ("documents", "words", "chunks", "available", "asked", "margin", "source")
_MODES = ("on", "strict", "only", "off")


def run(
    config: Config,
    jobs: Iterable[Job],
    machine: Machine,
    known: Path,
    output: Path,
    targets: dict[str, list[Job]],
) -> dict[Job, str]:
    """Check the jobs of a run, print counts, findings and costs, and write them as JSON.

    `REVELA_PREFLIGHT` in the environment may be `off`; `strict`: any error stops the run; `only`:
    the run ends after the checks.

    Args:
        config, jobs, machine, known: see `Plan`.
        output: JSON file to write.
        targets: the jobs needed for each training and each table.

    Returns:
        The jobs that cannot run, each with its first error.

    Raises:
        RevelaError: there are errors, and `strict` or `only`; each is one line on stderr.
        SystemExit: mode `only`, without errors.
    """
    mode = os.environ.get("REVELA_PREFLIGHT", "on")
    check_name("REVELA_PREFLIGHT", "value", mode, _MODES)
    if mode == "off":
        return {}
    plan = Plan(config, jobs, machine, known)
    findings = check(plan)
    counts, costs = _count_rows(plan), _cost_rows(plan, targets)
    # The origin of a count is only in the file: the columns already fill a terminal.
    show_table("Counts", [{k: v for k, v in row.items() if k != "source"} for row in counts])
    show_table("Preflight", _grouped(findings))
    if max(value for value in costs[-1].values() if isinstance(value, float)) >= 1:
        show_table("Approximate costs: hours of one GPU, including all dependencies", costs)
    found = [asdict(one) | {"jobs": list(map(str, one.jobs))} for one in findings]
    report = {"machine": vars(machine), "findings": found, "counts": counts, "costs": costs}
    outputs.write_json(output, report)
    errors = [(one, f"{one.what}: {one.message}") for one in findings if one.verdict == "error"]
    blocked = {job: line for one, line in reversed(errors) for job in one.jobs}
    if errors:
        print("\n".join(line for _, line in errors), file=sys.stderr)
    if errors and mode != "on":
        raise RevelaError(
            f"preflight: {len(errors)} errors, listed above; REVELA_PREFLIGHT=off skips it"
        )
    if mode == "only":
        raise SystemExit(0)
    return blocked


def _count_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each corpus, then for each set of batches or pairs with its steps."""
    steps: dict[str, set[int]] = defaultdict(set)
    for name in plan.of("train"):
        data = plan.config.experiments[name].data
        steps[f"{data.section} {data}"] |= {plan.counts.steps(name) or 0}
    counted: dict[str, Text | Rows | None] = {
        **{f"corpus {name}": text for name, text in plan.counts.texts.items()},
        **{" ".join(key): rows for key, rows in plan.counts.rows.items()},
    }
    return [
        {"name": name}
        | {column: getattr(count, column, None) for column in _COUNTED}
        | {"steps": sorted(steps[name] - {0}) or None}
        for name, count in counted.items()
    ]


def _cost_rows(plan: Plan, targets: dict[str, list[Job]]) -> list[dict[str, Any]]:
    """Return the cost of each target, including its dependencies, and of all jobs."""
    needed = dict(sorted(targets.items())) | {"all": plan.jobs}
    return [{"name": name, **plan.cost(jobs).figures()} for name, jobs in needed.items()]


def _grouped(findings: list[Finding]) -> list[dict[str, str]]:
    """Merge findings of one kind that differ only in quoted names into one row."""
    groups: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for one in findings:
        kind, message = one.what.partition(" ")[0], re.sub("'.*?'", "", one.message)
        groups[kind, one.verdict, message].append(one)
    return [
        {
            "what": first.what,
            "verdict": first.verdict,
            "message": first.message + (f" (and {len(others)} more)" if others else ""),
        }
        for first, *others in groups.values()
    ]
