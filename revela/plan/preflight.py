"""Looked at before hours are spent: what the targets need, and whether it is there.

    targets → what they need → hub, models' shapes, memory, disk, Java, cluster → one table

A finding is fine, doubtful or a problem; only problems fail.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.hub import Hub
from revela.config.file import Config
from revela.config.steps import (
    ApiModel,
    EncoderModel,
    Experiment,
    LanguageModel,
    LmEvalBenchmark,
    LuceneModel,
    MtebBenchmark,
)
from revela.plan import estimates
from revela.plan.estimates import GB, UNCERTAINTY, Collection, Models, Shape
from revela.plan.machine import Machine, partition_resources
from revela.plan.needs import Needs, needs_of, tasks_of
from revela.text.corpora import local_files
from revela.training import trackers

_UNKNOWN = "memory and time unknown: no config.json of its model"

Verdict = Literal["fine", "doubtful", "problem"]


@dataclass(frozen=True)
class Finding:
    """A line of the table."""

    what: str
    verdict: Verdict
    told: str
    gpu_hours: float | None = None


# ---------------------------------------------------------------------------- the check


def check(config: Config, targets: Iterable[str], machine: Machine, tflops: float) -> list[Finding]:
    """Return what was found, in the order of a run.

    Args:
        config: the configuration.
        targets: see `needs_of`.
        machine: what jobs will run on.
        tflops: 10¹² floating-point operations a second that one GPU does.

    Raises:
        RevelaError: a target is unknown.
    """
    needs = needs_of(config, targets)
    hub = Hub()
    shape = _shapes(config, hub)
    models, data = _models(config, needs), _data_sets(config, needs)
    findings = [
        *_reached(hub, models, data),
        *_local(config, needs),
        *_trainings(config, needs, machine, shape, tflops),
        *_evaluations(config, needs, machine, shape, tflops),
        *_disk(config, needs, shape, models),
        *_tools(config, needs),
        *_cluster(machine),
    ]
    return findings or [Finding("nothing", "fine", "all that was asked for is there")]


Repository = tuple[str, str | None]  # name and revision


def _is_local(config: Config, name: str) -> bool:
    local = name.startswith((".", "/", "data/", "results/")) or Path(name).is_dir()
    return local or name in config.backbones or name in config.experiments


def _models(config: Config, needs: Needs) -> set[Repository]:
    """Return the models of the hub that are loaded, adapters among them."""
    found: set[Repository] = set()
    for name in needs.experiments:
        experiment = config.experiments[name]
        found |= {(n, None) for n in (experiment.retriever, experiment.language_model) if n}
    for name in {model for model, _ in needs.scores}:
        entry = config.models.get(name)
        if entry is None:
            found.add((config.experiments[name.partition("@")[0]].retriever, None))
        elif isinstance(entry, EncoderModel):
            found.add((entry.retriever, None if entry.adapter else entry.revision))
            found |= {(entry.adapter, entry.revision)} if entry.adapter else set()
        elif isinstance(entry, LanguageModel):
            found.add((entry.language_model, entry.revision))
    return {(name, revision) for name, revision in found if not _is_local(config, name)}


def _data_sets(config: Config, needs: Needs) -> set[Repository]:
    found: set[Repository] = set()
    for name in needs.corpora:
        corpus = config.corpora[name]
        if corpus.source == "hub":
            found.add((corpus.dataset, corpus.revision))
    found |= {(hub, None) for name in needs.batches if (hub := config.batches[name].hub)}
    for task in {task for _, task in needs.scores}:
        suite = config.benchmarks[tasks_of(config)[task]]
        if isinstance(suite, MtebBenchmark):
            import mteb

            described = mteb.get_task(task).metadata.dataset
            found.add((described["path"], described.get("revision")))
        elif isinstance(suite, LmEvalBenchmark):
            from revela.config.catalogue import lm_eval_data_set, lm_eval_task_files

            files = lm_eval_task_files(suite.path)
            path = lm_eval_data_set(files[task]) if task in files else None
            found |= {(path, None)} if path and "/" in path else set()
    return found


def _reached(hub: Hub, models: set[Repository], data: set[Repository]) -> list[Finding]:
    """Tell how many repositories can be read; a line for each that cannot."""
    found = []
    if hub.unreachable and (models or data):
        found.append(Finding("hub", "problem", f"{hub.address} cannot be reached"))
    where = "in the local cache" if hub.offline else f"on {hub.address}"
    for what, repositories in (("model", models), ("data set", data)):
        told = hub.problems(what, sorted(repositories, key=str))
        if fine := told.count(None):
            found.append(Finding("hub", "fine", f"{fine} of {len(told)} {what}s {where}"))
        found += [Finding("hub", "problem", problem) for problem in told if problem]
    return found


ShapeOf = Callable[[str | None], Shape | None]


def _shapes(config: Config, hub: Hub) -> ShapeOf:
    """Return what tells the shape of a backbone, a hub name or a folder, None if unknown."""

    @functools.cache
    def shape(name: str | None) -> Shape | None:
        if name in config.backbones:
            return Shape.of_backbone(config.backbones[name])
        described = hub.config(name) if name else None
        try:
            return Shape.of(described) if described else None
        except KeyError:
            return None

    return shape


def _local(config: Config, needs: Needs) -> list[Finding]:
    """Look for folders and files of the user's own that are named."""
    found = []
    named = set()
    for experiment in map(config.experiments.__getitem__, needs.experiments):
        named |= {experiment.retriever, experiment.language_model or ""}
    for name in needs.corpora:
        corpus = config.corpora[name]
        try:
            if corpus.source == "files":
                local_files(corpus)
        except RevelaError as error:
            found.append(Finding(f"corpus {name}", "problem", str(error)))
    files = {str(config.batches[name].file or "") for name in needs.batches}
    for model, task in needs.scores:
        entry, suite = config.models.get(model), config.benchmarks[tasks_of(config)[task]]
        if isinstance(entry, EncoderModel):
            named |= {entry.retriever, entry.adapter or ""}
        if suite.source == "folder":
            files.add(f"{suite.path}/{task}")
    made = ("results/",)
    folders = {n for n in named if n.startswith((".", "/", "data/")) and not n.startswith(made)}
    for name in sorted(files | folders):
        if name and not Path(name).exists():
            found.append(Finding("files", "problem", f"{name}: no such file or folder"))
    for tracker in trackers.chosen() if needs.experiments else []:
        if problem := trackers.missing(tracker):
            found.append(Finding(tracker, "problem", problem))
    return found


def _trainings(
    config: Config, needs: Needs, machine: Machine, shape: ShapeOf, tflops: float
) -> list[Finding]:
    found = []
    for name in config.experiments:
        if name not in needs.experiments:
            continue
        experiment = config.experiments[name]
        found += _divides(name, experiment, machine)
        retriever = shape(experiment.retriever)
        language_model = shape(experiment.language_model) if experiment.language_model else None
        if retriever is None or (experiment.language_model and language_model is None):
            found.append(Finding(f"train {name}", "doubtful", _UNKNOWN))
            continue
        models = Models(retriever, language_model)
        size = estimates.row_size(config, experiment)
        need = estimates.training_memory(experiment, models, size, machine.gpus > 0) / GB
        rows = estimates.rows_trained(config, experiment)
        hours = None
        if rows:
            hours = estimates.training_flops(experiment, models, size, rows) / tflops / 3.6e15
        found.append(_fits(f"train {name}", need, machine, hours))
    return found


def _divides(name: str, experiment: Experiment, machine: Machine) -> list[Finding]:
    together = max(1, machine.gpus) * experiment.batches_per_device
    if experiment.batches_per_step % together == 0:
        return []
    told = (
        f"batches_per_step {experiment.batches_per_step} is not divisible by {machine.gpus} GPUs "
        f"× batches_per_device {experiment.batches_per_device}"
    )
    return [Finding(f"train {name}", "problem", told)]


def _fits(what: str, need: float, machine: Machine, gpu_hours: float | None) -> Finding:
    """Compare gigabytes needed with what one GPU has, or the machine without one."""
    if machine.gb is None:
        told = f"about {need:.1f} GB a GPU; what a GPU has is not told (gpu_memory)"
        return Finding(what, "doubtful", told, gpu_hours)
    told = f"about {need:.1f} GB; {machine.name} has {machine.gb:.0f} GB"
    return Finding(what, _verdict(need, machine.gb), told, gpu_hours)


def _verdict(need: float, there: float) -> Verdict:
    if need > UNCERTAINTY * there:
        return "problem"
    return "doubtful" if need * UNCERTAINTY > there else "fine"


def _evaluations(
    config: Config, needs: Needs, machine: Machine, shape: ShapeOf, tflops: float
) -> list[Finding]:
    found = []
    for name in config.evaluated:
        tasks = sorted(task for model, task in needs.scores if model == name)
        if not tasks:
            continue
        own = _evaluated_shape(config, name, shape)
        entry = config.models.get(name)
        what = f"evaluate {name}"
        if isinstance(entry, ApiModel):
            lacks = not os.environ.get(entry.key)
            told = f"{entry.key} is {'not ' if lacks else ''}in the environment"
            found.append(Finding(what, "problem" if lacks else "fine", told))
        elif isinstance(own, Shape):
            need = estimates.encoding_memory(own, gpu=machine.gpus > 0)
            flops = sum(
                2.0 * own.parameters() * size.tokens(_longest(config, name, task))
                for task in tasks
                if (size := _collection(config, task))
            )
            found.append(_fits(what, need / GB, machine, flops / tflops / 3.6e15))
        elif own == "unknown":
            found.append(Finding(what, "doubtful", _UNKNOWN))
    return found


def _evaluated_shape(config: Config, name: str, shape: ShapeOf) -> Shape | str | None:
    """Return the shape of what is evaluated, None for BM25 and APIs."""
    entry = config.models.get(name)
    if entry is None:
        backbone = config.experiments[name.partition("@")[0]].retriever
    elif isinstance(entry, EncoderModel):
        backbone = entry.retriever
    elif isinstance(entry, LanguageModel):
        backbone = entry.language_model
        if backbone in config.experiments:
            backbone = config.experiments[backbone].language_model or backbone
    else:
        return None
    return shape(backbone) or "unknown"


def _longest(config: Config, model: str, task: str) -> int:
    """Return the tokens of a text at most when a model is evaluated on a task."""
    suite: Any = config.benchmarks[tasks_of(config)[task]]
    own = getattr(config.models.get(model), "max_length", None)
    longest = getattr(suite, "max_length", 2048)
    return min(own or longest, longest)


def _collection(config: Config, task: str) -> Collection | None:
    """Return the size of a task's texts as mteb describes them, None where it does not."""
    suite = config.benchmarks[tasks_of(config)[task]]
    if not isinstance(suite, MtebBenchmark):
        return None
    import mteb

    stats = list((mteb.get_task(task).metadata.descriptive_stats or {}).values())
    counted = [(s.get("num_samples"), s.get("number_of_characters")) for s in stats]
    documents, characters = (sum(n or 0 for n in column) for column in zip(*counted, strict=True))
    return Collection(documents, characters) if documents else None


def _disk(config: Config, needs: Needs, shape: ShapeOf, models: set[Repository]) -> list[Finding]:
    """Add up what will be written, on the disk of `results/` and on that of the hub's cache."""
    from huggingface_hub import constants

    trained, checkpoints = 0.0, 0.0
    for name in needs.experiments:
        experiment = config.experiments[name]
        if retriever := shape(experiment.retriever):
            both = Models(retriever, shape(experiment.language_model))
            weights = estimates.trained_parameters(experiment, both)
            trained += 4 * weights
            # Weights and two moments; the new one stands before the oldest one goes.
            checkpoints = max(checkpoints, 12 * weights * (experiment.checkpoints_kept + 1))
    # Chunks, and the batches that are made of them.
    data = 2 * sum(estimates.data_bytes(config, "batches", name) for name in needs.batches)
    data += sum(estimates.data_bytes(config, "pairs", name) for name in needs.pairs)
    sizes = {task: size for _, task in needs.scores if (size := _collection(config, task))}
    embeddings = 0.0
    for model, task in needs.scores:
        evaluated = _evaluated_shape(config, model, shape)
        if isinstance(evaluated, Shape) and task in sizes:
            embeddings = max(embeddings, 2 * evaluated.hidden * sizes[task].documents)
    own = {
        "data": data,
        "models": trained,
        "checkpoints of one": checkpoints,
        "embeddings of one": embeddings,
    }
    loaded = [one for one in (shape(name) for name, _ in models) if one]
    cached = {
        "models": float(sum(2 * one.parameters(head=True) for one in loaded)),
        "tasks": float(2 * sum(size.characters for size in sizes.values())),
    }
    places = [("results", Path("results"), own), ("hub cache", Path(constants.HF_HOME), cached)]
    found = []
    for what, place, amounts in places:
        need, free = sum(amounts.values()) / GB, _free(place) / GB
        parts = ", ".join(f"{key} {value / GB:.1f}" for key, value in amounts.items() if value)
        if parts:
            told = f"about {need:.1f} GB ({parts}); {place} has {free:.0f} GB free"
            found.append(Finding(f"disk, {what}", _verdict(need, free), told))
    return found


def _free(place: Path) -> int:
    place = place.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _tools(config: Config, needs: Needs) -> list[Finding]:
    """Look for Java and Lucene, and for lm-eval, where they are needed."""
    found = []
    suites = {config.benchmarks[tasks_of(config)[task]].source for _, task in needs.scores}
    if any(isinstance(config.models.get(model), LuceneModel) for model, _ in needs.scores):
        from revela.evaluation.lucene import jar_path, java_path

        try:
            java, jar = java_path(), jar_path()
            subprocess.run([java, "-version"], capture_output=True, timeout=10, check=True)
            found.append(Finding("Java and Lucene", "fine", f"{java}, {jar.name}"))
        except RevelaError as error:
            found.append(Finding("Java and Lucene", "problem", str(error)))
        except (OSError, subprocess.SubprocessError) as error:
            found.append(Finding("Java and Lucene", "problem", f"{java} does not run: {error}"))
    if "lm-eval" in suites and importlib.util.find_spec("lm_eval") is None:
        told = "the package lm-eval is missing: pip install 'revela[lm-eval]'"
        found.append(Finding("lm-eval", "problem", told))
    return found


def _cluster(machine: Machine) -> list[Finding]:
    if not machine.partition:
        return []
    what = f"partition {machine.partition}"
    try:
        told = partition_resources(machine.partition, gpus=machine.gpus > 0)
    except RevelaError as error:
        return [Finding(what, "problem", str(error))]
    return [Finding(what, "fine", told)]


# ---------------------------------------------------------------------------- telling


def run(
    config: Config, targets: Iterable[str], machine: Machine, tflops: float, output: Path | None
) -> None:
    """Check, print what was found as one table, and write it as JSON where an output is named.

    Raises:
        RevelaError: there are problems; each is one line on stderr.
    """
    findings = check(config, targets, machine, tflops)
    _show(findings, machine, tflops)
    if output:
        found = [vars(finding) for finding in findings]
        outputs.write_json(output, {"machine": vars(machine), "tflops": tflops, "findings": found})
    problems = [f"{one.what}: {one.told}" for one in findings if one.verdict == "problem"]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        raise RevelaError(f"preflight: {len(problems)} not as needed: a line each above")


def _show(findings: list[Finding], machine: Machine, tflops: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Preflight", show_header=False)
    for justify in ("left", "left", "left", "right"):
        table.add_column(justify=justify, overflow="fold")
    colours = {"fine": "green", "doubtful": "yellow", "problem": "red"}
    for one in _grouped(findings):
        hours = f"{one.gpu_hours:,.1f} GPU-hours" if (one.gpu_hours or 0) >= 0.1 else ""
        table.add_row(one.what, f"[{colours[one.verdict]}]{one.verdict}[/]", one.told, hours)
    console.print(table)
    total = sum(one.gpu_hours or 0 for one in findings)
    if total >= 1:
        gpus = f", {total / machine.gpus:,.0f} hours on {machine.gpus}" if machine.gpus else ""
        console.print(
            f"about {total:,.0f} GPU-hours{gpus}, at {tflops:.0f} TFLOP/s a GPU "
            f"(the paper's 44 and 48 hours on 4 A100 come to {estimates.PAPER_TFLOPS:.0f})",
            highlight=False,
        )


def _grouped(findings: list[Finding]) -> list[Finding]:
    """Put evaluations that are told alike, unknown trainings, what the hub lacks in a line each."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        kind = one.what.partition(" ")[0]
        if kind == "evaluate" or (kind == "train" and one.told == _UNKNOWN):
            groups.setdefault((kind, one.told), []).append(one)
        elif one.what == "hub" and one.verdict == "problem":
            groups.setdefault(("hub", "lacks"), []).append(one)
        else:
            groups[one.what, one.told] = [one]
    return [_together(own) for own in groups.values()]


def _together(own: list[Finding]) -> Finding:
    first, more = own[0], len(own) - 1
    if not more:
        return first
    if first.what == "hub":
        return Finding("hub", "problem", f"{first.told}, and {more} more")
    hours = [one.gpu_hours for one in own if one.gpu_hours is not None]
    what = f"{first.what} and {more} more"
    return Finding(what, first.verdict, first.told, sum(hours) if hours else None)
