"""Costs of planned jobs, estimated from shapes and counts: operations, disk, downloads."""

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from revela.common.hub import Hub
from revela.common.outputs import read_json
from revela.config.evaluation import MtebBenchmark
from revela.config.file import Config
from revela.plan import estimates
from revela.plan.counts import BYTES_PER_WORD, CHUNK_FILL, Counts, texts_per_row
from revela.plan.estimates import GB, TFLOPS, Collection, Models, Shape
from revela.plan.jobs import SECTIONS, Job, Source, backbone_of, sources
from revela.plan.machine import Machine

_RUN_LINES = 100  # documents per query in a run
_BYTES_PER_LINE = 55


@dataclass
class Cost:
    """The cost of jobs; unknown costs are omitted."""

    flops: float = 0
    disk: float = 0  # bytes that are kept
    peak: float = 0  # temporary bytes of the largest job
    fetched: dict[Source, float] = field(default_factory=dict)  # bytes; each source is fetched once
    cached: dict[Source, float] = field(default_factory=dict)  # bytes in the hub's cache

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.disk + other.disk,
            max(self.peak, other.peak),
            self.fetched | other.fetched,
            self.cached | other.cached,
        )

    def figures(self) -> dict[str, float]:
        """Return GPU-hours and gigabytes under their names in a report."""
        hours = {f"{gpu} hours": self.flops / rate / 3.6e15 for gpu, rate in TFLOPS.items()}
        sizes = {"disk GB": self.disk / GB, "fetched GB": sum(self.fetched.values()) / GB}
        return {name: round(value, 2) for name, value in (hours | sizes).items()}


class Plan:
    """The jobs of a run, and estimates of what they use and cost.

    `known` is the folder with published counts of corpora and shapes of models.
    """

    def __init__(self, config: Config, jobs: Iterable[Job], machine: Machine, known: Path) -> None:
        self.config, self.machine, self.hub = config, machine, Hub()
        self.jobs = sorted(jobs)
        self.counts = Counts(config, self.jobs, known / "corpora.csv", self.hub.offline)
        self._published = read_json(known / "models.json")
        self.shape = functools.cache(self._shape)
        self._cost_of = functools.cache(self._cost)

    def of(self, *rules: str) -> dict[str, list[Job]]:
        """Return the jobs of some rules by name."""
        found = defaultdict(list)
        for job in self.jobs:
            if job.rule in rules:
                found[job.name].append(job)
        return found

    def cost(self, jobs: Iterable[Job]) -> Cost:
        """Return the total cost of jobs."""
        return sum(map(self._cost_of, jobs), Cost())

    def models(self, experiment: str) -> Models | None:
        """Return the shapes of an experiment's models, or None if one is unknown."""
        settings = self.config.experiments[experiment]
        names = [name for name in (settings.retriever, settings.language_model) if name]
        shapes = [shape for name in names if (shape := self.shape(name))]
        return shapes if len(shapes) == len(names) else None

    def row_size(self, experiment: str) -> int:
        """Return the number of texts per row of an experiment's data: B, or query and documents."""
        data = self.config.experiments[experiment].data
        return texts_per_row(getattr(self.config, data.section)[data])

    def training_flops(self, experiment: str) -> float | None:
        """Return the floating-point operations of a training, or None if unknown."""
        models, rows = self.models(experiment), self.counts.rows_trained(experiment)
        if models is None or rows is None:
            return None
        settings, size = self.config.experiments[experiment], self.row_size(experiment)
        return estimates.training_flops(settings, models, size, rows)

    def _shape(self, name: str | None) -> Shape | None:
        """Return the shape of an entry's model, a hub name or a folder, or None if unknown."""
        if name in self.config.experiments:
            return self._shape(self.config.experiments[name].language_model)
        described = name and (self.hub.config(name) or self._published.get(name, {}).get("config"))
        try:
            return Shape.of(described) if described else None
        except Exception:  # any error in an external file makes its costs unknown
            return None

    def _cost(self, job: Job) -> Cost:
        cost = {
            "chunk": self._of_chunks,
            "batch": self._of_rows,
            "pair": self._of_rows,
            "train": self._of_training,
        }.get(job.rule, self._of_evaluation)(job)
        for source in sources(self.config, job):
            if source.what == "model" and (shape := self.shape(source.name)):
                cost.fetched[source] = cost.cached[source] = shape.file_bytes
        return cost

    def _of_chunks(self, job: Job) -> Cost:
        text, corpus = self.counts.text(job.name), self.config.corpora[job.name]
        if text is None:
            return Cost()
        words = text.chunks * corpus.max_words * CHUNK_FILL
        fetched = {Source("data set", job.name): text.download}
        # A corpus without `file` is streamed.
        cached = fetched if getattr(corpus, "file", None) else {}
        return Cost(disk=words * BYTES_PER_WORD, fetched=fetched, cached=cached)

    def _of_rows(self, job: Job) -> Cost:
        section = SECTIONS[job.rule]
        entry, rows = getattr(self.config, section)[job.name], self.counts.data(section, job.name)
        if rows is None:
            return Cost()
        longest = max((self.config.corpora[one].max_words for one in entry.corpora), default=120)
        words = rows.count * texts_per_row(entry) * longest * CHUNK_FILL
        fetched = dict.fromkeys(sources(self.config, job), rows.download)
        return Cost(disk=words * BYTES_PER_WORD, fetched=fetched, cached=fetched)

    def _of_training(self, job: Job) -> Cost:
        settings, models = self.config.experiments[job.name], self.models(job.name)
        if models is None:
            return Cost()
        trained = estimates.trained_parameters(settings, models)
        # Weights and two moments; a third checkpoint is written before the oldest is deleted.
        checkpoints = 12 * trained * 3
        return Cost(self.training_flops(job.name) or 0, disk=4 * trained, peak=checkpoints)

    def _of_evaluation(self, job: Job) -> Cost:
        suite = self.config.task(job.task)
        if not isinstance(suite, MtebBenchmark) or (size := Collection.of(job.task)) is None:
            return Cost()
        if self.config.shared_corpus(job.name, job.task):
            # Another task encodes the documents; the queries' tokens are negligible.
            size = Collection(0, size.queries, 0)
        source = Source("data set", job.task)
        cost = Cost(
            disk=size.queries * _RUN_LINES * _BYTES_PER_LINE,
            fetched={source: size.characters},
            cached={source: 2 * size.characters},  # as fetched and as prepared
        )
        if shape := self.shape(backbone_of(self.config, job.name)):
            own = getattr(self.config.models.get(job.name), "max_length", None)
            tokens = size.tokens(min(own or suite.max_length, suite.max_length))
            cost.flops, cost.peak = 2.0 * shape.matrices * tokens, 2 * shape.hidden * size.documents
        return cost
