"""What jobs cost, from shapes and counts alone: operations, disk, what is fetched from the hub."""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from revela.common.hub import Hub
from revela.config.file import Config
from revela.config.steps import Benchmark, MtebBenchmark
from revela.plan import estimates
from revela.plan.counts import BYTES_PER_WORD, CHUNK_FILL, Counts
from revela.plan.estimates import GB, TFLOPS, Collection, Models, Shape
from revela.plan.jobs import Job, backbone_of, sources

_RUN_LINES = 100  # documents of a query in a run
_BYTES_PER_LINE = 55
_SECTIONS = {"batch": "batches", "pair": "pairs"}

ShapeOf = Callable[[str | None], Shape | None]


def known_shapes(config: Config, hub: Hub, known: Path) -> ShapeOf:
    """Return what tells the shape of a backbone, a hub name or a folder, None if unknown."""
    published = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}

    @functools.cache
    def shape(name: str | None) -> Shape | None:
        if name in config.backbones:
            return Shape.of_backbone(config.backbones[name])
        described = name and (hub.config(name) or published.get(name, {}).get("config"))
        try:
            return Shape.of(described) if described else None
        except Exception:  # of somebody else's file: whatever is wrong, its costs are unknown
            return None

    return shape


@dataclass
class Cost:
    """What jobs cost; what is not known is left out."""

    flops: float = 0
    disk: float = 0  # bytes that stay
    peak: float = 0  # bytes that are there while the largest job runs
    fetched: dict[str, float] = field(default_factory=dict)  # name → bytes, each fetched once

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.disk + other.disk,
            max(self.peak, other.peak),
            self.fetched | other.fetched,
        )

    def figures(self) -> dict[str, float]:
        """Return GPU-hours and gigabytes under the names that a report has for them."""
        hours = {f"{gpu} hours": self.flops / rate / 3.6e15 for gpu, rate in TFLOPS.items()}
        sizes = {"disk GB": self.disk / GB, "fetched GB": sum(self.fetched.values()) / GB}
        return {name: round(value, 2) for name, value in (hours | sizes).items()}


class Costs:
    """The cost of each job of a configuration."""

    def __init__(self, config: Config, counts: Counts, shape: ShapeOf) -> None:
        self._config, self._counts, self._shape = config, counts, shape
        self._of = functools.cache(self._cost)
        self._collection = functools.cache(self._size)

    def of(self, jobs: Iterable[Job]) -> Cost:
        """Return the cost of jobs together."""
        return sum(map(self._of, jobs), Cost())

    def models(self, experiment: str) -> Models | None:
        """Return the shapes that an experiment trains with, None if one is unknown."""
        settings = self._config.experiments[experiment]
        retriever = self._shape(settings.retriever)
        language_model = self._shape(settings.language_model)
        if retriever is None or (settings.language_model and language_model is None):
            return None
        return Models(retriever, language_model)

    def row_size(self, experiment: str) -> int:
        """Return the texts of a row of an experiment's data: B, or query and documents."""
        data = self._config.experiments[experiment].data
        entry = getattr(self._config, data.section)[data]
        return entry.batch_size if data.section == "batches" else 2 + entry.negatives

    def _size(self, task: str) -> Collection | None:
        return Collection.of(task) if isinstance(self._config.task(task), MtebBenchmark) else None

    def _cost(self, job: Job) -> Cost:
        cost = {
            "chunk": self._of_chunks,
            "batch": self._of_rows,
            "pair": self._of_rows,
            "pretrain": self._of_pretraining,
            "train": self._of_training,
        }.get(job.rule, self._of_evaluation)(job)
        for source in sources(self._config, job):
            if source.what == "model" and (shape := self._shape(source.name)):
                cost.fetched[source.name] = shape.file_bytes
        return cost

    def _of_chunks(self, job: Job) -> Cost:
        text, corpus = self._counts.text(job.name), self._config.corpora[job.name]
        words = text.chunks * corpus.max_words * CHUNK_FILL if text else 0
        return Cost(disk=words * BYTES_PER_WORD, fetched={job.name: text.download if text else 0})

    def _of_rows(self, job: Job) -> Cost:
        section = _SECTIONS[job.rule]
        rows = self._counts.data(section, job.name)
        words = rows.count * self._counts.words_per_row(section, job.name) if rows else 0
        hubs = [s.name for s in sources(self._config, job)]
        fetched = {hub: self._counts.download(hub) for hub in hubs}
        return Cost(disk=words * BYTES_PER_WORD, fetched=fetched)

    def _of_pretraining(self, job: Job) -> Cost:
        settings, shape = self._config.backbones[job.name], self._shape(job.name)
        if shape is None:
            return Cost()
        return Cost(estimates.pretraining_flops(settings, shape), 4 * shape.parameters)

    def training_flops(self, experiment: str) -> float | None:
        """Return the floating-point operations of a training, None if they are not known."""
        models, rows = self.models(experiment), self._counts.rows_trained(experiment)
        if models is None or rows is None:
            return None
        settings, size = self._config.experiments[experiment], self.row_size(experiment)
        return estimates.training_flops(settings, models, size, rows)

    def _of_training(self, job: Job) -> Cost:
        settings, models = self._config.experiments[job.name], self.models(job.name)
        if models is None:
            return Cost()
        trained = estimates.trained_parameters(settings, models)
        return Cost(
            self.training_flops(job.name) or 0,
            4 * trained,
            # Weights and two moments; the new one stands before the oldest one goes.
            12 * trained * (settings.checkpoints_kept + 1),
        )

    def _of_evaluation(self, job: Job) -> Cost:
        size = self._collection(job.task)
        if size is None:
            return Cost()
        if self._config.shared_corpus(job.name, job.task):
            size = size.queries_alone()
        shape = self._shape(backbone_of(self._config, job.name))
        runs = float(size.queries * _RUN_LINES * _BYTES_PER_LINE)
        fetched = {job.task: float(size.characters)}
        if shape is None:
            return Cost(disk=runs, fetched=fetched)
        flops = size.encoding_flops(shape, self._longest(job))
        return Cost(flops, runs, 2 * shape.hidden * size.documents, fetched)

    def _longest(self, job: Job) -> int:
        """Return the tokens of a text at most when a model is evaluated on a task."""
        suite = self._config.task(job.task)
        assert isinstance(suite, Benchmark)
        own = getattr(self._config.models.get(job.name), "max_length", None)
        return min(own or suite.max_length, suite.max_length)
