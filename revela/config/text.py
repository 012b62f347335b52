"""Settings of corpora, batches and pairs."""

import codecs
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from revela.config.names import BatchSetName, CorpusName, SourceName
from revela.config.settings import LocalPath, Natural, Positive, Range, Settings, Share


class First(Settings):
    """The first N in the source's order; a plain number draws a seeded sample instead."""

    first: Positive


Count = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[First, Tag("first")],
    Discriminator(lambda raw: "first" if isinstance(raw, dict | First) else "number"),
]


def _no_pattern(part: str) -> str:
    if "*" in part:
        raise ValueError("must be a part of an id, such as .md, not a pattern")
    return part


class Corpus(Settings):
    """Keys of all corpora: how documents are selected and cut into chunks."""

    max_documents: Count | None = None
    """at most N: a seeded sample, or with `{first: N}` the first ones; all if null"""
    max_chunks: Positive | None = None
    """stop after the document that completes N chunks, in the order of reading; all if null"""
    exclude: list[Annotated[str, Field(min_length=1), AfterValidator(_no_pattern)]] = []
    """skip documents whose id contains one of these"""
    share: Range = (0.0, 1.0)
    """keep documents whose hashed id is in this range, e.g. [0, 0.9] for training"""
    skip_repeated: bool = False
    """skip documents whose text occurred before, so that no text is on both sides of a `share`"""
    max_words: Positive = Field(120, description="maximum number of words in a chunk")
    punkt: LocalPath | None = None
    """folder of a Punkt model; if null, nltk's punkt_tab/english, else one trained on the texts"""
    seed: Natural = 0


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
    Field(
        description="skip: count and skip bad rows, up to 100 (at most half of a file's, and less "
        "than a third of a folder's texts) or, of many, one in a hundred"
    ),
]


class RowCorpus(Corpus):
    """A corpus whose documents are rows with named fields."""

    fields: FieldNames = FieldNames()
    join_title: bool = Field(False, description="join consecutive rows with equal titles")
    on_bad_row: OnBadRow = "error"

    @model_validator(mode="after")
    def _title_to_join(self) -> Self:
        if self.join_title and self.fields.title is None:
            raise ValueError("join_title needs fields.title")
        return self


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise ValueError(
            f"unknown encoding {encoding!r}; allowed: Python's, such as cp1252"
        ) from error


class FilesCorpus(RowCorpus):
    """A local file of rows, or a folder of such files or of .txt and .md files.

    Rows are JSON lines, whatever the file's name, .csv or .tsv with a header, or .parquet.
    """

    source: Literal["files"]
    path: LocalPath
    encoding: Annotated[str, AfterValidator(_known)] = "utf-8"
    """of files without a byte-order mark, such as latin-1"""


class HubFiles(Settings):
    """The files of a data set on the Hugging Face hub, or one file of its repository."""

    dataset: str = Field(description="its name on the hub")
    revision: str | None = Field(None, description="commit, branch or tag of the data set")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = "train"
    file: str | None = Field(None, description="read this file of the repository instead")


class HubCorpus(RowCorpus, HubFiles):
    """A data set on the Hugging Face hub.

    Its files are downloaded into the hub's cache. They may be JSON lines, .json with one array of
    rows, .csv or .tsv with a header, or .parquet.
    """

    source: Literal["hub"]
    on_bad_row: OnBadRow = "skip"

    @property
    def hub_files(self) -> HubFiles:
        """What is downloaded."""
        return HubFiles(**{key: getattr(self, key) for key in HubFiles.model_fields})


AnyCorpus = Annotated[PackagesCorpus | FilesCorpus | HubCorpus, Field(discriminator="source")]


def _once(names: list[str]) -> list[str]:
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{min(twice)!r} is listed twice")
    return names


Corpora = Annotated[list[CorpusName], AfterValidator(_once)]


class Batches(Settings):
    """Batches of B consecutive chunks: from corpora, from other batch sets, or ready-made.

    Give exactly one of `corpora`, `sample_from`, `file` and `hub`.
    """

    batch_size: int = Field(16, ge=2, strict=True, description="chunks per batch (B)")
    corpora: Corpora = []
    sample_from: dict[BatchSetName, Positive] = {}
    """batch set → number of batches to draw"""
    oversized: Literal["split", "truncate"] = "split"
    """larger batches of `sample_from`: split them, or keep only the first `batch_size` chunks"""
    file: LocalPath | None = None
    """ready-made batches in JSON lines: a list of B texts, or {src, text}"""
    hub: str | None = Field(None, description="a hub data set of such JSON lines")
    revision: str | None = Field(None, description="commit, branch or tag of the data set")
    source: str = Field("", description="corpus of ready-made batches without `src`")
    sources: dict[str, SourceName] = {}
    """`src` of ready-made batches → corpus; a `src` that equals `source` needs no entry"""
    run_length: Positive | None = Field(None, description="consecutive chunks; null: a whole batch")
    num_batches: Count | None = None
    """N draws a seeded sample, `{first: N}` takes the first ones; all if null"""
    sampled: CorpusName | None = None
    """one of `corpora`: only its batches are a sample, all of the others are used"""
    seed: Natural = 0

    @property
    def hub_files(self) -> HubFiles | None:
        """What is downloaded, if anything."""
        return HubFiles(dataset=self.hub, revision=self.revision) if self.hub else None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [k for k in ("corpora", "sample_from", "file", "hub") if getattr(self, k)]
        if len(sources) != 1:
            raise ValueError(f"give exactly one of corpora, sample_from, file, hub; got {sources}")
        if self.run_length and (not self.corpora or self.batch_size % self.run_length):
            raise ValueError("run_length needs corpora and must divide batch_size")
        if self.revision and not self.hub:
            raise ValueError("revision needs hub")
        if self.sampled and not (self.sampled in self.corpora and type(self.num_batches) is int):
            raise ValueError("sampled must be one of corpora, and needs num_batches: N")
        return self


class Pairs(Settings):
    """Query-document pairs cut from raw chunks, with negatives, for Contriever."""

    corpora: Corpora = Field(min_length=1)
    num_pairs: Positive | None = Field(None, description="one for each chunk if null")
    negatives: Natural = Field(15, description="negatives per pair")
    inverse_cloze: Share = Field(0.5, description="share by the inverse cloze task, not crops")
    seed: Natural = 0
