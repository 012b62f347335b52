"""The configuration file: its sections, and the dependencies between entries.

It describes what to compute (`config.yaml`); the Snakemake profile determines on which machines.
Each entry of a section is one thing to make, named by its key:

    corpora → batches, pairs → backbones → experiments → benchmarks → tables, listings,
    costs, figures
"""

import graphlib
import itertools
import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, create_model

from revela.common.errors import RevelaError, check_name, errors_at
from revela.common.outputs import read_json
from revela.config import paths, steps
from revela.config.catalogue import lm_eval_task_files, mteb_subsets, mteb_task_names
from revela.config.expand import expand
from revela.config.local import collection_files, model_files, text_files
from revela.config.names import ModelName, ModelRef, references
from revela.config.printed import read_listing, read_reported
from revela.config.problems import first_problem
from revela.config.read import read_yaml
from revela.config.report import AnyFigure, CostTable, DynamicsFigure, Listing, Table

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,149}", re.ASCII)


class Config(steps.Settings):
    """A whole configuration file."""

    corpora: dict[str, steps.AnyCorpus] = {}
    batches: dict[str, steps.Batches] = {}
    pairs: dict[str, steps.Pairs] = {}
    backbones: dict[str, steps.Backbone] = {}
    experiments: dict[str, steps.Experiment] = {}
    models: dict[str, steps.AnyModel] = {}
    benchmarks: dict[str, steps.AnyBenchmark] = {}
    tables: dict[str, Table] = {}
    listings: dict[str, Listing] = {}
    costs: dict[str, CostTable] = {}
    figures: dict[str, AnyFigure] = {}

    # ------------------------------------------------------------------------ names

    @property
    def evaluated(self) -> list[str]:
        """The names of everything that can be a row of a table."""
        return [*self.models, *(model for name in self.experiments for model in self.kept(name))]

    @property
    def sources(self) -> list[str]:
        """Possible sources of chunks: corpora, and the `source` of ready-made batches."""
        return [*self.corpora, *(entry.source for entry in self.batches.values() if entry.source)]

    @property
    def language_models(self) -> list[str]:
        """The names of experiments that train a language model, and of backbones."""
        trained = [
            name
            for name, entry in self.experiments.items()
            if (own := entry.objective).name == "revela" and not own.freeze_language_model
        ]
        return [*trained, *self.backbones]

    @property
    def tasks(self) -> dict[str, str]:
        """The benchmark of each task."""
        return {task: name for name, suite in self.benchmarks.items() for task in suite.tasks}

    @property
    def retrieval_tasks(self) -> list[str]:
        """The tasks of all benchmarks for retrievers."""
        suites = [s for s in self.benchmarks.values() if not isinstance(s, steps.LmEvalBenchmark)]
        return [task for suite in suites for task in suite.tasks]

    def seeds_of(self, name: str) -> list[str]:
        """Return a model's name, and for an experiment those of its trainings with other seeds."""
        if name not in self.experiments:
            return [name]
        first, count = self.experiments[name].seed, self.experiments[name].seeds
        return [name, *(str(ModelName(name, seed)) for seed in range(first + 1, first + count))]

    def kept(self, training: str) -> list[str]:
        """Return the names of all retrievers that a training keeps, including the last."""
        steps = [None, *self.experiments[training].save_retriever_steps]
        return [str(ModelName(training, step=step)) for step in steps]

    # ------------------------------------------------------------------------ entries

    def model(self, name: str) -> steps.AnyModel:
        """Return a model as it is evaluated; for an experiment, its trained encoder."""
        if name in self.models:
            return self.models[name]
        # The folders of older trainings do not contain it.
        encoding = self.experiments[ModelName.parse(name).training].encoding
        own = steps.EncodingKeys(**encoding.model_dump(exclude_defaults=True))
        folder = ModelRef(paths.retriever(name))
        return steps.EncoderModel(kind="encoder", retriever=folder, encoding=own)

    def table(self, name: str) -> Table:
        """Return a table with expanded columns and all seeds of its experiments.

        Columns become lists of tasks, without benchmarks. An API whose key is not in the
        environment is shown as reported.
        """
        table = self.tables[name]
        suites: dict[str, list[str]] = {k: list(b.tasks) for k, b in self.benchmarks.items()}
        if table.benchmark:
            columns = [(task, [task]) for task in suites[table.benchmark]]
        else:
            columns = [
                (heading, [task for entry in entries for task in suites.get(entry, [entry])])
                for heading, entries in table.columns
            ]
        rows = [row.model_copy(update={"model": self._measured(row.model)}) for row in table.rows]
        return table.model_copy(update={"benchmark": None, "columns": columns, "rows": rows})

    def _measured(self, models: list[Any]) -> list[str]:
        entries = (self.models.get(model) for model in models)
        if any(isinstance(e, steps.ApiModel) and not os.environ.get(e.key) for e in entries):
            return []
        return [name for model in models for name in self.seeds_of(model)]

    def task(self, name: str) -> steps.AnyBenchmark:
        """Return a task's benchmark without the settings of its other tasks."""
        suite = self.benchmarks[self.tasks[name]]
        own = suite.tasks
        update: dict[str, Any] = {"tasks": {name: own[name]} if isinstance(own, dict) else [name]}
        if isinstance(suite, steps.MtebBenchmark):
            update["instructions"] = {k: v for k, v in suite.instructions.items() if k == name}
        if isinstance(suite, steps.Benchmark):
            update["shares_corpus"] = {}
        return suite.model_copy(update=update)

    def resolved(self, section: str, name: str) -> steps.Settings:
        """Return an entry as its step expects it, with results given by their paths.

        Args:
            section: a section of the file, or `tasks`. For `costs` the result is a configuration
                with everything that the trainings depend on.
            name: the entry; a table, model or task is returned as by `table`, `model` or `task`.
        """
        if section == "costs":
            cost, data = self.costs[name], ("corpora", "batches", "pairs", "backbones")
            return Config(
                experiments={trained: self.experiments[trained] for trained, _ in cost.experiments},
                costs={name: cost},
                **{section: getattr(self, section) for section in data},
            )
        if section in ("tables", "models", "tasks"):
            entry = getattr(self, section.removesuffix("s"))(name)
        else:
            entry = getattr(self, section)[name]
        folders = {
            key: paths.language_model(used) if used in self.experiments else paths.backbone(used)
            for key, used in _models(entry).items()
            if used.is_entry
        }
        return entry.model_copy(update=folders)

    def targets(self) -> list[str]:
        """Return the files that can be requested: the outputs of all entries, and all scores."""
        made = [paths.made(s, name) for s in paths.MADE for name in getattr(self, s)]
        made += [paths.made("tables", name) for s in (self.listings, self.costs) for name in s]
        made += [
            f"results/figures/{name}.{kind}" for name in self.figures for kind in ("png", "pdf")
        ]
        return made + [paths.scores(m, t) for m, t in itertools.product(self.evaluated, self.tasks)]

    # ------------------------------------------------------------------------ dependencies

    def inputs(self, section: str, name: str) -> dict[str, str]:
        """Return the paths made by other entries that an entry's step reads.

        Their names are those of the entries; for experiments and models, the keys that refer to
        them.
        """
        if section == "figures":
            return self._figure_inputs(name)
        if section == "models":
            entry = self.models.get(name)
            trained = entry.language_model if isinstance(entry, steps.LanguageModel) else name
            training = ModelName.parse(trained).training
            if training not in self.experiments:
                return self._trained(self.models[name])
            # LoRA's weights are applied to the backbones again.
            retriever = {"trained": paths.made("experiments", training)}
            return retriever | self._trained(self.experiments[training])
        entry = getattr(self, section)[name]
        if section == "experiments":
            return {"data": paths.made(entry.data.section, entry.data)} | self._trained(entry)
        made = (used for used in references(entry) if used.section in paths.MADE)
        return {used: paths.made(used.section, used) for used in made}

    def _trained(self, entry: steps.Settings) -> dict[str, str]:
        """Return the outputs that contain the models an entry uses from this file, by its keys."""
        return {
            key: paths.made("experiments" if name in self.experiments else "backbones", name)
            for key, name in _models(entry).items()
            if name.is_entry
        }

    def _figure_inputs(self, name: str) -> dict[str, str]:
        figure: Any = self.figures[name]
        if figure.kind == "step-cost":
            return {"step-cost": paths.bench(name)}
        if figure.kind == "learning":
            trained = [name for name, _ in figure.experiments]
            seeds = [training for name in trained for training in self.seeds_of(name)]
            models = [model for training in seeds for model in self.kept(training)]
            logs = {f"{name}.log": paths.training_log(name) for name in trained}
            models += [figure.start] if figure.start else []
            return {model: paths.scores(model, figure.task) for model in models} | logs
        if figure.kind in ("bars", "trend"):
            return {table: paths.made("tables", table) for table, _ in figure.tables}
        return {trained: paths.training_log(trained) for trained in references(figure)}

    def shared_corpus(self, model: str, task: str) -> str | None:
        """Return the task from which a task can reuse a model's encoded passages."""
        shares = getattr(self.benchmarks[self.tasks[task]], "shares_corpus", {})
        return shares.get(task) if isinstance(self.model(model), steps.EncoderModel) else None

    def collection(self, task: str) -> str | None:
        """Return the folder of a local task's collection, or None for a hub task."""
        suite = self.benchmarks[self.tasks[task]]
        if isinstance(suite, steps.MadeHere):
            return paths.collection(self.tasks[task], task)
        return f"{suite.path}/{task}" if suite.source == "folder" else None

    def local_models(self, section: str, name: str) -> list[Path]:
        """Return the folders of models that an entry's step loads, except those made here."""
        if section == "models" and name not in self.models:
            section, name = "experiments", ModelName.parse(name).training
        refs = _models(getattr(self, section)[name]).values()
        return [Path(ref) for ref in refs if ref.is_folder and not paths.is_made_here(ref)]

    def check_local(self) -> None:
        """Check that the files and folders named by the entries exist.

        Raises:
            RevelaError: one is missing or incomplete; the message begins with the key.
        """
        if (results := Path("results")).exists() and not results.is_dir():
            raise RevelaError(f"{results}: is a file, but results need a folder with this name")
        for name, corpus in self.corpora.items():
            if isinstance(corpus, steps.FilesCorpus):
                with errors_at(f"corpora.{name}.path"):
                    files = text_files(Path(corpus.path))
                if bad := [file for file in files if {"{", "}"} & set(str(file))]:
                    message = "rename it: braces are Snakemake wildcards"
                    raise RevelaError(f"corpora.{name}.path: {bad[0]}: {message}")
        for name, entry in self.batches.items():
            if entry.file and not Path(entry.file).is_file():
                raise RevelaError(f"batches.{name}.file: {entry.file}: no such file")
        for name, suite in self.benchmarks.items():
            if isinstance(suite, steps.FolderBenchmark):
                for task in suite.tasks:
                    with errors_at(f"benchmarks.{name}"):
                        collection_files(Path(suite.path, task))
        for section in ("experiments", "models"):
            for name in getattr(self, section):
                for folder in self.local_models(section, name):
                    with errors_at(f"{section}.{name}"):
                        model_files(folder)

    def check_trained(self) -> None:
        """Check that all files of finished trainings exist; Snakemake checks their folders only.

        Raises:
            RevelaError: one is missing.
        """
        for name in self.experiments:
            retriever = Path(paths.made("experiments", name))
            folder = retriever.parent
            done = retriever.is_dir() and (folder / "manifest.json").exists()
            for file in read_json(folder / "manifest.json").get("files", []) if done else ():
                if not (folder / file).exists():
                    advice = f"restore it, or remove {retriever} to train again"
                    raise RevelaError(f"{folder / file}: missing: {advice}")


def _models(entry: steps.Settings) -> dict[str, ModelRef]:
    """Return the models that an entry uses, by the keys that refer to them."""
    return {key: used for key, used in entry if isinstance(used, ModelRef)}


# ---------------------------------------------------------------------------- reading


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        RevelaError: it cannot be read, has an unknown key, a bad value or an unknown name; the
            message gives the file, the key, the value and what is allowed.
    """
    return parse_config(read_yaml(path), str(path))


def parse_config(raw: Any, source: str) -> Config:
    """Check a configuration that was already read from `source`; see `load_config`."""
    if not isinstance(raw, dict):
        sections = ", ".join(Config.model_fields)
        raise RevelaError(f"{source}: expected sections: {sections}; got {type(raw).__name__}")
    with errors_at(source):
        try:
            raw = expand(dict(_Written.model_validate(raw)))
            config = Config.model_validate(raw)
            config = Config.model_validate(raw, context=config)  # names can be looked up now
        except ValidationError as error:
            raise RevelaError(first_problem(error, raw)) from error
        _check(config)
    return config


def _entry_name(name: Any) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    hint = " (quote a number)" if isinstance(name, int | float) else ""
    raise ValueError(
        "a name must be letters, digits, '.', '_' and '-', begin with a letter or digit and have "
        f"at most 150 characters; got {name!r}{hint}"
    )


_Entries = dict[Annotated[str, BeforeValidator(_entry_name)], dict[Any, Any]]
_SECTIONS: Any = {section: (_Entries, {}) for section in Config.model_fields}
_Written = create_model("_Written", __base__=steps.Settings, **_SECTIONS)
"""A configuration as it is written, before shorthands are expanded and entries checked."""


# ---------------------------------------------------------------------------- checking

_CLASHES = {
    "experiments": ["models", "backbones"],
    "listings": ["tables"],
    "costs": ["tables", "listings"],
}
"""Sections whose entries would be written to the same files as those of others."""


def _check(config: Config) -> None:
    """Check references between entries, and the files that they name."""
    for section, others in _CLASHES.items():
        for name, other in itertools.product(getattr(config, section), others):
            if name in getattr(config, other):
                taken = f"the name is taken by a {other.removesuffix('s')}"
                raise RevelaError(f"{section}.{name}: {taken}")
    _check_circles(config, "batches", "sample_from")
    _check_circles(config, "experiments", "language_model")
    for name, batches in config.batches.items():
        for other in batches.sample_from:
            if (size := config.batches[other].batch_size) % batches.batch_size:
                raise RevelaError(
                    f"batches.{name}.batch_size: {batches.batch_size} does not divide "
                    f"batch_size {size} of batch set {other!r}"
                )
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
    for name, cost in config.costs.items():
        check_name(f"costs.{name}", "claims_about", cost.claims_about, dict(cost.experiments))
        for key in ("reported", "claims"):
            if not Path(file := getattr(cost, key)).is_file():
                raise RevelaError(f"costs.{name}.{key}: {file}: no such file")
    for name, figure in config.figures.items():
        if isinstance(figure, DynamicsFigure):
            shown = config.experiments[figure.experiment]
            if not shown.similarity_snapshot_steps or shown.objective.name != "revela":
                raise RevelaError(
                    f"figures.{name}.experiment: {figure.experiment!r} must be a revela "
                    "experiment with similarity_snapshot_steps"
                )


def _check_circles(config: Config, section: str, key: str) -> None:
    entries = getattr(config, section).items()
    uses = {name: list(references(getattr(entry, key))) for name, entry in entries}
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        message = f"circular: {' → '.join(circle)}"
        raise RevelaError(f"{section}.{circle[0]}.{key}: {message}") from error


def _check_tasks(where: str, suite: steps.AnyBenchmark) -> None:
    what, known = "task", frozenset(suite.tasks)
    if isinstance(suite, steps.MtebBenchmark):
        for task in suite.instructions:
            check_name(f"{where}.instructions", what, task, known)
        what, known = "mteb retrieval task", mteb_task_names()
    if isinstance(suite, steps.Benchmark):
        shares = suite.shares_corpus
        for task in [*shares, *shares.values()]:
            check_name(f"{where}.shares_corpus", "task", task, suite.tasks)
        if twice := shares.keys() & shares.values():
            raise RevelaError(
                f"{where}.shares_corpus: {min(twice)!r} itself shares the corpus of another task"
            )
    if isinstance(suite, steps.LmEvalBenchmark):
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
    models = [model for row in config.tables[name].rows for model in row.model]
    for model, task in itertools.product(models, table.tasks()):
        is_language_model = isinstance(config.model(model), steps.LanguageModel)
        if is_language_model == (task in retrieval_tasks):
            raise RevelaError(
                f"{where}.rows: task {task!r} of benchmark {config.tasks[task]!r} cannot be "
                f"measured on model {model!r}, {'' if is_language_model else 'not '}a language "
                "model"
            )
    if table.reported:
        with errors_at(f"{where}.reported"):
            read_reported(table)
