"""Estimates sizes before anything is computed: documents → words → chunks → rows → steps."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from revela.common.errors import RevelaError, reading
from revela.config import paths
from revela.config.file import Config
from revela.config.formats import OPENERS, is_plain
from revela.config.local import text_files
from revela.config.text import (
    AnyCorpus,
    Batches,
    FilesCorpus,
    First,
    HubCorpus,
    PackagesCorpus,
    Pairs,
)
from revela.plan.jobs import SECTIONS, Job
from revela.text.corpora import Document, Skipped, read_documents
from revela.text.rows import count_rows
from revela.text.words import word_pattern

# Words of a chunk as a share of `max_words`, except in the last chunk of a document, which is half
# as long: 0.87 to 0.93 of 120 words, 0.80 to 0.85 of 60 and 0.78 to 0.80 of 25 on books and
# manuals.
CHUNK_FILL = 0.88
BYTES_PER_WORD = 3  # of compressed text in a Parquet file
_SAMPLE = 1000  # documents read if no counts are known
_SAMPLE_BYTES = 2_000_000  # of a compressed file; gzip reads up to 128 kB ahead of its lines


@dataclass(frozen=True)
class Text:
    """Size of a corpus: kept documents, their words and chunks."""

    documents: float | None
    words: float | None
    chunks: float
    source: str  # origin of the counts
    download: float = 0  # bytes that are read from the hub


@dataclass(frozen=True)
class Rows:
    """Size of a set of batches or pairs: rows requested and rows available."""

    chunks: float | None  # that it is drawn from; None if unknown
    available: float
    asked: int | None = None
    exact: bool = True  # not estimated
    download: float = 0  # bytes that are read from the hub

    @property
    def count(self) -> float:
        """The number of rows that will be made."""
        return self.asked or self.available

    @property
    def margin(self) -> float | None:
        """The number of available rows per requested row."""
        return self.available / self.asked if self.asked else None


def texts_per_row(entry: Batches | Pairs) -> int:
    """Return the number of texts per batch (B), or per pair with its negatives."""
    return entry.batch_size if isinstance(entry, Batches) else 2 + entry.negatives


class Counts:
    """Sizes of corpora and data sets, each looked up once; None if unknown.

    Args:
        jobs: what will be made; existing files of others are counted.
        known: a CSV of hub data sets with published sizes.
        offline: whether the hub is unavailable.
    """

    def __init__(self, config: Config, jobs: Iterable[Job], known: Path, offline: bool) -> None:
        self._config, self._offline = config, offline
        self._made = {(SECTIONS.get(job.rule), job.name) for job in jobs}
        self._known = _read_known(known)
        self.texts: dict[str, Text | None] = {}
        self.rows: dict[tuple[str, str], Rows | None] = {}

    def text(self, corpus: str) -> Text | None:
        """Return the size of a corpus."""
        if corpus not in self.texts:
            if chunks := self._existing("corpora", corpus):
                self.texts[corpus] = Text(None, None, chunks, "existing chunks")
            else:
                self.texts[corpus] = self._estimated(self._config.corpora[corpus])
        return self.texts[corpus]

    def data(self, section: str, name: str) -> Rows | None:
        """Return the rows of an entry of `batches` or `pairs`."""
        if (section, name) not in self.rows:
            if rows := self._existing(section, name):
                self.rows[section, name] = Rows(None, rows)
            else:
                self.rows[section, name] = self._drawn(getattr(self._config, section)[name])
        return self.rows[section, name]

    def steps(self, experiment: str) -> int | None:
        """Return the optimizer steps of an experiment: as set, or those of one epoch."""
        settings = self._config.experiments[experiment]
        rows = self.data(settings.data.section, settings.data)
        return settings.steps or (int(rows.count / settings.batches_per_step) if rows else None)

    def rows_trained(self, experiment: str) -> float | None:
        """Return the number of rows that an experiment reads."""
        steps = self.steps(experiment)
        return steps and steps * self._config.experiments[experiment].batches_per_step

    def _existing(self, section: str, name: str) -> float | None:
        file = Path(paths.made(section, name))
        return _rows_of(file) if (section, name) not in self._made and file.exists() else None

    def _drawn(self, entry: Batches | Pairs) -> Rows | None:
        if isinstance(entry, Pairs):
            return self._cut(entry.corpora, 1, entry.num_pairs)
        asked = _number(entry.num_batches)
        if entry.corpora:
            return self._cut(entry.corpora, entry.batch_size, asked)
        if entry.sample_from:
            return self._sampled(entry, asked)
        if entry.file:
            return Rows(None, _rows_of(Path(entry.file)), asked, exact=False)
        published = self._known.get((entry.hub, ""), {})
        if "rows" not in published:
            return None
        return Rows(None, published["rows"], asked, download=published.get("bytes", 0))

    def _cut(self, corpora: Sequence[str], size: int, asked: int | None) -> Rows | None:
        """Return the rows of `size` chunks that corpora can be split into."""
        texts = [text for corpus in corpora if (text := self.text(corpus))]
        if len(texts) < len(corpora):
            return None
        chunks = sum(text.chunks for text in texts)
        rows = sum(text.chunks // size for text in texts)  # none has chunks of two corpora
        exact = all(text.documents is None for text in texts)
        return Rows(chunks, rows, asked, exact)

    def _sampled(self, entry: Batches, asked: int | None) -> Rows | None:
        """Return the rows of samples of other sets; the scarcest set limits their number."""
        made, scarcest, exact = 0, math.inf, True
        for other, count in entry.sample_from.items():
            drawn_from = self.data("batches", other)
            if drawn_from is None:
                return None
            scarcest = min(scarcest, drawn_from.count / count)
            exact &= drawn_from.exact or drawn_from.asked is not None
            each = self._config.batches[other].batch_size // entry.batch_size
            made += count * (each if entry.oversized == "split" else 1)
        available = made * (min(1, scarcest) if asked else scarcest)
        return Rows(None, available, asked or made, exact)

    def _estimated(self, corpus: AnyCorpus) -> Text | None:
        """Return the size of a corpus from published counts, else from its first documents."""
        known: dict[str, float] = {}
        if corpus.source == "hub":
            known = self._known.get((corpus.dataset, corpus.subset or ""), {})
            if not known and (self._offline or corpus.file):
                return None
        limit, first = _number(corpus.max_documents), isinstance(corpus.max_documents, First)
        if known:
            source = "published counts"
            joined = getattr(corpus, "join_title", False) and "titles" in known
            documents = known["titles"] if joined else known["rows"]
            words = known["rows"] * known["words_per_row"] / documents
            documents *= _share(corpus)
            if first and "words_per_first_document" in known:
                words = known["words_per_first_document"]
        else:
            source = f"its first {_SAMPLE:,} documents"
            try:
                documents, words, _ = look(corpus)
            except RevelaError:  # the step that reads it reports why
                return None
        kept = min(documents, limit or documents)
        # A sample is drawn in a second pass; `first` reads no further.
        passes = kept / documents if first else 2 if limit else 1
        download = known.get("bytes", 0.0) * (1 if getattr(corpus, "file", None) else passes)
        return Text(kept, kept * words, chunks_of(kept, words, corpus.max_words), source, download)


def look(corpus: AnyCorpus, skipped: Skipped | None = None) -> tuple[float, float, list[Document]]:
    """Return the number of documents, the words per document, and the first documents.

    `max_documents` is ignored; rows are not joined by title. Bad rows are counted in `skipped`.

    Raises:
        RevelaError: the corpus cannot be read, has no documents, or is of unknown length.
    """
    update = {"max_documents": None, "join_title": False, "on_bad_row": "skip"}
    stream = read_documents(corpus.model_copy(update=update), skipped or Skipped())
    sample = list(itertools.islice(stream, _SAMPLE))
    if not sample:
        raise RevelaError(f"{getattr(corpus, 'path', corpus.source)}: has no documents")
    rows: float = len(sample)
    if len(sample) == _SAMPLE:
        if isinstance(corpus, PackagesCorpus):
            rows += sum(1 for _ in stream)
        else:
            rows = _rows(corpus) * _share(corpus)
    documents = len(sample)
    if getattr(corpus, "join_title", False):
        documents = len(list(itertools.groupby(sample, key=lambda one: one.title)))
    words = sum(len(word_pattern(one.text).findall(one.text)) for one in sample)
    return rows * documents / len(sample), words / documents, sample


def chunks_of(documents: float, words: float, max_words: int) -> float:
    """Estimate the number of chunks of documents with so many words each."""
    return documents * (words / (CHUNK_FILL * max_words) + 0.5)


def _number(limit: int | First | None) -> int | None:
    return limit.first if isinstance(limit, First) else limit


def _share(corpus: AnyCorpus) -> float:
    return corpus.share[1] - corpus.share[0]


def _read_known(path: Path) -> dict[tuple[str | None, str], dict[str, float]]:
    """Read data set, subset → the published counts of its row."""
    import pandas as pd

    with reading(path, "a CSV of published counts"):
        table = pd.read_csv(path).drop(columns="source").fillna({"subset": ""})
        counts = table.set_index(["dataset", "subset"]).astype(float)
        return {key: row.dropna().to_dict() for key, row in counts.iterrows()}


def _rows_of(file: Path) -> float:
    """Return the number of rows of a file, estimated from its first 2 MB if it is longer."""
    if is_plain(file):
        return 1
    if file.suffix.lower() == ".parquet":
        return count_rows(file)
    with file.open("rb") as raw:
        opened = OPENERS.get(file.suffix.lower(), iter)(raw)
        rows = 0
        for rows, _ in enumerate(opened, start=1):
            if rows >= _SAMPLE and raw.tell() >= _SAMPLE_BYTES:
                return rows * file.stat().st_size / raw.tell()
        return rows


def _rows(corpus: FilesCorpus | HubCorpus) -> float:
    """Return the number of rows of files or, on the hub, as stated by the card or to be kept."""
    if corpus.source == "files":
        return sum(map(_rows_of, text_files(Path(corpus.path))))
    import datasets

    try:
        name, subset, revision = corpus.dataset, corpus.subset, corpus.revision
        splits = datasets.load_dataset_builder(name, subset, revision=revision).info.splits
        return splits[corpus.split].num_examples
    except Exception as error:  # anything may be missing on the hub or in the card
        if limit := _number(corpus.max_documents):
            return limit
        raise RevelaError(f"{corpus.dataset}: unknown number of rows") from error
