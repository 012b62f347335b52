"""Before hours are spent: what the jobs of a run need, whether it is there, what they cost.

    jobs → counts, findings, costs → three tables, one JSON file

Findings that are errors keep the jobs that they concern from running; the others go on.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from revela.common import outputs
from revela.common.errors import RevelaError, unknown_name
from revela.config.file import Config
from revela.plan.checks import Finding, check
from revela.plan.costs import Plan
from revela.plan.jobs import Job, Planned
from revela.plan.machine import Machine
from revela.plan.show import show_table

_MODES = ("on", "strict", "only", "off")


def run(
    config: Config,
    jobs: Planned,
    machine: Machine,
    known: Path,
    output: Path,
    targets: dict[str, Planned],
) -> dict[Job, str]:
    """Check the jobs of a run, print counts, findings and costs, and write them as JSON.

    `REVELA_PREFLIGHT` in the environment may be `off`; `strict`: any error stops the run; `only`:
    the run ends here.

    Args:
        config, jobs, machine, known: see `Plan`.
        output: the JSON file.
        targets: the jobs that each training and each table needs.

    Returns:
        The jobs that cannot run, each with the first error that concerns it.

    Raises:
        RevelaError: there are errors, and `strict` or `only`; each is one line on stderr.
        SystemExit: `only` was asked for, and there are none.
    """
    mode = os.environ.get("REVELA_PREFLIGHT", "on")
    if mode not in _MODES:
        raise RevelaError(f"REVELA_PREFLIGHT: {unknown_name('value', mode, _MODES)}")
    if mode == "off":
        return {}
    plan = Plan(config, jobs, machine, known)
    findings = check(plan)
    counts, costs = _count_rows(plan), _cost_rows(plan, targets)
    _show(findings, counts, costs)
    found = [asdict(one) | {"jobs": list(map(str, one.jobs))} for one in findings]
    report = {"machine": vars(machine), "findings": found, "counts": counts, "costs": costs}
    outputs.write_json(output, report)
    errors = [(one, f"{one.what}: {one.message}") for one in findings if one.verdict == "error"]
    blocked = {job: line for one, line in reversed(errors) for job in one.jobs}
    if errors:
        print("\n".join(line for _, line in errors), file=sys.stderr)
    if errors and mode != "on":
        raise RevelaError(
            f"preflight: {len(errors)} errors, a line each above; REVELA_PREFLIGHT=off skips it"
        )
    if mode == "only":
        raise SystemExit(0)
    return blocked


def _count_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each corpus, then for each set of batches or pairs with its steps."""
    steps = {name: plan.counts.steps(name) for name in plan.of("train")}
    rows: list[dict[str, Any]] = [
        {"name": f"corpus {name}"} | (vars(t) if t else {}) for name, t in plan.counts.texts.items()
    ]
    trained_on = {one: plan.config.experiments[one].data for one in steps}
    for key, found in plan.counts.rows.items():
        own = {one: steps[one] for one, data in trained_on.items() if (data.section, data) == key}
        rows.append({"name": " ".join(key), **(vars(found) if found else {}), "steps": own})
    return rows


def _cost_rows(plan: Plan, targets: dict[str, Planned]) -> list[dict[str, Any]]:
    """Return what each target costs with all it needs, and the cost of all jobs."""
    jobs = {name: [Job.of(*job) for job in needed] for name, needed in sorted(targets.items())}
    costs = {name: plan.cost(needed) for name, needed in (jobs | {"all": plan.jobs}).items()}
    return [{"name": name, **cost.figures()} for name, cost in costs.items()]


def _show(
    findings: list[Finding], counts: list[dict[str, Any]], costs: list[dict[str, Any]]
) -> None:
    columns = ["name", "documents", "words", "chunks", "available", "asked", "margin"]
    show_table("Counts", [{k: row.get(k) for k in columns} | _steps(row) for row in counts])
    show_table("Preflight", _grouped(findings))
    if max(value for value in costs[-1].values() if isinstance(value, float)) >= 1:
        show_table("Costs, about: hours of one GPU, each with all that it needs", costs)


def _steps(row: dict[str, Any]) -> dict[str, Any]:
    steps = sorted({step for step in row.get("steps", {}).values() if step})
    return {"steps": ", ".join(f"{step:,}" for step in steps) or None}


def _grouped(findings: list[Finding]) -> list[dict[str, str]]:
    """Put findings of one kind that say the same, and what the hub lacks, in a line each."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        lacking = one.what == "hub" and one.verdict == "error"
        key = (one.what.partition(" ")[0], one.verdict, "" if lacking else one.message)
        groups.setdefault(key, []).append(one)
    lines = []
    for first, *others in groups.values():
        more = f" and {len(others)} more" if others else ""
        what, message = first.what + more, first.message
        if first.what == "hub":
            what, message = "hub", first.message + more
        lines.append({"what": what, "verdict": first.verdict, "message": message})
    return lines
