"""Settings of corpora, batches, pairs, backbones, experiments, models and benchmarks.

Those of tables and figures are in `revela.config.report`.
"""

import json
import os
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from revela.common.errors import RevelaError
from revela.config.names import (
    BatchSetName,
    CorpusName,
    LanguageWeights,
    Name,
    SourceName,
    Weights,
    entry_name,
)
from revela.config.problems import first_problem, unknown_key


class Settings(BaseModel):
    """Base of every entry: immutable, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, given: Any) -> Any:
        for key, value in given.items() if isinstance(given, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(unknown_key(str(key), cls))
            if isinstance(value, bool) and cls.model_fields[key].annotation is float:
                raise ValueError(f"{key} must be a number; got {value}")
        return given

    def dump(self) -> str:
        """Return the settings as one line of JSON with sorted keys, as rules pass them on.

        Defaults are omitted, so that a new setting in the schema does not change earlier jobs.
        """
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)


# Strict: `true` is not a number.
Positive = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Tokens = Annotated[int, Field(ge=8, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]
Temperature = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Precision = Annotated[
    Literal["float32", "bfloat16"],
    Field(description="bfloat16 is used on GPUs that support it, elsewhere float32"),
]


# ---------------------------------------------------------------------------- corpora


class First(Settings):
    """The first N in the source's order; a plain number draws a seeded sample instead."""

    first: Positive


Count = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[First, Tag("first")],
    Discriminator(lambda given: "first" if isinstance(given, dict | First) else "number"),
]


class Corpus(Settings):
    """Keys of all corpora: how documents are selected and cut into chunks."""

    max_documents: Count | None = Field(
        None, description="N draws a seeded sample, `{first: N}` takes the first ones; all if null"
    )
    exclude: list[str] = Field([], description="skip documents whose id contains one of these")
    share: tuple[Share, Share] = Field(
        (0.0, 1.0),
        description="keep documents whose hashed id is in this range, e.g. [0, 0.9] for training "
        "and [0.9, 1] for a held-out benchmark",
    )
    max_words: Positive = Field(120, description="maximum number of words in a chunk")
    seed: Natural = 0

    @field_validator("share")
    @classmethod
    def _in_order(cls, share: tuple[float, float]) -> tuple[float, float]:
        if share[0] >= share[1]:
            raise ValueError("the first number must be below the second")
        return share


class FieldNames(Settings):
    """The names of a row's fields that hold a document's id, title and text."""

    id: str | None = None
    title: str | None = None
    text: str = "text"


class PackagesCorpus(Corpus):
    """Source and documentation of installed Python packages, one document per module."""

    source: Literal["python-packages"]
    packages: list[str] = Field(min_length=1, description="import names of the packages")


OnBadRow = Annotated[
    Literal["error", "skip"],
    Field(description="skip: count and skip bad rows, up to one in a hundred"),
]


class RowCorpus(Corpus):
    """A corpus whose documents are rows with named fields."""

    fields: FieldNames = FieldNames()
    join_title: bool = Field(
        False, description="join consecutive rows with the same title into one document"
    )
    on_bad_row: OnBadRow = "error"

    @model_validator(mode="after")
    def _title_to_join(self) -> Self:
        if self.join_title and self.fields.title is None:
            raise ValueError("join_title needs fields.title")
        return self


LocalPath = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]


class FilesCorpus(RowCorpus):
    """Local files: .jsonl[.gz|.xz] or .parquet, or a folder of those or of .txt and .md files."""

    source: Literal["files"]
    path: LocalPath


class HubCorpus(RowCorpus):
    """A data set on the Hugging Face hub, streamed, or one raw file of its repository."""

    source: Literal["hub"]
    on_bad_row: OnBadRow = "skip"
    dataset: str = Field(description="its name on the hub")
    revision: str | None = Field(None, description="commit, branch or tag of the data set")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = "train"
    file: str | None = Field(
        None, description="read this .jsonl[.gz|.xz] or .parquet file of the repository instead"
    )


AnyCorpus = Annotated[PackagesCorpus | FilesCorpus | HubCorpus, Field(discriminator="source")]


# ---------------------------------------------------------------------------- training data


class Batches(Settings):
    """Batches of B consecutive chunks: from corpora, from other batch sets, or ready-made.

    Give exactly one of `corpora`, `sample_from`, `file` and `hub`.
    """

    batch_size: int = Field(16, ge=2, strict=True, description="chunks per batch (B)")
    corpora: list[CorpusName] = []
    sample_from: dict[BatchSetName, Positive] = Field(
        {}, description="batch set → number of batches to draw"
    )
    oversized: Literal["split", "truncate"] = Field(
        "split",
        description="larger batches of `sample_from`: split into several batches, or truncate to "
        "the first `batch_size` chunks",
    )
    file: LocalPath | None = Field(
        None, description="ready-made batches in JSON lines: a list of B texts, or {src, text}"
    )
    hub: str | None = Field(None, description="a hub data set of such JSON lines")
    source: str = Field("", description="corpus of ready-made batches without `src`")
    sources: dict[str, SourceName] = Field(
        {},
        description="`src` of ready-made batches → corpus; a `src` that equals `source` needs no "
        "entry",
    )
    run_length: Positive | None = Field(
        None, description="consecutive chunks taken from one place; the whole batch if null"
    )
    num_batches: Count | None = Field(
        None, description="N draws a seeded sample, `{first: N}` takes the first ones; all if null"
    )
    seed: Natural = 0

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in ("corpora", "sample_from", "file", "hub") if getattr(self, k)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of corpora, sample_from, file, hub; given: {given}")
        if self.run_length and (not self.corpora or self.batch_size % self.run_length):
            raise ValueError("run_length needs corpora and must divide batch_size")
        return self


class Pairs(Settings):
    """Query-document pairs cut from raw chunks, with negatives, for Contriever."""

    corpora: list[CorpusName] = Field(min_length=1)
    num_pairs: Positive | None = Field(
        None, description="number of pairs; one for each chunk if null"
    )
    negatives: Natural = Field(15, description="negatives per pair")
    inverse_cloze: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of pairs made by the inverse cloze task; the others are crops",
    )
    seed: Natural = 0


class Backbone(Settings):
    """A small Llama with its own tokenizer, pretrained on the chunks of corpora."""

    corpora: list[CorpusName] = Field(min_length=1)
    vocabulary: int = Field(
        8192, ge=258, strict=True, description="vocabulary size of the tokenizer"
    )
    hidden_size: Positive = 256
    intermediate_size: Positive = 688
    layers: Positive = 4
    heads: Positive = 4
    sequence_length: Positive = 256
    sequences_per_step: Positive = 16
    tokens: Positive = Field(description="total number of training tokens, repetitions included")
    learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: Natural = 50
    precision: Precision = "bfloat16"
    compile: bool = Field(False, description="use torch.compile")
    checkpoint_steps: Positive = Field(
        200, description="steps between checkpoints and between held-out losses"
    )
    seed: Seed = 0

    @model_validator(mode="after")
    def _pairs_of_each_head(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by twice the number of heads, "
                f"{self.heads}"
            )
        return self


# ---------------------------------------------------------------------------- experiments


class Lora(Settings):
    """Low-rank adapters; the defaults are the paper's (section 4.1 and its public code)."""

    rank: Positive = 256
    alpha: Positive = 64
    dropout: float = Field(0.1, ge=0, lt=1)
    targets: list[str] = Field(
        [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")], min_length=1
    )


PREFIXES = {
    "paper": ("Query: ", "Passage: "),
    "train": ("query: ", "passage: "),
    "authors": ("query:  ", "passage:  "),
}


class EncodingKeys(Settings):
    """Keys of an encoding that override the model's sentence-transformers files.

    For a model without such files, other keys have the defaults of an experiment. `prefixes` sets
    both prefixes at once: those of the paper (`paper`), of the authors' training code (`train`), or
    of the authors' evaluation (`authors`, with two spaces).
    """

    query_prefix: str | None = Field(
        None, description="prefix of a query; `{instruction}` stands for the task's prompt"
    )
    passage_prefix: str | None = None
    pooling: Literal["last", "mean", "cls"] | None = None
    append_eos: bool | None = None
    normalize: bool | None = Field(None, description="true: cosine similarity; false: dot product")
    prefixes: Literal["paper", "train", "authors"] | None = Field(
        None, exclude=True, description="sets both prefixes at once"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_prefixes(cls, given: Any) -> Any:
        if not isinstance(given, dict) or (name := str(given.get("prefixes"))) not in PREFIXES:
            return given
        query, passage = PREFIXES[name]
        return {"query_prefix": query, "passage_prefix": passage} | given


class Encoding(EncodingKeys):
    """How a text becomes a vector, in training and evaluation alike."""

    query_prefix: str = "Query: "
    passage_prefix: str = "Passage: "
    pooling: Literal["last", "mean", "cls"] = "last"
    append_eos: bool = True
    normalize: bool = Field(True, description="true: cosine similarity; false: dot product")


class TrainingObjective(Settings):
    """Base of the objectives."""

    on_pairs: ClassVar[bool] = False  # trains on pairs of texts; else on batches of chunks


class RevelaObjective(TrainingObjective):
    """In-batch attention (paper, section 3)."""

    name: Literal["revela"]
    temperature: Temperature = Field(1e-4, description="temperature of the in-batch similarities")
    value_norm: bool = Field(True, description="V-normalisation (paper, equation 8)")
    min_similarity: float = Field(
        1e-12, ge=0, description="pairs of chunks with a smaller weight are skipped"
    )
    similarity_precision: Literal["float32", "bfloat16"] = "float32"
    plain_loss_every: Natural = Field(
        50,
        description="steps between measurements of plain_loss_gain and contrast; 0 never measures",
    )
    language_model_loss: bool = Field(
        False, description="add the loss without in-batch attention (of the e rows)"
    )
    freeze_language_model: bool = False
    similarity: Literal["retriever", "documents"] = Field(
        "retriever",
        description="documents: each chunk reads another chunk of its document and only the "
        "language model is trained",
    )
    wrong_share: Share = Field(
        0.2,
        description="with similarity: documents, share of chunks that read a chunk of a different "
        "document",
    )
    gather_across_devices: bool = Field(
        False, description="chunks attend to those of all GPUs, so B grows with their number"
    )

    @model_validator(mode="after")
    def _check_documents(self) -> Self:
        for key in ("freeze_language_model", "gather_across_devices"):
            if self.similarity == "documents" and getattr(self, key):
                raise ValueError(f"{key} requires similarity: retriever")
        return self


class ReplugObjective(TrainingObjective):
    """Distillation of a frozen language model's likelihoods (paper, appendix B.3)."""

    name: Literal["replug"]
    retriever_temperature: Temperature = Field(
        1e-3, description="temperature of the retriever's distribution"
    )
    language_model_temperature: Temperature = Field(
        1e-3, description="temperature of the language model's target distribution"
    )
    include_self: bool = Field(
        False,
        description="include the chunk itself among the candidates; given a copy of itself, its "
        "loss is close to zero, so it dominates the target",
    )


class ContrieverObjective(TrainingObjective):
    """InfoNCE with the negatives of a pair and in-batch negatives (paper, appendix C.1)."""

    on_pairs: ClassVar[bool] = True
    name: Literal["contriever"]
    temperature: Temperature = 0.01
    encode_batch_size: Positive | None = Field(
        None, description="texts encoded at a time, which bounds memory; the whole batch if null"
    )


Objective = RevelaObjective | ReplugObjective | ContrieverObjective
AnyObjective = Annotated[Objective, Field(discriminator="name")]


class Experiment(Settings):
    """One trained retriever; the defaults are the paper's (section 4.1)."""

    objective: AnyObjective
    data: Name = Field(description="a batch set or, for Contriever, a set of pairs")
    retriever: Weights
    language_model: LanguageWeights | None = Field(
        None,
        description="required unless the objective is Contriever: an experiment (whose trained "
        "language model is used) or a backbone of this file, a hub name or a folder",
    )
    encoding: Encoding = Encoding()
    lora: Lora | None = Field(Lora(), description="null trains all weights")
    max_length: Tokens = Field(
        157, description="maximum number of tokens in a chunk, prefix and EOS included"
    )
    first_half: list[SourceName] = Field(
        [], description="corpora in which the query is the first half of a chunk"
    )
    batches_per_step: Positive = Field(32, description="batches (pairs) per optimizer step")
    batches_per_device: Positive = Field(
        1, description="batches (pairs) per forward pass; only Contriever allows more than 1"
    )
    steps: Positive | None = Field(None, description="optimizer steps; one epoch if null")
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: Annotated[
        Annotated[Natural, Tag("steps")] | Annotated[float, Field(gt=0, lt=1), Tag("share")],
        Discriminator(lambda given: "share" if isinstance(given, float) else "steps"),
    ] = Field(100, description="number of steps, or a fraction of all steps")
    warmup: Literal["logarithmic", "linear"] = Field(
        "logarithmic", description="shape of the warm-up; DeepSpeed's WarmupDecayLR is logarithmic"
    )
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    precision: Precision = "bfloat16"
    checkpoint_steps: Positive = Field(
        500, description="maximum number of steps between checkpoints"
    )
    checkpoints_kept: int = Field(2, ge=2, strict=True, description="newest checkpoints to keep")
    similarity_snapshot_steps: list[Natural] = Field(
        [], description="steps at which the log records the similarities of the first batch"
    )
    save_retriever_steps: list[Natural] = Field(
        [], description="steps whose retriever is saved, as the model <experiment>@<step>"
    )
    seed: Seed = 0
    # Not part of `dump`: the settings of a training do not depend on how many there are.
    seeds: int = Field(
        1,
        gt=0,
        le=100,
        strict=True,
        exclude=True,
        description="number of trainings, with seeds from `seed` on; a table row shows their mean",
    )

    @field_validator("data")
    @classmethod
    def _of_its_kind(cls, name: Name, info: ValidationInfo) -> Name:
        if getattr(info.data.get("objective"), "on_pairs", False):
            return entry_name(name, info, "pairs", "set of pairs")
        return entry_name(name, info, "batches", "batch set")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.objective.on_pairs and self.language_model is None:
            raise ValueError(f"language_model is required by objective {self.objective.name}")
        if self.batches_per_step % self.batches_per_device:
            raise ValueError(
                f"batches_per_step {self.batches_per_step} is not divisible by "
                f"batches_per_device {self.batches_per_device}"
            )
        if self.steps:
            self.check_steps(self.steps)
        if not self.objective.on_pairs and self.batches_per_device != 1:
            raise ValueError("batches_per_device must be 1: chunks attend only within their batch")
        return self

    def check_steps(self, steps: int) -> None:
        """Reject a schedule that does not fit a training of so many steps.

        Raises:
            ValueError: the learning rate never reaches its value, or a step is after the last one.
        """
        if self.warmup_steps >= max(1, steps):
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} of {steps} steps would never reach the "
                f"learning rate; use at most {steps - 1} or a fraction such as 0.1, or train more "
                "steps"
            )
        for key in ("similarity_snapshot_steps", "save_retriever_steps"):
            if (last := max(getattr(self, key), default=0)) > steps:
                raise ValueError(f"{key}: step {last} is after the last step, {steps}")


# ---------------------------------------------------------------------------- evaluation


class Bm25Model(Settings):
    """BM25 by bm25s, as mteb ships it."""

    kind: Literal["bm25s"]


class LuceneModel(Settings):
    """BM25 by Lucene; the defaults are the parameters of BEIR's published figures."""

    kind: Literal["lucene"]
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)


class EncoderModel(Settings):
    """A trained or pretrained encoder: a backbone of this file, a hub name or a folder."""

    kind: Literal["encoder"]
    retriever: Weights
    adapter: Weights | None = Field(
        None, description="LoRA adapter of the retriever: a hub name or a folder"
    )
    revision: str | None = Field(
        None, description="commit of the adapter or, without one, of the retriever"
    )
    encoding: EncodingKeys = EncodingKeys()
    max_length: Tokens | None = Field(
        None, description="maximum number of tokens in a text; if null, that of the model's files"
    )
    times_bm25: bool = Field(
        False,
        description="multiply scores by those of BM25, on its top 1,000 documents (LaPraDoR)",
    )


class ApiModel(Settings):
    """A model behind an API, called through mteb if its key is in the environment."""

    kind: Literal["api"]
    name: str = Field(description="its name in mteb")
    key: str = Field(description="environment variable with the API key")


class LanguageModel(Settings):
    """A language model, evaluated on tasks other than retrieval."""

    kind: Literal["language-model"]
    language_model: LanguageWeights
    revision: str | None = None


Retriever = Bm25Model | LuceneModel | EncoderModel | ApiModel
AnyRetriever = Annotated[Retriever, Field(discriminator="kind")]
AnyModel = Annotated[Retriever | LanguageModel, Field(discriminator="kind")]


TaskName = Annotated[str, Field(pattern=r"^[\w.+-]+$")]


class Benchmark(Settings):
    """Keys of all benchmarks for retrievers."""

    max_length: Tokens = Field(2048, description="maximum number of tokens in a text")
    precision: Precision = "bfloat16"
    shares_corpus: dict[str, str] = Field(
        {},
        description="task → another task with most of its passages, which is evaluated first; "
        "common passages are encoded once",
    )


class PydocsBenchmark(Benchmark):
    """Three retrieval tasks built from the source of the Python standard library."""

    source: Literal["pydocs"]
    tasks: list[
        Literal["docstring-to-function", "function-to-docstring", "first-to-second-half"]
    ] = Field(min_length=1)
    max_queries: Positive = 500
    max_documents: Positive = Field(2000, description="maximum, including the relevant ones")
    max_length: Tokens = Field(512, description="maximum number of tokens in a text")
    seed: Natural = 0


class TextsBenchmark(Benchmark):
    """Two retrieval tasks built from a corpus, which should be held out from training.

    `halves`: the first half of a chunk must retrieve the second. `titles`: a document's title, or
    its first line if that is short, must retrieve the document's chunks.
    """

    source: Literal["texts"]
    corpus: CorpusName
    tasks: list[Literal["halves", "titles"]] = Field(min_length=1)
    max_queries: Positive = 500
    max_length: Tokens = Field(512, description="maximum number of tokens in a text")
    seed: Natural = 0


class IrDatasetsBenchmark(Benchmark):
    """Test collections of ir_datasets, downloaded unless they are on disk."""

    source: Literal["ir_datasets"]
    tasks: dict[TaskName, str] = Field(
        min_length=1, description="name of your choice → id in ir_datasets, e.g. beir/scifact/test"
    )


class MtebBenchmark(Benchmark):
    """Retrieval tasks of mteb, by their names."""

    source: Literal["mteb"]
    tasks: list[str] = Field(min_length=1)
    instructions: dict[str, str] = Field(
        {},
        description="task → text for `{instruction}` in a query prefix; mteb's prompt by default",
    )


class FolderBenchmark(Benchmark):
    """Collections in BEIR layout, each in the folder `<path>/<task>`.

    It holds `{corpus,queries}.jsonl[.gz]` and `qrels.tsv` or `qrels/test.tsv`, or, in the layout of
    mteb's data sets, `{corpus,queries,qrels}/test-*.parquet`.
    """

    source: Literal["folder"]
    path: LocalPath
    tasks: list[TaskName] = Field(min_length=1)


class LmEvalBenchmark(Settings):
    """Tasks of lm-eval for language models, by their names."""

    source: Literal["lm-eval"]
    tasks: list[str] = Field(min_length=1)
    path: LocalPath | None = Field(
        None, description="folder of your own tasks (YAML), used instead of lm-eval's"
    )
    num_fewshot: Natural = 0
    limit: Positive | None = Field(None, description="use only the first N examples of a task")
    batch_size: Positive = 16


MadeHere = PydocsBenchmark | TextsBenchmark | IrDatasetsBenchmark
ForRetrievers = MadeHere | MtebBenchmark | FolderBenchmark
MadeBenchmark = Annotated[MadeHere, Field(discriminator="source")]
RetrievalBenchmark = Annotated[ForRetrievers, Field(discriminator="source")]
AnyBenchmark = Annotated[ForRetrievers | LmEvalBenchmark, Field(discriminator="source")]


# ---------------------------------------------------------------------------- reading


def parse_settings(model: Any, text: str, option: str = "--settings") -> Any:
    """Read the JSON settings of a command as an entry of type `model`.

    Raises:
        RevelaError: not JSON, or not the settings of this command.
    """
    try:
        raw = json.loads(text)
        return TypeAdapter(model).validate_python(raw)
    except json.JSONDecodeError as error:
        raise RevelaError(f"{option}: not valid JSON: {error}") from error
    except ValidationError as error:
        raise RevelaError(f"{option}: {first_problem(error, raw)}") from error
