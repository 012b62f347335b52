"""The configuration: one file that describes what to compute, `base:` inheritance, checked names.

One file describes what to compute (`config.yaml`); the Snakemake profile says on what machines.
Each entry of a section is one thing to make, named by its key:

    corpora → batches, pairs → backbones → experiments → benchmarks → tables, listings, figures
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from revela.common.errors import RevelaError, unknown_name
from revela.config.catalogue import lm_eval_task_files, mteb_subsets, mteb_task_names
from revela.config.printed import read_listing, read_reported
from revela.config.report import (
    AnyFigure,
    BarsFigure,
    DynamicsFigure,
    LearningFigure,
    Listing,
    PretrainingFigure,
    StepCostFigure,
    Table,
    TrendFigure,
)
from revela.config.steps import (
    AnyBenchmark,
    AnyCorpus,
    AnyModel,
    ApiModel,
    Backbone,
    Batches,
    EncoderModel,
    Experiment,
    LanguageModel,
    LmEvalBenchmark,
    MtebBenchmark,
    Pairs,
    RevelaObjective,
    Settings,
    first_problem,
)


class Config(Settings):
    """A whole configuration file."""

    corpora: dict[str, AnyCorpus] = {}
    batches: dict[str, Batches] = {}
    pairs: dict[str, Pairs] = {}
    backbones: dict[str, Backbone] = {}
    experiments: dict[str, Experiment] = {}
    models: dict[str, AnyModel] = {}
    benchmarks: dict[str, AnyBenchmark] = {}
    tables: dict[str, Table] = {}
    listings: dict[str, Listing] = {}
    figures: dict[str, AnyFigure] = {}

    def evaluable(self) -> list[str]:
        """Return the names of everything that can be a row of a table."""
        kept = [
            f"{n}@{step}" for n, e in self.experiments.items() for step in e.save_retriever_steps
        ]
        return [*self.experiments, *self.models, *kept]

    def model(self, name: str) -> AnyModel:
        """Return how to load a model for evaluation; an experiment is its trained encoder."""
        if name in self.models:
            return self.models[name]
        experiment, _, step = name.partition("@")
        return EncoderModel(
            kind="encoder",
            retriever=f"results/models/{experiment}/{f'steps/{step}' if step else 'retriever'}",
            encoding=self.experiments[experiment].encoding,
        )

    def trains_language_model(self, name: str) -> bool:
        """Tell whether a name is an experiment that trains its language model too."""
        objective = self.experiments[name].objective if name in self.experiments else None
        return isinstance(objective, RevelaObjective) and not objective.freeze_language_model

    def seeds_of(self, name: str) -> list[str]:
        """Return a model's name, and for an experiment those of its trainings with other seeds."""
        if name not in self.experiments:
            return [name]
        first, count = self.experiments[name].seed, self.experiments[name].seeds
        return [name, *(f"{name}-seed{seed}" for seed in range(first + 1, first + count))]

    def steps_of(self, name: str) -> list[str]:
        """Return the names of all retrievers that an experiment's seeds keep, the last included."""
        steps = ["", *(f"@{step}" for step in self.experiments[name].save_retriever_steps)]
        return [f"{seed}{step}" for seed in self.seeds_of(name) for step in steps]

    def table(self, name: str) -> Table:
        """Return a table with its columns spelt out, and the seeds of its experiments.

        Columns are lists of tasks then, no benchmarks. An API without its key in the environment
        is shown as reported.
        """
        table = self.tables[name]
        if table.benchmark:
            columns = [(task, [task]) for task in self.benchmarks[table.benchmark].tasks]
        else:
            suites: dict[str, list[str]] = {k: list(b.tasks) for k, b in self.benchmarks.items()}
            columns = [
                (heading, [task for entry in entries for task in suites.get(entry, [entry])])
                for heading, entries in table.columns
            ]
        rows = [row.model_copy(update={"model": self._measured(row.model)}) for row in table.rows]
        return table.model_copy(update={"benchmark": None, "columns": columns, "rows": rows})

    def _measured(self, models: list[str]) -> list[str]:
        entries = (self.models.get(model) for model in models)
        if any(isinstance(e, ApiModel) and not os.environ.get(e.key) for e in entries):
            return []
        return [name for model in models for name in self.seeds_of(model)]


# ---------------------------------------------------------------------------- reading


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        RevelaError: it cannot be read, has an unknown key, a bad value or an unknown name; the
            message gives the file, the key, the value and what is allowed.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise RevelaError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return parse_config(raw or {}, str(path))


def parse_config(raw: dict[str, Any], source: str) -> Config:
    """Check a configuration that was already read from `source`; see `load_config`."""
    if not isinstance(raw, dict):
        raise RevelaError(f"{source}: expected sections such as corpora and experiments")
    resolved = {
        section: _inherit(section, entries, source) if isinstance(entries, dict) else entries
        for section, entries in raw.items()
    }
    try:
        config = Config.model_validate(resolved)
    except ValidationError as error:
        raise RevelaError(f"{source}: {first_problem(error, resolved)}") from error
    _add_seeds(config, source)
    _check_names(config, source)
    return config


def _inherit(section: str, entries: dict[str, Any], source: str) -> dict[str, Any]:
    """Resolve `base:` in the entries of a section: mappings merge, everything else replaces."""
    done: dict[str, Any] = {}

    def resolve(name: str, path: tuple[str, ...]) -> Any:
        where = f"{source}: {section}.{name}"
        if name in path:
            raise RevelaError(f"{where}.base: circular: {' → '.join((*path, name))}")
        if name not in done:
            entry = entries[name]
            if isinstance(entry, dict) and "base" in entry:
                base = entry["base"]
                if not isinstance(base, str) or base not in entries:
                    raise RevelaError(f"{where}.base: {unknown_name('entry', str(base), entries)}")
                own = {key: value for key, value in entry.items() if key != "base"}
                entry = _merge(resolve(base, (*path, name)), own)
            done[name] = entry
        return done[name]

    return {name: resolve(name, ()) for name in entries}


def _merge(base: Any, own: Any) -> Any:
    """Merge two mappings; one that changes what kind of thing it is starts afresh."""
    if isinstance(base, dict) and isinstance(own, dict):
        if any(own.get(tag, base.get(tag)) != base.get(tag) for tag in ("name", "source", "kind")):
            return own
        return {
            **base,
            **{key: _merge(base[key], own[key]) if key in base else own[key] for key in own},
        }
    return own


def _add_seeds(config: Config, source: str) -> None:
    """Add an entry for each further seed of an experiment with `seeds`."""
    for name, experiment in list(config.experiments.items()):
        for seed, other in enumerate(config.seeds_of(name)[1:], experiment.seed + 1):
            if other in config.experiments:
                raise RevelaError(f"{source}: experiments.{other}: is seed {seed} of {name!r}")
            update = {"seed": seed, "seeds": 1}
            config.experiments[other] = experiment.model_copy(update=update)


def _check_names(config: Config, source: str) -> None:
    """Check that every name one entry uses is defined by another.

    Raises:
        RevelaError: with the key, the name and the nearest defined ones.
    """

    def check(key: str, what: str, name: str, allowed: Iterable[str]) -> None:
        if name not in set(allowed):
            raise RevelaError(f"{source}: {key}: {unknown_name(what, name, allowed)}")

    def check_model(key: str, name: str) -> None:
        """A name without a slash can only be a backbone: hub names and folders have one."""
        if "/" not in name:
            check(key, "backbone", name, config.backbones)

    for name, batches in config.batches.items():
        for corpus in batches.corpora:
            check(f"batches.{name}.corpora", "corpus", corpus, config.corpora)
        for other in batches.sample_from:
            check(f"batches.{name}.sample_from", "batch set", other, config.batches)
            if (size := config.batches[other].batch_size) % batches.batch_size:
                raise RevelaError(
                    f"{source}: batches.{name}.batch_size: {batches.batch_size} does not divide "
                    f"the {size} of batch set {other!r}"
                )
    for name, pairs in config.pairs.items():
        for corpus in pairs.corpora:
            check(f"pairs.{name}.corpora", "corpus", corpus, config.corpora)
    for name, backbone in config.backbones.items():
        for corpus in backbone.corpora:
            check(f"backbones.{name}.corpora", "corpus", corpus, config.corpora)
    for name, experiment in config.experiments.items():
        key = f"experiments.{name}"
        if experiment.objective.name == "contriever":
            check(f"{key}.data", "set of pairs", experiment.data, config.pairs)
        else:
            check(f"{key}.data", "batch set", experiment.data, config.batches)
        check_model(f"{key}.retriever", experiment.retriever)
        if experiment.language_model is not None:
            check_model(f"{key}.language_model", experiment.language_model)
        sources = {batches.source for batches in config.batches.values()} - {""}
        for corpus in experiment.first_half:
            check(f"{key}.first_half", "corpus", corpus, {*config.corpora, *sources})
        if name in config.models or name in config.backbones:
            raise RevelaError(f"{source}: {key}: the name is taken by a model or backbone")
    for name, model in config.models.items():
        if isinstance(model, EncoderModel):
            check_model(f"models.{name}.retriever", model.retriever)
        if isinstance(model, LanguageModel) and "/" not in model.language_model:
            trained = filter(config.trains_language_model, config.experiments)
            known = [*trained, *config.backbones]
            what = "backbone or experiment that trains a language model"
            check(f"models.{name}.language_model", what, model.language_model, known)
    seen: dict[str, str] = {}
    for name, benchmark in config.benchmarks.items():
        if isinstance(benchmark, MtebBenchmark):
            for task in benchmark.tasks:
                check(f"benchmarks.{name}.tasks", "mteb retrieval task", task, mteb_task_names())
        if isinstance(benchmark, LmEvalBenchmark):
            files = lm_eval_task_files(benchmark.path)
            # Where lm-eval is not installed its tasks are not known: the command says so.
            for task in benchmark.tasks if files or benchmark.path else []:
                check(f"benchmarks.{name}.tasks", "task of lm-eval", task, files)
        for task in benchmark.tasks:
            if seen.setdefault(task, name) != name:
                raise RevelaError(
                    f"{source}: benchmarks.{name}.tasks: {task!r} is a task of {seen[task]!r} too"
                )
    for name, table in config.tables.items():
        key = f"tables.{name}"
        if table.benchmark:
            check(f"{key}.benchmark", "benchmark", table.benchmark, config.benchmarks)
        for entry in (entry for _, entries in table.columns for entry in entries):
            task, _, subset = entry.partition(":")
            check(f"{key}.columns", "task or benchmark", task, [*seen, *config.benchmarks])
            if subset:
                check(f"{key}.columns", f"subset of {task}", subset, mteb_subsets(task))
        for row in table.rows:
            for model_name in row.model:
                check(f"{key}.rows", "model or experiment", model_name, config.evaluable())
                is_language_model = isinstance(config.model(model_name), LanguageModel)
                for task in config.table(name).tasks():
                    suite = config.benchmarks[seen[task]]
                    if isinstance(suite, LmEvalBenchmark) != is_language_model:
                        raise RevelaError(
                            f"{source}: {key}.rows: task {task!r} of benchmark {seen[task]!r} "
                            f"cannot be measured on model {model_name!r}: "
                            f"{'a' if is_language_model else 'no'} language model"
                        )
        if table.reported:
            try:
                printed = read_reported(Path(table.reported))
            except RevelaError as error:
                raise RevelaError(f"{source}: {key}.reported: {error}") from error
            for system in (row.reported for row in table.rows if row.reported):
                check(f"{key}.rows", f"system of {table.reported}", system, printed.index)
            for heading, _ in config.table(name).columns:
                check(f"{key}.columns", f"task of {table.reported}", heading, printed.columns)
    for name, listing in config.listings.items():
        if name in config.tables:
            raise RevelaError(f"{source}: listings.{name}: the name is taken by a table")
        try:
            read_listing(listing)
        except RevelaError as error:
            raise RevelaError(f"{source}: listings.{name}: {error}") from error
    for name, figure in config.figures.items():
        key = f"figures.{name}"
        match figure:
            case StepCostFigure():
                pass
            case BarsFigure() | TrendFigure():
                for table_name, _ in figure.tables:
                    check(f"{key}.tables", "table", table_name, config.tables)
            case PretrainingFigure():
                check(f"{key}.backbone", "backbone", figure.backbone, config.backbones)
            case DynamicsFigure():
                check(key, "experiment", figure.experiment, config.experiments)
                experiment = config.experiments[figure.experiment]
                if (
                    not experiment.similarity_snapshot_steps
                    or experiment.objective.name != "revela"
                ):
                    raise RevelaError(
                        f"{source}: {key}.experiment: {figure.experiment!r} must be a revela "
                        "experiment with similarity_snapshot_steps"
                    )
            case _:
                for experiment_name, _ in figure.experiments:
                    check(key, "experiment", experiment_name, config.experiments)
        if isinstance(figure, LearningFigure):
            tasks = [
                task
                for benchmark in config.benchmarks.values()
                if not isinstance(benchmark, LmEvalBenchmark)
                for task in benchmark.tasks
            ]
            check(f"{key}.task", "retrieval task", figure.task, tasks)
