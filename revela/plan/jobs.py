"""The jobs of a run, as planned by Snakemake, and their external sources."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

from revela.config.catalogue import lm_eval_data_set, lm_eval_task_files
from revela.config.evaluation import LanguageModel, LmEvalBenchmark, MtebBenchmark
from revela.config.file import Config
from revela.config.names import ModelName, ModelRef, references
from revela.config.training import Experiment

RULES = ("chunk", "batch", "pair", "train", "evaluate", "evaluate_language_model")
"""The rules whose jobs take time."""
SECTIONS = {"chunk": "corpora", "batch": "batches", "pair": "pairs"}
"""The section of the configuration whose entries a rule makes, for rules that make texts."""


class Job(NamedTuple):
    """A job of one of `RULES`."""

    rule: str
    name: str  # of the corpus, batch set, set of pairs, experiment or model
    task: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class Source(NamedTuple):
    """A model or data set on the hub."""

    what: str  # model, data set
    name: str
    revision: str | None = None


def sources(config: Config, job: Job) -> Iterator[Source]:
    """Yield the models and data sets that a job loads and no other job makes."""
    match job.rule:
        case "chunk":
            corpus = config.corpora[job.name]
            if corpus.source == "hub":
                yield Source("data set", corpus.dataset, corpus.revision)
        case "batch":
            batches = config.batches[job.name]
            if batches.hub:
                yield Source("data set", batches.hub, batches.revision)
        case "train":
            yield from _weights(config.experiments[job.name])
        case "evaluate" | "evaluate_language_model":
            yield from _weights(config.model(job.name))
            if training_of(config, job.name):  # LoRA's weights are applied to the backbone again
                yield from _weights(backbone_of(config, job.name))
            suite = config.task(job.task)
            if isinstance(suite, MtebBenchmark):
                yield _mteb_data_set(job.task)
            elif isinstance(suite, LmEvalBenchmark):
                file = lm_eval_task_files(suite.path).get(job.task)
                path = lm_eval_data_set(file) if file else None
                if path and "/" in path:
                    yield Source("data set", path)


def _weights(entry: object) -> Iterator[Source]:
    revision, adapter = getattr(entry, "revision", None), getattr(entry, "adapter", None)
    for model in references(entry):
        if isinstance(model, ModelRef) and model.is_hub_name:
            yield Source("model", model, None if adapter and model != adapter else revision)


@functools.cache
def _mteb_data_set(task: str) -> Source:
    import mteb

    described = mteb.get_task(task).metadata.dataset
    return Source("data set", described["path"], described.get("revision"))


def training_of(config: Config, model: str) -> Experiment | None:
    """Return the experiment that trains an evaluated model, or None for other models."""
    entry = config.models.get(model)
    name = entry.language_model if isinstance(entry, LanguageModel) else model
    return config.experiments.get(ModelName.parse(name).training)


def backbone_of(config: Config, model: str) -> str | None:
    """Return the backbone of an evaluated model, or None for BM25 and APIs."""
    entry, experiment = config.models.get(model), training_of(config, model)
    if experiment:
        return experiment.language_model if entry else experiment.retriever
    return getattr(entry, "retriever", None) or getattr(entry, "language_model", None)
