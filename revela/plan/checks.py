"""The checks of preflight, one function each: what jobs need, and whether it is available.

A finding is ok, a warning or an error, and names the jobs that it concerns.
"""

import importlib.util
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from revela.common.errors import RevelaError
from revela.config.evaluation import ApiModel, LmEvalBenchmark, LuceneModel
from revela.config.file import Config
from revela.plan import estimates
from revela.plan.costs import Plan
from revela.plan.counts import Rows
from revela.plan.estimates import GB, UNCERTAINTY
from revela.plan.jobs import SECTIONS, Job, backbone_of, sources
from revela.plan.machine import Machine, partition_resources

_UNCOUNTED = "number unknown: a corpus has no published counts and cannot be read"
_UNKNOWN = "memory and time unknown: its model has no config.json"

_KINDS = {"chunk": "data", "batch": "data", "pair": "data", "train": "models"}

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """A row of the table."""

    what: str
    verdict: Verdict
    message: str
    jobs: Sequence[Job] = ()


def check(plan: Plan) -> list[Finding]:
    """Return the findings, in the order of a run."""
    checks = [_hub, _counts, _trainings, _evaluations, _disk, _lucene, _lm_eval,
              _partition]  # fmt: skip
    found = [finding for one in checks for finding in one(plan)]
    return found or [Finding("nothing", "ok", "these jobs have no requirements to check")]


def _hub(plan: Plan) -> Iterator[Finding]:
    """Count the readable repositories; yield a finding for each one that is not readable."""
    hub, needing = plan.hub, defaultdict(list)
    for job in plan.jobs:
        for source in sources(plan.config, job):
            needing[source].append(job)
    if hub.unreachable and needing:
        every = [job for jobs in needing.values() for job in jobs]
        yield Finding("hub", "error", f"{hub.address} cannot be reached", every)
    where = "in the local cache" if hub.offline else f"on {hub.address}"
    for what in ("model", "data set"):
        needed = sorted((source for source in needing if source.what == what), key=str)
        problems = hub.problems(what, [(source.name, source.revision) for source in needed])
        if readable := problems.count(None):
            yield Finding("hub", "ok", f"{readable} of {len(needed)} {what}s {where}")
        for source, problem in zip(needed, problems, strict=True):
            if problem:
                yield Finding("hub", "error", problem, needing[source])


def _counts(plan: Plan) -> Iterator[Finding]:
    """Compare the requested batches and pairs with those that can be made."""
    for rule in ("batch", "pair"):
        section = SECTIONS[rule]
        for name, jobs in plan.of(rule).items():
            rows, what = plan.counts.data(section, name), f"{section} {name}"
            if rows is None:
                yield Finding(what, "warning", _UNCOUNTED, jobs)
            elif rows.margin is not None:
                verdict = _verdict(1, rows.margin, 1 if rows.exact else UNCERTAINTY)
                if verdict != "ok":
                    yield Finding(what, verdict, _short(plan.config, section, name, rows), jobs)


def _short(config: Config, section: str, name: str, rows: Rows) -> str:
    entry = getattr(config, section)[name]
    if getattr(entry, "sample_from", None):
        asked = ", ".join(f"{count:,} of {other}" for other, count in entry.sample_from.items())
        return f"sample_from requests {asked}; {rows.margin:.2f} are available for each"
    about = "" if rows.exact else "about "
    chunks = f": {about}{rows.chunks:,.0f} chunks" if rows.chunks else ""
    return f"num_{section} requests {rows.asked:,} of {about}{rows.available:,.0f}{chunks}"


def _trainings(plan: Plan) -> Iterator[Finding]:
    """Check that a step is divisible by the GPUs, and that each has memory for its share."""
    machine = plan.machine
    for name, jobs in plan.of("train").items():
        experiment, models = plan.config.experiments[name], plan.models(name)
        each = experiment.batches_per_device
        if experiment.batches_per_step % (max(1, machine.gpus) * each):
            message = (
                f"batches_per_step {experiment.batches_per_step} is not divisible by "
                f"{machine.gpus} GPUs × batches_per_device {each}"
            )
            yield Finding(f"train {name}", "error", message, jobs)
        need = None
        if models:
            half, again = machine.has_bfloat16, machine.gradient_checkpointing
            need = estimates.training_memory(experiment, models, plan.row_size(name), half, again)
        yield _memory(f"train {name}", need, machine, jobs)


def _evaluations(plan: Plan) -> Iterator[Finding]:
    """Check the keys of APIs, and the memory for encoding texts."""
    machine = plan.machine
    for name, jobs in plan.of("evaluate", "evaluate_language_model").items():
        entry = plan.config.models.get(name)
        if isinstance(entry, ApiModel):
            lacks = not os.environ.get(entry.key)
            message = f"{entry.key} is {'not ' if lacks else ''}in the environment"
            yield Finding(f"evaluate {name}", "error" if lacks else "ok", message, jobs)
        if backbone := backbone_of(plan.config, name):
            need = None
            if shape := plan.shape(backbone):
                need = estimates.encoding_memory(shape, machine.has_bfloat16, machine.gpus > 0)
            yield _memory(f"evaluate {name}", need, machine, jobs)


def _memory(what: str, need: float | None, machine: Machine, jobs: Sequence[Job]) -> Finding:
    """Compare the bytes needed with the memory of one GPU, or of a machine without GPUs."""
    if need is None:
        return Finding(what, "warning", _UNKNOWN, jobs)
    about = f"about {need / GB:.1f} GB"
    if machine.gb is None:
        message = f"{about} per GPU; the memory of a GPU is unknown (gpu_memory_gb)"
        return Finding(what, "warning", message, jobs)
    has = "a GPU has" if machine.gpus else "no GPU; the machine has"
    message = f"{about}; {has} {machine.gb:.0f} GB"
    return Finding(what, _verdict(need / GB, machine.gb), message, jobs)


def _verdict(need: float, there: float, uncertainty: float = UNCERTAINTY) -> Verdict:
    if need > uncertainty * there:
        return "error"
    return "warning" if need * uncertainty > there else "ok"


def _disk(plan: Plan) -> Iterator[Finding]:
    """Sum what will be written to the disks of `results/` and of the hub's cache."""
    from huggingface_hub import constants

    cost, written, cached = plan.cost(plan.jobs), Counter[str](), Counter[str]()
    for job in plan.jobs:
        written[_KINDS.get(job.rule, "runs")] += round(plan.cost([job]).disk)
    written["checkpoints or embeddings of one job"] = round(cost.peak)
    for source, size in cost.cached.items():
        cached[f"{source.what}s"] += round(size)
    places = [("results", Path("results"), written), ("hub cache", Path(constants.HF_HOME), cached)]
    for what, place, amounts in places:
        there = next(one for one in (place, *place.absolute().parents) if one.exists())
        need, free = amounts.total() / GB, shutil.disk_usage(there).free / GB
        shares = ", ".join(f"{key} {value / GB:.1f}" for key, value in amounts.items() if value)
        if shares:
            message = f"about {need:.1f} GB ({shares}); {place} has {free:.0f} GB free"
            yield Finding(f"disk, {what}", _verdict(need, free), message, plan.jobs)


def _lucene(plan: Plan) -> Iterator[Finding]:
    from revela.evaluation.lucene import java_and_jar

    def answer() -> str:
        java, jar = java_and_jar()
        subprocess.run([java, "-version"], capture_output=True, timeout=10, check=True)
        return f"{java}, {jar.name}"

    models = plan.config.models
    if jobs := [job for job in plan.jobs if isinstance(models.get(job.name), LuceneModel)]:
        yield _tried("Java and Lucene", answer, jobs)


def _lm_eval(plan: Plan) -> Iterator[Finding]:
    task = plan.config.task
    jobs = [job for job in plan.jobs if job.task and isinstance(task(job.task), LmEvalBenchmark)]
    if jobs and importlib.util.find_spec("lm_eval") is None:
        message = "the package lm-eval is missing: pip install 'revela[lm-eval]'"
        yield Finding("lm-eval", "error", message, jobs)


def _partition(plan: Plan) -> Iterator[Finding]:
    if name := plan.machine.partition:
        with_gpus = plan.machine.gpus > 0
        yield _tried(f"partition {name}", lambda: partition_resources(name, with_gpus), plan.jobs)


def _tried(what: str, answer: Callable[[], str], jobs: Sequence[Job]) -> Finding:
    """Return a tool's answer as a finding; a RevelaError becomes an error."""
    try:
        return Finding(what, "ok", answer(), jobs)
    except (RevelaError, OSError, subprocess.SubprocessError) as error:
        return Finding(what, "error", str(error), jobs)
