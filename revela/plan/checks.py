"""The checks of preflight, a function each: what jobs need, and whether it is there.

A finding is ok, a warning or an error, and names the jobs that it concerns.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from revela.common.errors import RevelaError
from revela.config.file import Config
from revela.config.steps import ApiModel, LmEvalBenchmark, LuceneModel
from revela.plan import estimates
from revela.plan.costs import Cost, Plan
from revela.plan.counts import Rows
from revela.plan.estimates import GB, UNCERTAINTY
from revela.plan.jobs import SECTIONS, Job, backbone_of
from revela.plan.machine import Machine, partition_resources
from revela.training import trackers

_UNKNOWN = "memory and time unknown: no config.json of its model"

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """A line of the table."""

    what: str
    verdict: Verdict
    message: str
    jobs: tuple[Job, ...] = ()


def check(plan: Plan) -> list[Finding]:
    """Return what was found, in the order of a run."""
    checks = [_hub, _trackers, _counts, _trainings, _evaluations, _disk, _lucene, _lm_eval,
              _partition]  # fmt: skip
    found = [finding for one in checks for finding in one(plan)]
    return found or [Finding("nothing", "ok", "these jobs need nothing that could be missing")]


def _hub(plan: Plan) -> Iterator[Finding]:
    """Say how many repositories can be read; a finding for each that cannot."""
    hub = plan.hub
    needed = {what: plan.sources(what) for what in ("model", "data set")}
    if hub.unreachable and any(needed.values()):
        every = tuple(job for own in needed.values() for jobs in own.values() for job in jobs)
        yield Finding("hub", "error", f"{hub.address} cannot be reached", every)
    where = "in the local cache" if hub.offline else f"on {hub.address}"
    for what, own in needed.items():
        problems = hub.problems(what, [(source.name, source.revision) for source in own])
        if readable := problems.count(None):
            yield Finding("hub", "ok", f"{readable} of {len(own)} {what}s {where}")
        for problem, jobs in zip(problems, own.values(), strict=True):
            if problem:
                yield Finding("hub", "error", problem, jobs)


def _trackers(plan: Plan) -> Iterator[Finding]:
    trainings = tuple(job for job in plan.jobs if job.rule == "train")
    for tracker in trackers.chosen() if trainings else []:
        if problem := trackers.missing(tracker):
            yield Finding(tracker, "error", problem, trainings)


def _counts(plan: Plan) -> Iterator[Finding]:
    """Compare the batches and pairs that are asked for with those that can be made."""
    for rule in ("batch", "pair"):
        section = SECTIONS[rule]
        for name, jobs in plan.of(rule).items():
            rows, what = plan.counts.data(section, name), f"{section} {name}"
            if rows is None:
                message = "unknown how many: a corpus has no published counts and cannot be read"
                yield Finding(what, "warning", message, jobs)
            elif rows.margin is not None:
                verdict = _verdict(1, rows.margin)
                if rows.exact:
                    verdict = "ok" if rows.margin >= 1 else "error"
                if verdict != "ok":
                    yield Finding(what, verdict, _short(plan.config, section, name, rows), jobs)


def _short(config: Config, section: str, name: str, rows: Rows) -> str:
    entry = getattr(config, section)[name]
    if getattr(entry, "sample_from", None):
        asked = ", ".join(f"{count:,} of {other}" for other, count in entry.sample_from.items())
        return f"sample_from asks for {asked}; there are {rows.margin:.2f} for each"
    about = "" if rows.exact else "about "
    chunks = f": {about}{rows.chunks:,.0f} chunks" if rows.chunks else ""
    return f"num_{section} asks for {rows.asked:,} of {about}{rows.available:,.0f}{chunks}"


def _trainings(plan: Plan) -> Iterator[Finding]:
    """Check that the GPUs divide a step, and that each has the memory for its share."""
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
            size = plan.row_size(name)
            need = estimates.training_memory(experiment, models, size, machine.has_bfloat16)
        yield _memory(f"train {name}", need, machine, jobs)


def _evaluations(plan: Plan) -> Iterator[Finding]:
    """Look for the keys of APIs, and for the memory to encode texts."""
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


def _memory(what: str, need: float | None, machine: Machine, jobs: tuple[Job, ...]) -> Finding:
    """Compare bytes needed with what one GPU has, or the machine without one."""
    if need is None:
        return Finding(what, "warning", _UNKNOWN, jobs)
    about = f"about {need / GB:.1f} GB"
    if machine.gb is None:
        message = f"{about} a GPU; what a GPU has is unknown (gpu_memory_gb)"
        return Finding(what, "warning", message, jobs)
    message = f"{about}; {machine.name} has {machine.gb:.0f} GB"
    return Finding(what, _verdict(need / GB, machine.gb), message, jobs)


def _verdict(need: float, there: float) -> Verdict:
    if need > UNCERTAINTY * there:
        return "error"
    return "warning" if need * UNCERTAINTY > there else "ok"


def _disk(plan: Plan) -> Iterator[Finding]:
    """Add up what will be written, on the disk of `results/` and on that of the hub's cache."""
    from huggingface_hub import constants

    def cost(*rules: str) -> Cost:
        return plan.cost(job for job in plan.jobs if job.rule in rules)

    data, trained = cost("chunk", "batch", "pair"), cost("pretrain", "train")
    evaluated = cost("evaluate", "evaluate_language_model")
    own = {
        "data": data.disk,
        "models": trained.disk,
        "runs": evaluated.disk,
        "checkpoints of one": trained.peak,
        "embeddings of one": evaluated.peak,
    }
    fetched = (trained + evaluated).fetched
    loaded = {source.name for source in plan.sources("model")}
    models = sum(size for name, size in fetched.items() if name in loaded)
    cached = {
        "models": models,
        # As they are fetched, and as they are prepared.
        "tasks": 2 * (sum(fetched.values()) - models),
        "data": sum(data.fetched[name] for name in data.fetched if _stays(plan.config, name)),
    }
    places = [("results", Path("results"), own), ("hub cache", Path(constants.HF_HOME), cached)]
    for what, place, amounts in places:
        need, free = sum(amounts.values()) / GB, _free(place) / GB
        shares = ", ".join(f"{key} {value / GB:.1f}" for key, value in amounts.items() if value)
        if shares:
            message = f"about {need:.1f} GB ({shares}); {place} has {free:.0f} GB free"
            yield Finding(f"disk, {what}", _verdict(need, free), message, tuple(plan.jobs))


def _stays(config: Config, name: str) -> bool:
    """Tell whether a data set is kept as a file in the cache; corpora without one are streamed."""
    return name not in config.corpora or bool(getattr(config.corpora[name], "file", None))


def _free(place: Path) -> int:
    place = place.absolute()
    there = next(one for one in (place, *place.parents) if one.exists())
    return shutil.disk_usage(there).free


def _lucene(plan: Plan) -> Iterator[Finding]:
    models = plan.config.models
    jobs = tuple(job for job in plan.jobs if isinstance(models.get(job.name), LuceneModel))
    if not jobs:
        return
    from revela.evaluation.lucene import java_and_jar

    try:
        java, jar = java_and_jar()
        subprocess.run([java, "-version"], capture_output=True, timeout=10, check=True)
        yield Finding("Java and Lucene", "ok", f"{java}, {jar.name}")
    except (RevelaError, OSError, subprocess.SubprocessError) as error:
        yield Finding("Java and Lucene", "error", str(error), jobs)


def _lm_eval(plan: Plan) -> Iterator[Finding]:
    task = plan.config.task
    jobs = [job for job in plan.jobs if job.task and isinstance(task(job.task), LmEvalBenchmark)]
    if jobs and importlib.util.find_spec("lm_eval") is None:
        message = "the package lm-eval is missing: pip install 'revela[lm-eval]'"
        yield Finding("lm-eval", "error", message, tuple(jobs))


def _partition(plan: Plan) -> Iterator[Finding]:
    if not (name := plan.machine.partition):
        return
    try:
        resources = partition_resources(name, gpus=plan.machine.gpus > 0)
        yield Finding(f"partition {name}", "ok", resources)
    except RevelaError as error:
        yield Finding(f"partition {name}", "error", str(error), tuple(plan.jobs))
