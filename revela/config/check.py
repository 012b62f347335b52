"""Checks a configuration: references between entries, and the local files that they name."""

import functools
import graphlib
import itertools
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from revela.common.errors import RevelaError, check_name, errors_at
from revela.common.hub import read_model_json
from revela.common.outputs import read_json
from revela.config import paths
from revela.config.catalogue import (
    RETRIEVAL_MEASURES,
    lm_eval_task_files,
    mteb_subsets,
    mteb_task_names,
)
from revela.config.evaluation import (
    AnyBenchmark,
    Benchmark,
    FolderBenchmark,
    LanguageModel,
    LmEvalBenchmark,
    MtebBenchmark,
)
from revela.config.file import Config
from revela.config.local import (
    collection_files,
    corpus_files,
    model_files,
    not_a_language_model,
    not_an_encoder,
)
from revela.config.names import ModelRef, Name, references
from revela.config.printed import read_listing, read_reported
from revela.config.report import DynamicsFigure, LearningFigure

_WRITTEN = (
    {"models": [""], "experiments": [""]},
    {"tables": ["_significance", "_vs_paper", ""], "listings": [""]},
)
"""Sections that write to one folder: files with the entry's name and these endings."""


def check_references(config: Config) -> None:
    """Check references between entries, and the files that they name."""
    for section, entries in config:
        for name, entry in entries.items():
            _check_names(f"{section}.{name}", entry, config)
    for sections in _WRITTEN:
        taken = {"usage": "the table of GPU-hours"} if "tables" in sections else {}
        for section, endings in sections.items():
            for name, ending in itertools.product(getattr(config, section), endings):
                entry = f"{section}.{name}"
                if (other := taken.setdefault(f"{name}{ending}", entry)) != entry:
                    raise RevelaError(f"{entry}: the name is taken by {other}")
    _check_circles(config, "batches", "sample_from")
    _check_circles(config, "experiments", "language_model")
    for name, batches in config.batches.items():
        for other in batches.sample_from:
            own, size = batches.batch_size, config.batches[other].batch_size
            if size % own:
                uneven = f"{own} does not divide batch_size {size} of batch set {other!r}"
                raise RevelaError(f"batches.{name}.batch_size: {uneven}")
    for name, trained in config.experiments.items():
        on_pairs = trained.objective.on_pairs
        negatives = config.pairs[trained.data].negatives if on_pairs else None
        if negatives == 0 and trained.batches_per_device == 1:
            raise RevelaError(
                f"experiments.{name}.batches_per_device: must be above 1, for in-batch negatives, "
                f"since pairs.{trained.data} has no others"
            )
        data = trained.data
        sources = config.pairs[data].corpora if on_pairs else config.sources_of(data)
        for source in trained.first_half:
            check_name(f"experiments.{name}.first_half", f"source of {data!r}", source, sources)
    benchmark_of: dict[str, str] = {}
    for name, suite in config.benchmarks.items():
        _check_tasks(f"benchmarks.{name}", suite)
        for task in suite.tasks:
            if task in benchmark_of:
                other = benchmark_of[task]
                where = "listed twice" if other == name else f"also a task of {other!r}"
                raise RevelaError(f"benchmarks.{name}.tasks: {task!r} is {where}")
            benchmark_of[task] = name
    for name in config.tables:
        _check_table(f"tables.{name}", config, name)
    for name, listing in config.listings.items():
        with errors_at(f"listings.{name}"):
            read_listing(listing)
    for name, figure in config.figures.items():
        if isinstance(figure, LearningFigure):
            where = f"figures.{name}.measure"
            check_name(where, "measure", figure.measure, RETRIEVAL_MEASURES)
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


def _check_tasks(where: str, suite: AnyBenchmark) -> None:
    what, known = "task", frozenset(suite.tasks)
    if isinstance(suite, MtebBenchmark):
        for task in suite.instructions:
            check_name(f"{where}.instructions", what, task, known)
        what, known = "mteb retrieval task", mteb_task_names()
    if isinstance(suite, Benchmark):
        shares = suite.shares_corpus
        for task in [*shares, *shares.values()]:
            check_name(f"{where}.shares_corpus", "task", task, suite.tasks)
        if twice := shares.keys() & shares.values():
            raise RevelaError(
                f"{where}.shares_corpus: {min(twice)!r} itself shares the corpus of another task"
            )
    if isinstance(suite, LmEvalBenchmark):
        # If lm-eval is not installed its tasks are unknown; the command reports it.
        files = lm_eval_task_files(suite.path)
        if files or suite.path:
            what, known = "task of lm-eval", frozenset(files)
    for task in suite.tasks:
        check_name(f"{where}.tasks", what, task, known)


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
            raise RevelaError(
                f"{where}.rows: task {task!r} of benchmark {config.tasks[task]!r} cannot be "
                f"measured on model {model!r}, {'' if is_language_model else 'not '}a language "
                "model"
            )
    if table.reported:
        with errors_at(f"{where}.reported"):
            read_reported(table)


def check_local(config: Config) -> None:
    """Check that the files and folders named by the entries exist.

    Raises:
        RevelaError: one is missing or incomplete; the message begins with the key.
    """
    if (results := Path("results")).exists() and not results.is_dir():
        raise RevelaError(f"{results}: is a file, but results need a folder with this name")
    for name, corpus in config.corpora.items():
        with errors_at(f"corpora.{name}"):
            for file in corpus_files(corpus):
                if {"{", "}"} & set(str(file)):
                    raise RevelaError(f"{file}: rename it: braces are Snakemake wildcards")
    for name, entry in config.batches.items():
        if entry.file and not Path(entry.file).is_file():
            raise RevelaError(f"batches.{name}.file: {entry.file}: no such file")
        if entry.file and entry.file.endswith(".parquet"):
            raise RevelaError(f"batches.{name}.file: {entry.file}: must be JSON lines, not Parquet")
    for name, suite in config.benchmarks.items():
        if isinstance(suite, FolderBenchmark):
            for task in suite.tasks:
                with errors_at(f"benchmarks.{name}"):
                    collection_files(Path(suite.path, task), suite.split)
    for section in ("experiments", "models"):
        for name, entry in getattr(config, section).items():
            folders = config.local_models(section, name)
            for key, used in entry:
                if isinstance(used, ModelRef) and (folder := Path(used)) in folders:
                    with errors_at(f"{section}.{name}.{key}"):
                        _check_model(folder, key == "language_model")


def _check_model(folder: Path, is_language_model: bool) -> None:
    read = functools.partial(read_model_json, str(folder))
    model_files(folder)
    if is_language_model:
        problem = not_a_language_model(read("config.json") or {}, bool(read("modules.json")))
    else:
        problem = not_an_encoder(read)
    if problem:
        raise RevelaError(f"{folder} {problem}")


def check_trained(config: Config) -> None:
    """Check that all files of finished trainings exist; Snakemake checks their folders only.

    Raises:
        RevelaError: one is missing.
    """
    for name in config.experiments:
        retriever = Path(paths.made("experiments", name))
        manifest = retriever.with_name("manifest.json")
        done = retriever.is_dir() and manifest.exists()
        for written in read_json(manifest).get("files", []) if done else ():
            if not (file := retriever.parent / written).exists():
                advice = f"restore it, or remove {retriever} to train again"
                raise RevelaError(f"{file}: missing: {advice}")
