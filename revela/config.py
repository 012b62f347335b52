"""The configuration: strict typed models, `base:` inheritance, every name cross-checked.

One file describes what to compute (`config.yaml`); the Snakemake profile says on what machines.
Each entry of a section is one thing to make, named by its key:

    corpora → batches, pairs → backbones → experiments → benchmarks → tables, figures
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from revela.errors import RevelaError, unknown_name


class Settings(BaseModel):
    """Base of every entry: immutable, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def dump(self) -> str:
        """Return the settings as one line of JSON with sorted keys, as rules pass them on.

        Defaults are left out: a setting that is new in the schema changes no job made before it.
        """
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)


Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Temperature = Annotated[float, Field(gt=0)]
OneOrMore = Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
# A list of pairs: the order of columns must survive the sorting of keys that `dump` does.
Columns = Annotated[
    list[tuple[str, OneOrMore]],
    BeforeValidator(lambda v: list(v.items()) if isinstance(v, dict) else v),
]


# ---------------------------------------------------------------------------- corpora


class Corpus(Settings):
    """What all corpora share: how documents are chosen and cut into chunks."""

    documents: Positive | None = Field(None, description="keep a seeded sample of so many")
    exclude: list[str] = Field([], description="leave out documents whose id contains one of these")
    max_words: Positive = Field(120, description="words of a chunk at most")
    seed: int = 0


class FieldNames(Settings):
    """Which fields of a row hold a document."""

    id: str | None = None
    title: str | None = None
    text: str = "text"


class PackagesCorpus(Corpus):
    """Source and documentation of installed Python packages, one document a module."""

    source: Literal["python-packages"]
    packages: list[str] = Field(min_length=1)


class RowCorpus(Corpus):
    """A corpus whose documents are rows with named fields."""

    fields: FieldNames = FieldNames()
    join_title: bool = Field(False, description="consecutive rows of a title are one document")
    on_bad_row: Literal["error", "skip"] = "error"

    @model_validator(mode="after")
    def _title_to_join(self) -> Self:
        if self.join_title and self.fields.title is None:
            raise ValueError("join_title needs fields.title")
        return self


class FilesCorpus(RowCorpus):
    """Local files: .jsonl[.gz|.xz], .parquet, or a folder of .txt and .md files."""

    source: Literal["files"]
    path: str


class HubCorpus(RowCorpus):
    """A data set of the Hugging Face hub, streamed, or one raw file of its repository."""

    source: Literal["hub"]
    dataset: str
    revision: str | None = None
    subset: str | None = None
    split: str = "train"
    file: str | None = Field(None, description="read this .jsonl[.gz] or .parquet file instead")


AnyCorpus = Annotated[PackagesCorpus | FilesCorpus | HubCorpus, Field(discriminator="source")]


# ---------------------------------------------------------------------------- training data


class Batches(Settings):
    """Batches of B consecutive chunks, from corpora, from other batch sets, or ready-made.

    Exactly one of `corpora`, `mix`, `file` and `hub` says where they come from.
    """

    batch_size: int = Field(16, ge=2)
    corpora: list[str] = []
    mix: dict[str, Positive] = Field(
        {}, description="batch set → batches to sample from it; larger ones are split"
    )
    file: str | None = Field(None, description="JSON lines: a list of B texts, or {src, text}")
    hub: str | None = Field(None, description="a hub data set of such JSON lines")
    source: str = Field("", description="the corpus of ready-made batches that name none")
    consecutive: Positive | None = Field(
        None, description="chunks from one place; null: all B, as in the paper"
    )
    sample: Positive | None = Field(None, description="keep a seeded sample of so many batches")
    seed: int = 0

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in ("corpora", "mix", "file", "hub") if getattr(self, k)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of corpora, mix, file, hub; given: {given}")
        if self.consecutive and (not self.corpora or self.batch_size % self.consecutive):
            raise ValueError("consecutive needs corpora, and a batch_size that it divides")
        return self


class Pairs(Settings):
    """Query-document pairs cut from raw chunks, with negatives, for Contriever."""

    corpora: list[str] = Field(min_length=1)
    pairs: Positive | None = Field(None, description="pairs to make; all chunks if not given")
    negatives: Natural = 15
    inverse_cloze: float = Field(0.5, ge=0, le=1, description="share; the rest is cropping")
    seed: int = 0


class Backbone(Settings):
    """A small Llama with its own tokenizer, pretrained on the chunks of corpora."""

    corpora: list[str] = Field(min_length=1)
    vocabulary: Positive = 8192
    hidden_size: Positive = 256
    intermediate_size: Positive = 688
    layers: Positive = 4
    heads: Positive = 4
    sequence_length: Positive = 256
    sequences_per_step: Positive = 16
    tokens: Positive = Field(description="token passes in all")
    learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: Natural = 50
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    compile: bool = Field(False, description="torch.compile: pays off on a GPU")
    checkpoint_steps: Positive = Field(200, description="and steps between held-out losses")
    seed: int = 0


# ---------------------------------------------------------------------------- experiments


class Lora(Settings):
    """Low-rank adapters; the defaults are the paper's (section 4.1 and its public code)."""

    rank: Positive = 256
    alpha: Positive = 64
    dropout: float = Field(0.1, ge=0, lt=1)
    targets: list[str] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]


class Encoding(Settings):
    """How a text becomes a vector; one and the same for training and evaluation."""

    query_prefix: str = "Query: "
    passage_prefix: str = "Passage: "
    pooling: Literal["last", "mean", "cls"] = "last"
    append_eos: bool = True
    normalize: bool = Field(True, description="cosine similarity; else dot product")


class RevelaObjective(Settings):
    """In-batch attention (paper, section 3)."""

    name: Literal["revela"]
    temperature: Temperature = Field(1e-4, description="of the in-batch similarities")
    value_norm: bool = Field(True, description="V-normalisation (paper, equation 8)")
    min_similarity: float = Field(1e-12, ge=0, description="pairs below it are skipped")
    similarity_precision: Literal["float32", "bfloat16"] = "float32"
    plain_loss_every: Natural = Field(50, description="steps between plain losses; 0: never")
    language_model_loss: bool = Field(False, description="add the e rows' own loss")
    freeze_language_model: bool = False
    across_processes: bool = Field(
        False, description="chunks read those of all processes: B grows with the number of GPUs"
    )


class ReplugObjective(Settings):
    """Distillation of a frozen language model's likelihoods (paper, appendix B.3)."""

    name: Literal["replug"]
    retriever_temperature: Temperature = 1e-3
    language_model_temperature: Temperature = 1e-3
    include_self: bool = Field(True, description="the paper's sums run over k = i as well")


class ContrieverObjective(Settings):
    """InfoNCE over own and in-batch negatives (paper, appendix D.1)."""

    name: Literal["contriever"]
    temperature: Temperature = 0.01
    texts_at_a_time: Positive | None = Field(
        None, description="encode so many at a time: memory for as many, whatever the batch"
    )


AnyObjective = Annotated[
    RevelaObjective | ReplugObjective | ContrieverObjective, Field(discriminator="name")
]


class Experiment(Settings):
    """One trained retriever; the defaults are the paper's (section 4.1)."""

    objective: AnyObjective
    data: str = Field(description="a batch set; for Contriever a set of pairs")
    retriever: str = Field(description="a backbone of this file, a hub name or a folder")
    language_model: str | None = None
    encoding: Encoding = Encoding()
    lora: Lora | None = Field(Lora(), description="null trains all weights")
    max_length: int = Field(157, ge=3, description="tokens of a chunk, the EOS included")
    first_half: list[str] = Field([], description="corpora whose query form is a first half")
    batches_per_step: Positive = Field(32, description="batches (pairs) of one optimizer step")
    batches_per_device: Positive = Field(1, description="batches (pairs) of one forward pass")
    steps: Positive | None = Field(None, description="one epoch if not given")
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: Natural = 100
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    precision: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="bfloat16 falls back to float32 where the device lacks it"
    )
    gradient_checkpointing: bool = False
    checkpoint_steps: Positive = 500
    checkpoints_kept: int = Field(2, ge=2)
    snapshots: list[Natural] = Field([], description="steps whose similarities are recorded")
    retrievers_at: list[Natural] = Field(
        [], description="steps whose retriever is kept too, as <experiment>@<step>"
    )
    tensorboard: bool = False
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        needs_model = self.objective.name != "contriever"
        if needs_model and self.language_model is None:
            raise ValueError(f"language_model is required by objective {self.objective.name}")
        if self.batches_per_step % self.batches_per_device:
            raise ValueError(
                f"batches_per_step {self.batches_per_step} is not divisible by "
                f"batches_per_device {self.batches_per_device}"
            )
        if self.steps and max([0, *self.retrievers_at]) > self.steps:
            raise ValueError(f"retrievers_at has a step behind the last one, {self.steps}")
        if self.objective.name != "contriever" and self.batches_per_device != 1:
            raise ValueError("batches_per_device must be 1: a batch attends to itself alone")
        return self


# ---------------------------------------------------------------------------- evaluation


class Bm25Model(Settings):
    """BM25 by bm25s, as mteb ships it."""

    kind: Literal["bm25s"]


class EncoderModel(Settings):
    """A pretrained encoder: a backbone of this file, a hub name or a folder."""

    kind: Literal["encoder"]
    retriever: str
    revision: str | None = None
    encoding: Encoding = Encoding()


AnyModel = Annotated[Bm25Model | EncoderModel, Field(discriminator="kind")]


class PydocsBenchmark(Settings):
    """Three retrieval tasks cut from the Python standard library's own source."""

    source: Literal["pydocs"]
    tasks: list[
        Literal["docstring-to-function", "function-to-docstring", "first-to-second-half"]
    ] = Field(min_length=1)
    max_queries: Positive = 500
    max_length: Positive = 512
    seed: int = 0


class MtebBenchmark(Settings):
    """Retrieval tasks of mteb, by their names."""

    source: Literal["mteb"]
    tasks: list[str] = Field(min_length=1)
    max_length: Positive = 2048


class FolderBenchmark(Settings):
    """Collections in BEIR layout: <path>/<task>/{corpus,queries}.jsonl[.gz], qrels.tsv."""

    source: Literal["folder"]
    path: str
    tasks: list[str] = Field(min_length=1)
    max_length: Positive = 2048


AnyBenchmark = Annotated[
    PydocsBenchmark | MtebBenchmark | FolderBenchmark, Field(discriminator="source")
]


# ---------------------------------------------------------------------------- report


class Row(Settings):
    """One system of a table: measured here (`model`), printed elsewhere (`reported`), or both.

    A system with both is shown as measured, and compared with what was printed.
    """

    label: str
    size: str = Field("", description="of the model, printed under the label")
    group: str = Field("", description="a heading over neighbouring systems")
    model: str | None = None
    reported: str | None = Field(None, description="its name in the table's `reported` file")
    shaded: bool = Field(False, description="on grey in LaTeX, e.g. what is supervised")
    ranked: bool = Field(True, description="may be in bold; false for what does not compete")

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if self.model is None and self.reported is None:
            raise ValueError("give model, reported or both")
        return self


class Table(Settings):
    """Systems × tasks and their mean, nDCG@10 × 100.

    `benchmark` shows each of its tasks under its own name, `columns` chooses and names them. A
    table that only reports may have neither: it shows the tasks of its `reported` file.
    """

    caption: str
    rows: list[Row] = Field(min_length=1)
    benchmark: str | None = None
    columns: Columns = Field(
        [], description="heading → task, task:split/subset, benchmark, or a list: their mean"
    )
    reported: str | None = Field(
        None, description="CSV of printed figures; `task` or `model` heads its first column"
    )
    mean: str = Field("Mean", description="heading of the mean, here and in the reported file")
    bold: Literal["table", "group", "none"] = Field("table", description="best of which systems")
    transposed: bool = Field(False, description="print tasks as rows, systems as columns")
    tolerance: float = Field(1.0, ge=0, description="points within which a figure is reproduced")
    measure: str = "ndcg_at_10"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.benchmark and self.columns:
            raise ValueError("give at most one of benchmark, columns")
        if not self.benchmark and not self.columns and any(row.model for row in self.rows):
            raise ValueError("measured rows need benchmark or columns")
        if (self.reported is not None) != any(row.reported for row in self.rows):
            raise ValueError("reported, a CSV file, and rows with reported need each other")
        names = self.names()
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two rows are called {min(twice)!r}: change label, size or group")
        return self

    def names(self) -> list[str]:
        """Return what each row is called: label and size, after its group where two would clash."""
        short = [f"{row.label} {row.size}".strip() for row in self.rows]
        return [
            f"{row.group} / {name}" if row.group and short.count(name) > 1 else name
            for row, name in zip(self.rows, short, strict=True)
        ]

    def tasks(self) -> list[str]:
        """Return the tasks that a measured row needs, without their subsets, each once."""
        return list(dict.fromkeys(c.partition(":")[0] for _, cs in self.columns for c in cs))


class CurvesFigure(Settings):
    """Training curves: loss, loss without in-batch attention, mean top similarity."""

    kind: Literal["curves"]
    caption: str
    experiments: dict[str, str] = Field(min_length=1, description="experiment → label")


class DynamicsFigure(Settings):
    """In-batch similarities of one batch at several steps (paper, figure 6)."""

    kind: Literal["dynamics"]
    caption: str
    experiment: str


class LearningFigure(Settings):
    """What experiments score on a task at the steps whose retriever they keep, and at the end."""

    kind: Literal["learning"]
    caption: str
    task: str
    experiments: dict[str, str] = Field(min_length=1, description="experiment → label")
    measure: str = "ndcg_at_10"


class PretrainingFigure(Settings):
    """A backbone's loss, in training and on held-out documents, over the tokens seen."""

    kind: Literal["pretraining"]
    caption: str
    backbone: str


AnyFigure = Annotated[
    CurvesFigure | DynamicsFigure | LearningFigure | PretrainingFigure,
    Field(discriminator="kind"),
]


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
    figures: dict[str, AnyFigure] = {}

    def evaluable(self) -> list[str]:
        """Return the names of everything that can be a row of a table."""
        kept = [f"{n}@{step}" for n, e in self.experiments.items() for step in e.retrievers_at]
        return [*self.experiments, *self.models, *kept]

    def model(self, name: str) -> Bm25Model | EncoderModel:
        """Return how to load a model for evaluation; an experiment is its trained encoder."""
        if name in self.models:
            return self.models[name]
        experiment, _, step = name.partition("@")
        return EncoderModel(
            kind="encoder",
            retriever=f"results/models/{experiment}/{f'steps/{step}' if step else 'retriever'}",
            encoding=self.experiments[experiment].encoding,
        )

    def table(self, name: str) -> Table:
        """Return a table with its columns spelt out: lists of tasks, no benchmarks."""
        table = self.tables[name]
        if table.benchmark:
            columns = [(task, [task]) for task in self.benchmarks[table.benchmark].tasks]
        else:
            suites: dict[str, list[str]] = {k: list(b.tasks) for k, b in self.benchmarks.items()}
            columns = [
                (heading, [task for entry in entries for task in suites.get(entry, [entry])])
                for heading, entries in table.columns
            ]
        return table.model_copy(update={"benchmark": None, "columns": columns})


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
        raise RevelaError(f"{source}: {_first_problem(error, resolved)}") from error
    _check_names(config, source)
    return config


def parse_settings(model: Any, text: str) -> Any:
    """Read the JSON settings that a command was given as an entry of type `model`.

    Raises:
        RevelaError: not JSON, or not the settings of this command.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise RevelaError(f"--settings: not valid JSON: {error}") from error
    try:
        return TypeAdapter(model).validate_python(raw)
    except ValidationError as error:
        raise RevelaError(f"--settings: {_first_problem(error, raw)}") from error


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


def _first_problem(error: ValidationError, raw: Any) -> str:
    """Tell the first problem in one line: key, what is wrong, the value."""
    problem = error.errors(include_url=False)[0]
    keys: list[str] = []
    value: Any = raw
    for part in problem["loc"]:
        # The path names union members as well; those are no keys of the file.
        in_mapping = isinstance(value, dict) and part in value
        if in_mapping or (isinstance(value, list) and isinstance(part, int)):
            keys.append(str(part))
            value = value[part]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    last = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        known = {field for model in _models(Settings) for field in model.model_fields}
        if last in known:
            return f"{'.'.join(keys)}: {last!r} is not a key of this entry{more}"
        return f"{'.'.join(keys)}: {unknown_name('key', last, known)}{more}"
    if problem["type"] == "missing":
        return f"{'.'.join([*keys, last])}: missing{more}"
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(value, dict) else f"; got {value!r}"
    return f"{'.'.join(keys)}: {message}{shown}{more}"


def _models(model: type[Settings]) -> list[type[Settings]]:
    return [model, *(m for child in model.__subclasses__() for m in _models(child))]


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
        for other in batches.mix:
            check(f"batches.{name}.mix", "batch set", other, config.batches)
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
    seen: dict[str, str] = {}
    for name, benchmark in config.benchmarks.items():
        if isinstance(benchmark, MtebBenchmark):
            from revela.benchmarks import mteb_task_names

            for task in benchmark.tasks:
                check(f"benchmarks.{name}.tasks", "mteb retrieval task", task, mteb_task_names())
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
                check(f"{key}.columns", f"subset of {task}", subset, _subsets(task))
        for row in table.rows:
            if row.model is not None:
                check(f"{key}.rows", "model or experiment", row.model, config.evaluable())
        if table.reported:
            from revela.reported import read_reported

            try:
                printed = read_reported(Path(table.reported))
            except RevelaError as error:
                raise RevelaError(f"{source}: {key}.reported: {error}") from error
            for system in (row.reported for row in table.rows if row.reported):
                check(f"{key}.rows", f"system of {table.reported}", system, printed.index)
            for heading, _ in config.table(name).columns:
                check(f"{key}.columns", f"task of {table.reported}", heading, printed.columns)
    for name, figure in config.figures.items():
        if isinstance(figure, PretrainingFigure):
            check(f"figures.{name}.backbone", "backbone", figure.backbone, config.backbones)
            continue
        named = [figure.experiment] if isinstance(figure, DynamicsFigure) else figure.experiments
        for experiment_name in named:
            check(f"figures.{name}", "experiment", experiment_name, config.experiments)
        if isinstance(figure, LearningFigure):
            tasks = [task for benchmark in config.benchmarks.values() for task in benchmark.tasks]
            check(f"figures.{name}.task", "task", figure.task, tasks)
        if isinstance(figure, DynamicsFigure):
            experiment = config.experiments[figure.experiment]
            if not experiment.snapshots or experiment.objective.name != "revela":
                raise RevelaError(
                    f"{source}: figures.{name}.experiment: {figure.experiment!r} must be a revela "
                    "experiment with snapshots"
                )


def _subsets(task: str) -> set[str]:
    """Return the subsets of an mteb task as scores name them, none for a local task."""
    import mteb

    from revela.benchmarks import mteb_task_names

    if task not in mteb_task_names():
        return set()
    found = mteb.get_task(task)
    return {f"{split}/{subset}" for split in found.eval_splits for subset in found.hf_subsets}
