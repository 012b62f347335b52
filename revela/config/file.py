"""The configuration file: its sections, and the dependencies between entries.

It describes what to compute (`config.yaml`); the Snakemake profile determines on which machines.
Each entry of a section is one thing to make, named by its key:

    corpora → batches, pairs → experiments → benchmarks → tables, listings, figures
"""

import itertools
import os
from pathlib import Path
from typing import Any

from revela.config import paths
from revela.config.evaluation import (
    AnyBenchmark,
    AnyModel,
    ApiModel,
    EncoderModel,
    HybridModel,
    LanguageModel,
    LmEvalBenchmark,
    MadeHere,
    MtebBenchmark,
)
from revela.config.names import ModelName, ModelRef, references
from revela.config.report import AnyFigure, LearningFigure, Listing, Table
from revela.config.settings import Settings
from revela.config.text import AnyCorpus, Batches, Pairs
from revela.config.training import Experiment


class Config(Settings):
    """A whole configuration file."""

    corpora: dict[str, AnyCorpus] = {}
    batches: dict[str, Batches] = {}
    pairs: dict[str, Pairs] = {}
    experiments: dict[str, Experiment] = {}
    models: dict[str, AnyModel] = {}
    benchmarks: dict[str, AnyBenchmark] = {}
    tables: dict[str, Table] = {}
    listings: dict[str, Listing] = {}
    figures: dict[str, AnyFigure] = {}

    # ------------------------------------------------------------------------ names

    @property
    def evaluated(self) -> list[str]:
        """The names of all models and trained retrievers, which can be rows of a table."""
        return [*self.models, *(model for name in self.experiments for model in self.kept(name))]

    @property
    def hybrids(self) -> dict[str, HybridModel]:
        """The models that fuse the runs of others."""
        return {name: one for name, one in self.models.items() if isinstance(one, HybridModel)}

    @property
    def sources(self) -> list[str]:
        """Possible sources of chunks: corpora, and the `source` of ready-made batches."""
        return [*self.corpora, *(entry.source for entry in self.batches.values() if entry.source)]

    def sources_of(self, batches: str) -> set[str]:
        """Return the possible sources of the batches of a set."""
        entry = self.batches[batches]
        direct = {*entry.corpora, entry.source, *entry.sources.values()} - {""}
        return direct.union(*map(self.sources_of, entry.sample_from))

    @property
    def language_models(self) -> list[str]:
        """The names of experiments that train a language model."""
        entries = self.experiments.items()
        return [name for name, entry in entries if entry.objective.trains_language_model]

    @property
    def tasks(self) -> dict[str, str]:
        """The benchmark of each task."""
        return {task: name for name, suite in self.benchmarks.items() for task in suite.tasks}

    @property
    def retrieval_tasks(self) -> list[str]:
        """The tasks of all benchmarks for retrievers."""
        suites = self.benchmarks.values()
        return [task for s in suites if not isinstance(s, LmEvalBenchmark) for task in s.tasks]

    def seeds_of(self, name: str) -> list[str]:
        """Return a model's name, and those of the same retriever trained with other seeds.

        A hybrid has the seeds of its parts.
        """
        if hybrid := self.hybrids.get(name):
            others = [ModelName.parse(n).seed for of in hybrid.of for n in self.seeds_of(of)[1:]]
            again = (str(ModelName(name, seed)) for seed in dict.fromkeys(others))
            return [name, *(hybrid for hybrid in again if hybrid in self.models)]
        model = ModelName.parse(name)
        if name in self.models or model.training not in self.experiments:
            return [name]
        trained = self.experiments[model.training]
        seeds = range(trained.seed + 1, trained.seed + trained.seeds)
        return [name, *(str(ModelName(model.training, seed, model.step)) for seed in seeds)]

    def kept(self, training: str) -> list[str]:
        """Return the names of all retrievers that a training keeps, including the last."""
        steps = [None, *self.experiments[training].save_retriever_steps]
        return [str(ModelName(training, step=step)) for step in steps]

    # ------------------------------------------------------------------------ entries

    def model(self, name: str) -> AnyModel:
        """Return a model as it is evaluated; for an experiment, its trained encoder."""
        if name in self.models:
            return self.models[name]
        return EncoderModel(kind="encoder", retriever=ModelRef(paths.retriever(name)))

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
        hybrids = self.hybrids
        parts = [part for model in models for part in getattr(hybrids.get(model), "of", [model])]
        entries = map(self.models.get, parts)
        if any(isinstance(e, ApiModel) and not os.environ.get(e.key) for e in entries):
            return []
        return [name for model in models for name in self.seeds_of(model)]

    def task(self, name: str) -> AnyBenchmark:
        """Return a task's benchmark without the settings of its other tasks."""
        suite = self.benchmarks[self.tasks[name]]
        tasks = {name: suite.tasks[name]} if isinstance(suite.tasks, dict) else [name]
        update: dict[str, Any] = {"tasks": tasks}
        if isinstance(suite, MtebBenchmark):
            update["instructions"] = {k: v for k, v in suite.instructions.items() if k == name}
        for key in {"shares_corpus", "tasks_per_job"} & suite.model_fields_set:  # change no score
            update[key] = type(suite).model_fields[key].default
        return suite.model_copy(update=update)

    def resolved(self, section: str, name: str) -> Settings:
        """Return an entry as its step expects it, with results given by their paths.

        Args:
            section: a section of the file, or `tasks`.
            name: the entry; a table, model or task is returned as by `table`, `model` or `task`.
        """
        if section in ("tables", "models", "tasks"):
            entry = getattr(self, section.removesuffix("s"))(name)
        else:
            entry = getattr(self, section)[name]
        used = {key: ref for key, ref in _models(entry).items() if ref in self.experiments}
        return entry.model_copy(update={k: paths.language_model(ref) for k, ref in used.items()})

    def targets(self) -> dict[str, tuple[str, ...]]:
        """Return the files that can be requested, each with its section, its entry and its task."""
        made = {paths.made(s, name): (s, name) for s in paths.MADE for name in getattr(self, s)}
        made |= {paths.made("tables", name): ("listings", name) for name in self.listings}
        for name in self.figures:
            made |= {f"results/figures/{name}.{kind}": ("figures", name) for kind in ("png", "pdf")}
        measured = itertools.product(self.evaluated, self.tasks)
        return made | {paths.scores(*pair): ("scores", *pair) for pair in measured}

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
            trained = entry.language_model if isinstance(entry, LanguageModel) else name
            training = ModelName.parse(trained).training
            if training not in self.experiments:
                return self._trained(self.models[name])
            # LoRA's weights are applied to the backbone again.
            retriever = {"trained": paths.made("experiments", training)}
            return retriever | self._trained(self.experiments[training])
        entry = getattr(self, section)[name]
        if section == "experiments":
            return {"data": paths.made(entry.data.section, entry.data)} | self._trained(entry)
        used = references(entry)
        on_hub = getattr(entry, "hub_files", None)
        made = {"download": paths.download(section, name)} if on_hub else {}
        return made | {n: paths.made(n.section, n) for n in used if n.section in paths.MADE}

    def tuning_tasks(self, hybrid: str, task: str) -> list[str]:
        """Return the tasks that choose the weight of a hybrid on a task: never that task itself."""
        benchmark = self.hybrids[hybrid].tuned_on or self.tasks[task]
        return [other for other in self.benchmarks[benchmark].tasks if other != task]

    def measured(self, table: str) -> list[tuple[str, str]]:
        """Return the models and tasks whose scores a table shows."""
        entry = self.table(table)
        models = itertools.chain(*(row.model for row in entry.rows))
        return list(itertools.product(models, entry.tasks()))

    def fused_of(self, hybrid: str, task: str) -> list[tuple[str, str]]:
        """Return the models and tasks whose runs a hybrid is made from on a task."""
        tasks = [task, *self.tuning_tasks(hybrid, task)]
        return list(itertools.product(self.hybrids[hybrid].of, tasks))

    def fused(self, hybrid: str, task: str) -> dict[str, str]:
        """Return the runs `MODEL/TASK` and the judgements `TASK` that a hybrid is made from."""
        pairs, tuning = self.fused_of(hybrid, task), self.tuning_tasks(hybrid, task)
        runs = {f"{part}/{other}": paths.run(part, other) for part, other in pairs}
        return runs | {other: paths.judgements(other) for other in tuning}

    def _trained(self, entry: Settings) -> dict[str, str]:
        """Return the outputs that contain the models an entry uses from this file, by its keys.

        A model may also be given by the path of its folder below `results/`.
        """
        used = {key: paths.trained(ref) or ref for key, ref in _models(entry).items()}
        names = self.experiments
        return {k: paths.made("experiments", name) for k, name in used.items() if name in names}

    def _figure_inputs(self, name: str) -> dict[str, str]:
        figure: Any = self.figures[name]
        if figure.kind == "step-cost":
            return {"step-cost": paths.bench(name)}
        if figure.kind == "learning":
            names = [name for name, _ in figure.experiments]
            seeds = [training for name in names for training in self.seeds_of(name)]
            models = [model for training in seeds for model in self.kept(training)]
            models += [figure.start] if figure.start else []
            logs = {f"{name}.log": paths.training_log(name) for name in names}
            return {model: paths.scores(model, figure.task) for model in models} | logs
        if figure.kind in ("bars", "trend"):
            return {table: paths.made("tables", table) for table, _ in figure.tables}
        return {trained: paths.training_log(trained) for trained in references(figure)}

    def shares_corpus(self, task: str) -> str | None:
        """Return the task with most of a task's passages, if it names one."""
        suite: Any = self.benchmarks[self.tasks[task]]
        shares = suite.shares_corpus
        return shares if isinstance(shares, str) else shares.get(task)

    def first_of_job(self, task: str) -> str:
        """Return the first of the tasks that are evaluated in one job with a task."""
        if other := self.shares_corpus(task):
            return self.first_of_job(other)
        suite: Any = self.benchmarks[self.tasks[task]]
        tasks = list(suite.tasks)
        place = tasks.index(task)
        return tasks[place - place % (suite.tasks_per_job or len(tasks))]

    def evaluations(self) -> dict[str, list[str]]:
        """Return the retrieval tasks on which tables and figures show each model, by the model.

        Those of a hybrid are tasks of its parts, too.
        """
        asked = {pair for table in self.tables for pair in self.measured(table)}
        for name, figure in self.figures.items():
            if isinstance(figure, LearningFigure):
                asked |= {(model, figure.task) for model in self._figure_inputs(name)}
        for model, task in list(asked):
            if model in self.hybrids:
                asked |= set(self.fused_of(model, task))
        tasks = self.retrieval_tasks
        return {
            model: [task for task in tasks if (model, task) in asked]
            for model in self.evaluated
            if model not in self.hybrids
        }

    def collection(self, task: str) -> str | None:
        """Return the folder of a local task's collection, or None for a hub task."""
        suite = self.benchmarks[self.tasks[task]]
        if isinstance(suite, MadeHere):
            return paths.collection(self.tasks[task], task)
        return f"{suite.path}/{task}" if suite.source == "folder" else None

    def local_models(self, section: str, name: str) -> list[Path]:
        """Return the folders of models that an entry's step loads, except those made here."""
        if section == "models" and name not in self.models:
            section, name = "experiments", ModelName.parse(name).training
        entry = getattr(self, section)[name]
        made = self._trained(entry)
        refs = _models(entry).items()
        return [Path(ref) for key, ref in refs if ref.is_folder and key not in made]


def _models(entry: Settings) -> dict[str, ModelRef]:
    return {key: used for key, used in entry if isinstance(used, ModelRef)}
