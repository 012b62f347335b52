"""Chunks: whole sentences of a document, up to a number of words (paper, section 4.1)."""

import contextlib
import io
import itertools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from tqdm.auto import tqdm

from revela.common.errors import RevelaError, reading
from revela.common.workers import end_with_parent
from revela.config.text import AnyCorpus
from revela.text.corpora import Document, Skipped, read_documents
from revela.text.files import PUNKT
from revela.text.rows import write_parquet
from revela.text.words import SENTENCE_END, word_pattern

_TEXT = pa.string()
SCHEMA = pa.schema({"document": _TEXT, "title": _TEXT, "position": pa.int32(), "text": _TEXT})
"""Columns of a chunk file: the document's id and title, the chunk's position in it, text."""

_SENTENCE_END = re.compile(SENTENCE_END)
_PUNKT_SAMPLE_CHARACTERS = 2_000_000
_GROUP_CHARACTERS = 500_000  # sent to one worker at a time
# Punkt sees at most so many at a time: nltk gives up a regular expression after five seconds of CPU
# time, which half a million characters of short sentences take.
_WINDOW = 50_000
_LONG_LINE = re.compile(rf".{{{_WINDOW}}}")
# Punkt learns abbreviations from the text; a small corpus lacks common ones.
_ABBREVIATIONS = "dr mr mrs ms prof st vs etc e.g i.e al fig eq sec vol no cf approx inc ltd"


@dataclass
class Counts:
    """Counts of chunking, for the manifest."""

    documents: int = 0
    chunks: int = 0
    characters: int = 0
    sentences_cut: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    sentence_splitter: str = ""


def chunk_corpus(
    corpus: AnyCorpus,
    output: Path,
    workers: int,
    downloads: Mapping[str, Path] = MappingProxyType({}),
) -> Counts:
    """Write the chunks of a corpus to a Parquet file, in order and in constant memory.

    Raises:
        RevelaError: the corpus cannot be read or has no documents.
    """
    counts = Counts()
    documents = read_documents(corpus, counts.skipped, downloads)
    splitter, documents = _splitter(corpus, documents, counts)
    groups = _groups(documents, _GROUP_CHARACTERS)
    with tqdm(unit="B", unit_scale=True, desc="chunking", mininterval=1) as progress:

        def rows() -> Iterator[dict[str, Any]]:
            for document, (chunks, cut) in _in_order(groups, splitter, corpus.max_words, workers):
                counts.documents += 1
                counts.chunks += len(chunks)
                counts.characters += len(document.text)
                counts.sentences_cut += cut
                progress.update(len(document.text))
                place = {"document": document.id, "title": document.title}
                for position, text in enumerate(chunks):
                    yield {**place, "position": position, "text": text}
                if corpus.max_chunks and counts.chunks >= corpus.max_chunks:
                    return

        try:
            write_parquet(output, SCHEMA, rows())
        except BrokenProcessPool as error:
            message = "a worker was killed, probably for lack of memory; use fewer --workers"
            raise RevelaError(message) from error
    if not counts.chunks:
        first = counts.skipped.examples[:1]
        raise RevelaError("; ".join(["the corpus has no documents", *first]))
    return counts


def chunk_text(text: str, splitter: Any, max_words: int) -> tuple[list[str], int]:
    """Return a text's chunks, slices of whole sentences, and the number of sentences cut.

    A chunk has as many sentences as fit into `max_words`, counted by `word_pattern`; a longer
    sentence is cut between words. The splitter has Punkt's `span_tokenize`.
    """
    chunks: list[str] = []
    cut = 0
    start = end = words = 0  # the open chunk: text[start:end]
    word = word_pattern(text)
    for sentence in _sentences(text, splitter):
        spans = [match.span() for match in word.finditer(text, *sentence)]
        if not spans:
            continue
        if words and words + len(spans) > max_words:
            chunks.append(text[start:end])
            words = 0
        cut += len(spans) > max_words
        while len(spans) > max_words:
            chunks.append(text[spans[0][0] : spans[max_words - 1][1]])
            spans = spans[max_words:]
        if not words:
            start = spans[0][0]
        end = spans[-1][1]
        words += len(spans)
    if words:
        chunks.append(text[start:end])
    return chunks, cut


def _sentences(text: str, splitter: Any) -> Iterator[tuple[int, int]]:
    for start, end in _spans(text, splitter):
        for mark in _SENTENCE_END.finditer(text, start, end):
            yield start, mark.end()
            start = mark.end()
        yield start, end


def _spans(text: str, splitter: Any) -> Iterator[tuple[int, int]]:
    """Yield the spans of sentences, in linear time; one longer than a window is cut."""
    start = 0
    while start < len(text):
        end = _window_end(text, start)
        sentences = splitter.span_tokenize(text[start:end])
        spans = [(start + first, start + last) for first, last in sentences]
        if end < len(text) and len(spans) > 1:
            end = spans.pop()[0]  # this sentence may continue: the next window begins with it
        yield from spans
        start = end


def _window_end(text: str, start: int) -> int:
    """Return the end of a window: the last end of a paragraph in it, or of a line, or a blank."""
    end = start + _WINDOW
    if end >= len(text):
        return len(text)
    for mark in ("\n\n", "\n", " "):
        place = text.rfind(mark, start + _WINDOW // 2, end)
        if place >= 0:
            return place + len(mark)
    return end


def _splitter(
    corpus: AnyCorpus, documents: Iterator[Document], counts: Counts
) -> tuple[Any, Iterator[Document]]:
    """Return the given Punkt, else the pretrained one, else one trained on the first documents."""
    if corpus.punkt:
        counts.sentence_splitter = f"punkt of {corpus.punkt}"
        return _read_punkt(Path(corpus.punkt)), documents
    if pretrained := pretrained_punkt():
        counts.sentence_splitter = "punkt_tab/english"
        return pretrained, documents
    first = next(_groups(documents, _PUNKT_SAMPLE_CHARACTERS), [])
    counts.sentence_splitter = f"punkt trained on the first {len(first)} documents"
    missing = "nltk's punkt_tab is neither installed nor can it be downloaded (see `punkt:`)"
    print(f"sentences are split by {counts.sentence_splitter}: {missing}")
    return train_punkt(document.text for document in first), itertools.chain(first, documents)


def _read_punkt(folder: Path) -> Any:
    from nltk.tabdata import PunktDecoder
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    decoder, parameters = PunktDecoder(), PunktParameters()
    # nltk itself reads its own folders only.
    with reading(folder, "a Punkt model"), contextlib.ExitStack() as stack:
        abbreviations, collocations, contexts, starters = (
            stack.enter_context((folder / name).open(encoding="utf-8")) for name in PUNKT
        )
        parameters.abbrev_types = decoder.txt2set(abbreviations)
        parameters.collocations = {*decoder.tab2tups(collocations)}
        parameters.ortho_context = decoder.tab2intdict(contexts)
        parameters.sent_starters = decoder.txt2set(starters)
    return PunktSentenceTokenizer(parameters)


def pretrained_punkt() -> Any:
    """Return nltk's pretrained Punkt, downloaded if need be; None if that is impossible."""
    from nltk import data, downloader
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return PunktTokenizer("english")
    except LookupError:
        if os.environ.get("HF_HUB_OFFLINE"):
            return None
    options = {"download_dir": data.path[0] if data.path else None, "quiet": True}
    downloaded = downloader.download("punkt_tab", print_error_to=io.StringIO(), **options)
    return PunktTokenizer("english") if downloaded else None


def train_punkt(texts: Iterable[str]) -> Any:
    """Train Punkt on at most two million characters of the texts."""
    from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

    trainer, left = PunktTrainer(), _PUNKT_SAMPLE_CHARACTERS
    for text in texts:
        sample = text[: max(0, left)]
        trainer.train(_LONG_LINE.sub(r"\g<0>\n", sample), finalize=False)  # it reads by lines
        left -= len(text)
    trainer.finalize_training()
    parameters = trainer.get_params()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters)


def _groups(documents: Iterator[Document], characters: int) -> Iterator[list[Document]]:
    """Yield consecutive documents in groups of at least `characters` characters."""
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group


def _in_order(
    groups: Iterator[list[Document]], splitter: Any, max_words: int, workers: int
) -> Iterator[tuple[Document, tuple[list[str], int]]]:
    """Yield each document with what `chunk_text` returns, in order, from all workers."""
    workers = min(workers, os.cpu_count() or 1)
    waiting: deque[tuple[list[Document], Future[Any]]] = deque()

    def first() -> Iterator[Any]:
        documents, made = waiting.popleft()
        return zip(documents, made.result(), strict=True)

    # A pool's `map` would read the whole corpus ahead of its workers.
    with ProcessPoolExecutor(workers, initializer=_initialize, initargs=(splitter,)) as pool:
        for group in groups:
            waiting.append((group, pool.submit(_chunk_group, group, max_words)))
            if len(waiting) > 2 * workers:
                yield from first()
        while waiting:
            yield from first()


_splitter_of_worker: Any = None


def _initialize(splitter: Any) -> None:
    global _splitter_of_worker
    _splitter_of_worker = splitter
    end_with_parent()


def _chunk_group(group: list[Document], max_words: int) -> list[tuple[list[str], int]]:
    return [chunk_text(document.text, _splitter_of_worker, max_words) for document in group]
