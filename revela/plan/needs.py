"""What targets need that is not there yet, from the configuration and the files of `results/`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, unknown_name
from revela.config.file import Config
from revela.config.steps import EncoderModel, LanguageModel


@dataclass
class Needs:
    """What targets need that is not there yet."""

    corpora: set[str] = field(default_factory=set)
    batches: set[str] = field(default_factory=set)
    pairs: set[str] = field(default_factory=set)
    backbones: set[str] = field(default_factory=set)
    experiments: set[str] = field(default_factory=set)
    scores: set[tuple[str, str]] = field(default_factory=set)  # model, task


def needs_of(config: Config, targets: Iterable[str]) -> Needs:
    """Return what must be made for targets: they themselves, and what they stand on and lack.

    Args:
        config: the configuration.
        targets: files below `results/` as the workflow makes them, or `all`; `all` if none.

    Raises:
        RevelaError: a target is not one that the workflow makes.
    """
    needs = Needs()
    for target in list(targets) or ["all"]:
        if target == "all":
            for table in config.tables:
                _need_table(config, needs, table)
            for figure in config.figures:
                _need_figure(config, needs, figure)
            continue
        parts = Path(target).parts
        if parts[:1] != ("results",) or len(parts) < 3:
            raise RevelaError(f"target {target!r}: expected a file below results/, or all")
        _need_target(config, needs, parts[1], parts[2:], target)
    return needs


def _need_target(config: Config, needs: Needs, kind: str, rest: Any, target: str) -> None:
    name = rest[0].partition(".")[0]
    known: Any
    match kind:
        case "tables":
            name = re.sub(r"_(vs_paper|significance)$", "", name)
            known = [*config.tables, *config.listings, "usage"]
            if name in config.tables:
                _need_table(config, needs, name)
        case "figures":
            known = config.figures
            if name in known:
                _need_figure(config, needs, name)
        case "scores" | "runs":
            name, known = rest[0], config.evaluated
            task = re.sub(r"\.(queries\.csv|json|trec)$", "", rest[-1])
            if task not in tasks_of(config):
                raise RevelaError(
                    f"target {target!r}: {unknown_name('task', task, tasks_of(config))}"
                )
            if name in known:
                _need_score(config, needs, name, task, explicit=True)
        case "models":
            name, known = rest[0], [*config.experiments, *config.backbones]
            if name in known:
                _need_model(config, needs, name, explicit=True)
        case "batches" | "pairs":
            known = getattr(config, kind)
            if name in known:
                _need_rows(config, needs, kind, name, explicit=True)
        case "chunks":
            known = config.corpora
            needs.corpora.add(name)
        case _:  # benchmarks, logs: made from what is there
            return
    if name not in known:
        raise RevelaError(f"target {target!r}: {unknown_name('entry', name, known)}")


def tasks_of(config: Config) -> dict[str, str]:
    """Return the benchmark of each task."""
    return {task: name for name, suite in config.benchmarks.items() for task in suite.tasks}


def _need_table(config: Config, needs: Needs, name: str) -> None:
    table = config.table(name)
    for model in (model for row in table.rows for model in row.model):
        for task in table.tasks():
            _need_score(config, needs, model, task)


def _need_figure(config: Config, needs: Needs, name: str) -> None:
    figure: Any = config.figures[name]
    if figure.kind == "step-cost":
        return
    if figure.kind in ("bars", "trend"):
        for table in figure.inputs():
            _need_table(config, needs, table)
        return
    for model in figure.inputs():
        _need_model(config, needs, model)
    if figure.kind == "learning":
        for experiment, _ in figure.experiments:
            for model in config.steps_of(experiment):
                _need_score(config, needs, model, figure.task)


def _need_score(
    config: Config, needs: Needs, model: str, task: str, explicit: bool = False
) -> None:
    if not explicit and Path(f"results/scores/{model}/{task}.json").exists():
        return
    needs.scores.add((model, task))
    entry = config.models.get(model)
    if model.partition("@")[0] in config.experiments:
        _need_model(config, needs, model.partition("@")[0])
    elif isinstance(entry, LanguageModel):
        _need_model(config, needs, entry.language_model)
    elif isinstance(entry, EncoderModel):
        _need_model(config, needs, entry.retriever)


def _need_model(config: Config, needs: Needs, name: str, explicit: bool = False) -> None:
    """Need an experiment or a backbone of the file; anything else is taken as it is."""
    if name in config.experiments:
        if explicit or not Path(f"results/models/{name}/retriever").exists():
            experiment = config.experiments[name]
            needs.experiments.add(name)
            kind = "pairs" if experiment.objective.name == "contriever" else "batches"
            _need_rows(config, needs, kind, experiment.data)
            for backbone in (experiment.retriever, experiment.language_model):
                _need_model(config, needs, backbone or "")
    elif name in config.backbones and (
        explicit or not Path(f"results/models/{name}/model.safetensors").exists()
    ):
        needs.backbones.add(name)
        _need_chunks(needs, config.backbones[name].corpora)


def _need_rows(config: Config, needs: Needs, kind: str, name: str, explicit: bool = False) -> None:
    if not explicit and Path(f"results/{kind}/{name}.parquet").exists():
        return
    getattr(needs, kind).add(name)
    entry = getattr(config, kind)[name]
    _need_chunks(needs, entry.corpora)
    for other in getattr(entry, "sample_from", {}):
        _need_rows(config, needs, "batches", other)


def _need_chunks(needs: Needs, corpora: Iterable[str]) -> None:
    needs.corpora |= {c for c in corpora if not Path(f"results/chunks/{c}.parquet").exists()}
