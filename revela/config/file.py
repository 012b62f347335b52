"""The configuration: one file that describes what to compute, and how its entries depend.

One file describes what to compute (`config.yaml`); the Snakemake profile says on what machines.
Each entry of a section is one thing to make, named by its key:

    corpora → batches, pairs → backbones → experiments → benchmarks → tables, listings,
    costs, figures
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from revela.common.errors import RevelaError, unknown_name
from revela.config import paths
from revela.config.catalogue import lm_eval_task_files, mteb_subsets, mteb_task_names
from revela.config.expand import expand
from revela.config.names import LanguageModelRef, ModelName, ModelRef, references
from revela.config.printed import read_listing, read_reported
from revela.config.report import AnyFigure, CostTable, DynamicsFigure, Listing, Table
from revela.config.steps import (
    AnyBenchmark,
    AnyCorpus,
    AnyModel,
    ApiModel,
    Backbone,
    Batches,
    Benchmark,
    EncoderModel,
    Experiment,
    LanguageModel,
    LmEvalBenchmark,
    MtebBenchmark,
    Pairs,
    PydocsBenchmark,
    Settings,
    first_problem,
)

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)


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
    costs: dict[str, CostTable] = {}
    figures: dict[str, AnyFigure] = {}

    # ------------------------------------------------------------------------ names

    @property
    def evaluated(self) -> list[str]:
        """The names of everything that can be a row of a table."""
        return _evaluated(self.model_dump(include={"experiments", "models"}))

    @property
    def tasks(self) -> dict[str, str]:
        """The benchmark of each task."""
        return {task: name for name, suite in self.benchmarks.items() for task in suite.tasks}

    @property
    def retrieval_tasks(self) -> list[str]:
        """The tasks of all benchmarks for retrievers."""
        suites = [s for s in self.benchmarks.values() if not isinstance(s, LmEvalBenchmark)]
        return [task for suite in suites for task in suite.tasks]

    def seeds_of(self, name: str) -> list[str]:
        """Return a model's name, and for an experiment those of its trainings with other seeds."""
        if name not in self.experiments:
            return [name]
        first, count = self.experiments[name].seed, self.experiments[name].seeds
        return [name, *(str(ModelName(name, seed)) for seed in range(first + 1, first + count))]

    def steps_of(self, name: str) -> list[str]:
        """Return the names of all retrievers that an experiment's seeds keep, the last included."""
        steps = [None, *self.experiments[name].save_retriever_steps]
        return [
            str(ModelName(training, step=step))
            for training in self.seeds_of(name)
            for step in steps
        ]

    # ------------------------------------------------------------------------ entries

    def model(self, name: str) -> AnyModel:
        """Return how to load a model for evaluation; an experiment is its trained encoder."""
        if name in self.models:
            return self.models[name]
        encoding = self.experiments[ModelName.parse(name).training].encoding
        folder = ModelRef(paths.retriever(name))
        return EncoderModel(kind="encoder", retriever=folder, encoding=encoding)

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

    def _measured(self, models: list[Any]) -> list[str]:
        entries = (self.models.get(model) for model in models)
        if any(isinstance(e, ApiModel) and not os.environ.get(e.key) for e in entries):
            return []
        return [name for model in models for name in self.seeds_of(model)]

    def task(self, name: str) -> AnyBenchmark:
        """Return a task's benchmark without what it says of its other tasks."""
        suite = self.benchmarks[self.tasks[name]]
        update: dict[str, Any] = {"tasks": [name]}
        if isinstance(suite, MtebBenchmark):
            update["instructions"] = {k: v for k, v in suite.instructions.items() if k == name}
        if isinstance(suite, Benchmark):
            update["shares_corpus"] = {}
        return suite.model_copy(update=update)

    def resolved(self, section: str, name: str) -> Settings:
        """Return an entry as its step expects it: what is made here is named by its path.

        Args:
            section: of the file; `tasks` as well. Of `costs` it is a configuration with all that
                the trainings depend on.
            name: of the entry; of a table, model or task in the forms of `table`, `model`, `task`.
        """
        if section == "costs":
            return self._training_slice(name)
        if section in ("tables", "models", "tasks"):
            entry = getattr(self, section.removesuffix("s"))(name)
        else:
            entry = getattr(self, section)[name]
        fields = type(entry).model_fields
        weights = {k: v for k in fields if isinstance(v := getattr(entry, k), ModelRef)}
        update = {k: self._folder(v) for k, v in weights.items() if v.is_entry}
        return entry.model_copy(update=update)

    def _training_slice(self, name: str) -> "Config":
        trained = [experiment for experiment, _ in self.costs[name].experiments]
        return Config(
            corpora=self.corpora,
            batches=self.batches,
            pairs=self.pairs,
            backbones=self.backbones,
            experiments={experiment: self.experiments[experiment] for experiment in trained},
            costs={name: self.costs[name]},
        )

    def _folder(self, model: ModelRef) -> str:
        if isinstance(model, LanguageModelRef) and model in self.experiments:
            return paths.language_model(model)
        return paths.backbone(model)

    # ------------------------------------------------------------------------ dependencies

    def inputs(self, section: str, name: str) -> dict[str, str]:
        """Return the paths that an entry's step reads of what other entries make.

        They are named by those entries; those of experiments and models by the keys that name them.
        """
        if section == "figures":
            return self._figure_inputs(name)
        if section == "models":
            entry = self.models.get(name)
            trained = entry.language_model if isinstance(entry, LanguageModel) else name
            training = ModelName.parse(trained).training
            if training not in self.experiments:
                return _backbones(entry)
            # LoRA's weights are put on the backbones anew.
            retriever = {"trained": paths.made("experiments", training)}
            return retriever | _backbones(self.experiments[training])
        entry = getattr(self, section)[name]
        if section == "experiments":
            return {"data": paths.made(entry.data.section, entry.data)} | _backbones(entry)
        made = (r for r in references(entry) if r.section in paths.MADE)
        return {reference: paths.made(reference.section, reference) for reference in made}

    def _figure_inputs(self, name: str) -> dict[str, str]:
        figure: Any = self.figures[name]
        if figure.kind == "step-cost":
            return {"step-cost": paths.bench(name)}
        if figure.kind == "learning":
            trained = [experiment for experiment, _ in figure.experiments]
            models = [model for experiment in trained for model in self.steps_of(experiment)]
            logs = {f"{experiment}.log": paths.training_log(experiment) for experiment in trained}
            return {model: paths.scores(model, figure.task) for model in models} | logs
        return {
            reference: paths.made("tables", reference)
            if reference.section == "tables"
            else paths.training_log(reference)
            for reference in references(figure)
        }

    def shared_corpus(self, model: str, task: str) -> str | None:
        """Return the task whose passages, as a model encodes them, a task shares."""
        shares = getattr(self.benchmarks[self.tasks[task]], "shares_corpus", {})
        return shares.get(task) if isinstance(self.model(model), EncoderModel) else None

    def collection(self, task: str) -> str | None:
        """Return the folder of a local task's collection, None for one of the hub."""
        suite = self.benchmarks[self.tasks[task]]
        if isinstance(suite, PydocsBenchmark):
            return paths.collection(self.tasks[task], task)
        return f"{suite.path}/{task}" if suite.source == "folder" else None


def _backbones(entry: Any) -> dict[str, str]:
    """Return the weights of backbones that are pretrained here, by the keys that name them."""
    used = {key: v for key, v in entry or () if isinstance(v, ModelRef) and v.is_entry}
    return {key: paths.made("backbones", name) for key, name in used.items()}


# ---------------------------------------------------------------------------- reading


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key that a mapping has twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping, its keys in order."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                problem = f"key {key!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        RevelaError: it cannot be read, is not YAML, or has a key twice; with line and column.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise RevelaError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RevelaError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RevelaError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise RevelaError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        RevelaError: it cannot be read, has an unknown key, a bad value or an unknown name; the
            message gives the file, the key, the value and what is allowed.
    """
    raw = read_yaml(path)
    if raw is None:
        raise RevelaError(f"{path}: is empty; allowed: {', '.join(Config.model_fields)}")
    return parse_config(raw, str(path))


def parse_config(raw: dict[str, Any], source: str) -> Config:
    """Check a configuration that was already read from `source`; see `load_config`."""
    if not isinstance(raw, dict):
        raise RevelaError(f"{source}: expected sections such as corpora and experiments")
    try:
        spelt_out = expand(raw)
    except RevelaError as error:
        raise RevelaError(f"{source}: {error}") from error
    for section, entries in spelt_out.items():
        for name in entries if isinstance(entries, dict) else ():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise RevelaError(
                    f"{source}: {section}: a name must be letters, digits, '.', '_' and '-' and "
                    f"begin with a letter or digit; got {name!r}"
                    + (" (quote a number)" if isinstance(name, int | float) else "")
                )
    try:
        config = Config.model_validate(spelt_out, context=_defined(spelt_out))
    except ValidationError as error:
        raise RevelaError(f"{source}: {first_problem(error, spelt_out)}") from error
    for problem in _problems(config):
        raise RevelaError(f"{source}: {problem}")
    return config


def _defined(raw: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names that each kind of reference may have, of a file that is not checked yet."""
    names = {s: list(e) if isinstance(e := raw.get(s), dict) else [] for s in Config.model_fields}

    def entries(section: str) -> dict[str, Any]:
        return {n: raw[section][n] for n in names[section] if isinstance(raw[section][n], dict)}

    trained = [
        name
        for name, entry in entries("experiments").items()
        if isinstance(objective := entry.get("objective"), dict)
        and objective.get("name") == "revela"
        and not objective.get("freeze_language_model")
    ]
    suites = [s for s in entries("benchmarks").values() if s.get("source") != "lm-eval"]
    tasks = [s["tasks"] for s in suites if isinstance(s.get("tasks"), list)]
    sources = [s for b in entries("batches").values() if isinstance(s := b.get("source"), str)]
    return names | {
        "sources": [*names["corpora"], *filter(None, sources)],
        "language_models": [*trained, *names["backbones"]],
        "retrieval_tasks": [task for of_suite in tasks for task in of_suite],
        "evaluated": _evaluated({s: entries(s) for s in ("experiments", "models")}),
    }


def _evaluated(raw: dict[str, Any]) -> list[str]:
    steps = {name: entry.get("save_retriever_steps") for name, entry in raw["experiments"].items()}
    kept = [
        str(ModelName(name, step=step))
        for name, of_one in steps.items()
        for step in (of_one if isinstance(of_one, list) else [])
    ]
    return [*raw["experiments"], *raw["models"], *kept]


# ---------------------------------------------------------------------------- checking


def _problems(config: Config) -> Iterator[str]:
    """Yield what is wrong between entries: key, value and what is allowed, a line each."""
    for name, batches in config.batches.items():
        for other in batches.sample_from:
            if (size := config.batches[other].batch_size) % batches.batch_size:
                yield (
                    f"batches.{name}.batch_size: {batches.batch_size} does not divide "
                    f"the {size} of batch set {other!r}"
                )
    for name in config.experiments:
        if name in config.models or name in config.backbones:
            yield f"experiments.{name}: the name is taken by a model or backbone"
    yield from _problems_of_tasks(config)
    for name, table in config.tables.items():
        yield from (f"tables.{name}.{problem}" for problem in _problems_of_table(config, name))
        if table.reported:
            printed = _problems_of_reported(config.table(name), table.reported)
            yield from (f"tables.{name}.{problem}" for problem in printed)
    for name, listing in config.listings.items():
        if name in config.tables:
            yield f"listings.{name}: the name is taken by a table"
        try:
            read_listing(listing)
        except RevelaError as error:
            yield f"listings.{name}: {error}"
    for name, cost in config.costs.items():
        if name in config.tables or name in config.listings:
            yield f"costs.{name}: the name is taken by a table or listing"
        for key, file in (("reported", cost.reported), ("claims", cost.claims)):
            if not Path(file).is_file():
                yield f"costs.{name}.{key}: {file}: no such file"
    for name, figure in config.figures.items():
        if isinstance(figure, DynamicsFigure):
            shown = config.experiments[figure.experiment]
            if not shown.similarity_snapshot_steps or shown.objective.name != "revela":
                yield (
                    f"figures.{name}.experiment: {figure.experiment!r} must be a revela "
                    "experiment with similarity_snapshot_steps"
                )


def _problems_of_tasks(config: Config) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name, suite in config.benchmarks.items():
        key = f"benchmarks.{name}.tasks"
        known = None
        if isinstance(suite, MtebBenchmark):
            what, known = "mteb retrieval task", mteb_task_names()
            yield from _unknown_tasks(f"benchmarks.{name}.instructions", suite.instructions, suite)
        if isinstance(suite, Benchmark):
            shares, where = suite.shares_corpus, f"benchmarks.{name}.shares_corpus"
            yield from _unknown_tasks(where, [*shares, *shares.values()], suite)
            for task in shares:
                if shares[task] in shares:
                    yield f"{where}.{task}: {shares[task]!r} itself shares another's"
        if isinstance(suite, LmEvalBenchmark):
            # Where lm-eval is not installed its tasks are not known: the command says so.
            files = lm_eval_task_files(suite.path)
            what, known = "task of lm-eval", frozenset(files) if files or suite.path else None
        for task in suite.tasks:
            if known is not None and task not in known:
                yield f"{key}: {unknown_name(what, task, known)}"
            if seen.setdefault(task, name) != name:
                yield f"{key}: {task!r} is a task of {seen[task]!r} too"


def _unknown_tasks(where: str, tasks: Iterable[str], suite: AnyBenchmark) -> Iterator[str]:
    for task in tasks:
        if task not in suite.tasks:
            yield f"{where}: {unknown_name('task', task, suite.tasks)}"


def _problems_of_table(config: Config, name: str) -> Iterator[str]:
    known = [*config.tasks, *config.benchmarks]
    for entry in (entry for _, entries in config.tables[name].columns for entry in entries):
        task, _, subset = entry.partition(":")
        if task not in known:
            yield f"columns: {unknown_name('task or benchmark', task, known)}"
            return
        if subset and subset not in (subsets := mteb_subsets(task)):
            yield f"columns: {unknown_name(f'subset of {task}', subset, subsets)}"
    for model in (model for row in config.tables[name].rows for model in row.model):
        is_language_model = isinstance(config.model(model), LanguageModel)
        for task in config.table(name).tasks():
            if (task not in config.retrieval_tasks) != is_language_model:
                yield (
                    f"rows: task {task!r} of benchmark {config.tasks[task]!r} cannot be measured "
                    f"on model {model!r}: {'a' if is_language_model else 'no'} language model"
                )


def _problems_of_reported(table: Table, file: str) -> Iterator[str]:
    try:
        printed = read_reported(Path(file))
    except RevelaError as error:
        yield f"reported: {error}"
        return
    for system in (row.reported for row in table.rows if row.reported):
        if system not in printed.index:
            yield f"rows: {unknown_name(f'system of {file}', system, printed.index)}"
    for heading, _ in table.columns:
        if heading not in printed.columns:
            yield f"columns: {unknown_name(f'task of {file}', heading, printed.columns)}"
