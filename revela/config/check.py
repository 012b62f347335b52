"""Checks the references between the entries of a configuration."""

import graphlib
import itertools
from typing import Any

from pydantic import BaseModel

from revela.common.errors import RevelaError, check_name, errors_at
from revela.config.catalogue import (
    RETRIEVAL_MEASURES,
    lm_eval_task_files,
    mteb_subsets,
    mteb_task_names,
)
from revela.config.evaluation import (
    AnyBenchmark,
    Benchmark,
    HybridModel,
    LanguageModel,
    LmEvalBenchmark,
    MtebBenchmark,
)
from revela.config.file import Config
from revela.config.names import Name, references
from revela.config.printed import read_listing, read_notes, read_reported
from revela.config.report import DynamicsFigure, LearningFigure

_WRITTEN = {
    "models": ["models/{}"],
    "experiments": ["models/{}"],
    "tables": ["tables/{}_significance", "tables/{}_vs_paper", "tables/{}"],
    "listings": ["tables/{}"],
}
"""What the entries of sections that share a folder write."""


def check_references(config: Config) -> None:
    """Check references between entries."""
    for section, entries in config:
        for name, entry in entries.items():
            _check_names(f"{section}.{name}", entry, config)
    taken = {"tables/usage": "the table of GPU-hours"}
    for section, written in _WRITTEN.items():
        for name, path in itertools.product(getattr(config, section), written):
            entry = f"{section}.{name}"
            if (other := taken.setdefault(path.format(name), entry)) != entry:
                raise RevelaError(f"{entry}: the name is taken by {other}")
    _check_circles(config, "batches", "sample_from")
    _check_circles(config, "experiments", "language_model")
    for name, batches in config.batches.items():
        for other in batches.sample_from:
            part, size = batches.batch_size, config.batches[other].batch_size
            if size % part:
                uneven = f"{part} does not divide batch_size {size} of batch set {other!r}"
                raise RevelaError(f"batches.{name}.batch_size: {uneven}")
    for name, trained in config.experiments.items():
        data, on_pairs = trained.data, trained.objective.on_pairs
        if on_pairs and not config.pairs[data].negatives and trained.batches_per_device == 1:
            raise RevelaError(
                f"experiments.{name}.batches_per_device: must be above 1, for in-batch negatives, "
                f"since pairs.{data} has no others"
            )
        sources = config.pairs[data].corpora if on_pairs else config.sources_of(data)
        for source in trained.first_half:
            check_name(f"experiments.{name}.first_half", f"source of {data!r}", source, sources)
    benchmark_of: dict[str, str] = {}
    for name, suite in config.benchmarks.items():
        _check_tasks(f"benchmarks.{name}", suite, config)
        for task in suite.tasks:
            if known := benchmark_of.get(task):
                raise RevelaError(
                    f"benchmarks.{name}.tasks: {task!r} is a task of {known!r} already"
                )
            benchmark_of[task] = name
    for name, hybrid in config.hybrids.items():
        _check_hybrid(f"models.{name}", config, hybrid)
    for name in config.tables:
        _check_table(f"tables.{name}", config, name)
    for name, listing in config.listings.items():
        with errors_at(f"listings.{name}"):
            read_listing(listing)
    for name, figure in config.figures.items():
        if isinstance(figure, LearningFigure):
            where = f"figures.{name}.measure"
            check_name(where, "measure", figure.measure, RETRIEVAL_MEASURES)
            _check_tuned(f"figures.{name}.start", config, figure.start or "", figure.task)
        if isinstance(figure, DynamicsFigure):
            shown = config.experiments[figure.experiment]
            if not shown.similarity_snapshot_steps or shown.objective.name != "revela":
                needed = "must be a revela experiment with similarity_snapshot_steps"
                raise RevelaError(f"figures.{name}.experiment: {figure.experiment!r} {needed}")


def _check_names(where: str, value: Any, config: Config) -> None:
    """Check that the entries exist that a value names; `where` is the key that holds it."""
    if isinstance(value, Name):
        if value.section:
            check_name(where, value.what, value, getattr(config, value.section))
    elif isinstance(value, BaseModel | dict):
        for key, item in value.items() if isinstance(value, dict) else value:
            _check_names(where, key, config)
            _check_names(f"{where}.{key}", item, config)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            index = f".{number}" if isinstance(item, BaseModel) else ""
            _check_names(where + index, item, config)


def _check_circles(config: Config, section: str, key: str) -> None:
    entries = getattr(config, section).items()
    uses = {name: list(references(getattr(entry, key))) for name, entry in entries}
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        message = f"circular: {' → '.join(circle)}"
        raise RevelaError(f"{section}.{circle[0]}.{key}: {message}") from error


def _check_tasks(where: str, suite: AnyBenchmark, config: Config) -> None:
    what, known = "task", frozenset(suite.tasks)
    if isinstance(suite, MtebBenchmark):
        for task in suite.instructions:
            check_name(f"{where}.instructions", what, task, known)
        what, known = "mteb retrieval task", mteb_task_names()
    if isinstance(suite, Benchmark):
        shares, where_from = suite.shares_corpus, f"{where}.shares_corpus"
        pairs = dict.fromkeys(suite.tasks, shares) if isinstance(shares, str) else shares
        for task, other in pairs.items():
            check_name(where_from, "task", task, suite.tasks)
            check_name(where_from, "retrieval task", other, config.retrieval_tasks)
            if config.shares_corpus(other):
                raise RevelaError(f"{where_from}: {other!r} itself shares another's corpus")
    if isinstance(suite, LmEvalBenchmark):
        # If lm-eval is not installed its tasks are unknown; the command reports it.
        files = lm_eval_task_files(suite.path)
        if files or suite.path:
            what, known = "task of lm-eval", frozenset(files)
    for task in suite.tasks:
        check_name(f"{where}.tasks", what, task, known)


def _check_hybrid(where: str, config: Config, hybrid: HybridModel) -> None:
    for number, part in enumerate(hybrid.of):
        kind = config.model(part).kind
        allowed = ("encoder", "api") if number else ("bm25s", "lucene")
        if kind not in allowed:
            raise RevelaError(
                f"{where}.of: {part!r} is of kind {kind}; allowed here: {' or '.join(allowed)}"
            )
    if hybrid.tuned_on:
        for task in config.benchmarks[hybrid.tuned_on].tasks:
            check_name(f"{where}.tuned_on", "retrieval task", task, config.retrieval_tasks)


def _check_tuned(where: str, config: Config, model: str, task: str) -> None:
    if model in config.hybrids and not config.tuning_tasks(model, task):
        raise RevelaError(
            f"{where}: {model!r} needs a task other than {task!r} to choose its weight: set "
            f"models.{model}.tuned_on to a benchmark with others"
        )


def _check_table(where: str, config: Config, name: str) -> None:
    known = [*config.tasks, *config.benchmarks]
    for entry in (entry for _, entries in config.tables[name].columns for entry in entries):
        task, _, subset = entry.partition(":")
        check_name(f"{where}.columns", "task or benchmark", task, known)
        if subset:
            check_name(f"{where}.columns", f"subset of {task}", subset, mteb_subsets(task))
    table, retrieval_tasks = config.table(name), config.retrieval_tasks
    if set(retrieval_tasks) & set(table.tasks()):
        check_name(f"{where}.measure", "measure", table.measure, RETRIEVAL_MEASURES)
    models = [model for row in config.tables[name].rows for model in row.model]
    for model, task in itertools.product(models, table.tasks()):
        is_language_model = isinstance(config.model(model), LanguageModel)
        if is_language_model == (task in retrieval_tasks):
            not_one = "" if is_language_model else "not "
            wrong = f"task {task!r} cannot be measured on {model!r}, {not_one}a language model"
            raise RevelaError(f"{where}.rows: {wrong}")
        _check_tuned(f"{where}.rows", config, model, task)
    if table.reported:
        with errors_at(f"{where}.reported"):
            read_reported(table)
        with errors_at(f"{where}.notes"):
            read_notes(table)
