"""What `revela new` learns of texts before it reads them all: documents, words, chunks."""

import itertools
from collections import Counter
from pathlib import Path

from revela.common.errors import RevelaError
from revela.config.text import FilesCorpus
from revela.evaluation.texts import CUTS
from revela.text.chunking import chunk_text
from revela.text.corpora import Document, Skipped, place, read_documents
from revela.text.files import text_files
from revela.text.formats import OPENERS, is_plain
from revela.text.rows import count_rows
from revela.text.words import word_pattern

# Words of a chunk as a share of `max_words`, except in the last chunk of a document, which is half
# as long: 0.87 to 0.93 of 120 words, 0.80 to 0.85 of 60 and 0.78 to 0.80 of 25 on books and
# manuals.
CHUNK_FILL = 0.88
_HELD_OUT = 0.2  # of the documents at most
_HELD_OUT_CHUNKS = 2000  # give each half of the queries 500, the most that count
_SAMPLE = 1000  # documents
_SAMPLE_BYTES = 2_000_000  # of a compressed file; gzip reads up to 128 kB ahead of its lines


def look(corpus: FilesCorpus, skipped: Skipped) -> tuple[float, float, list[Document]]:
    """Return the number of documents, the words per document, and the first documents.

    Bad rows are counted in `skipped`.

    Raises:
        RevelaError: the corpus cannot be read or has no documents.
    """
    stream = read_documents(corpus.model_copy(update={"on_bad_row": "skip"}), skipped)
    sample = list(itertools.islice(stream, _SAMPLE))
    if not sample:
        raise RevelaError(f"{corpus.path}: has no documents")
    documents: float = len(sample)
    if len(sample) == _SAMPLE:
        documents = sum(map(rows_of, text_files(Path(corpus.path))))
    words = sum(len(word_pattern(doc.text).findall(doc.text)) for doc in sample)
    return documents, words / len(sample), sample


def look_joined(
    corpus: FilesCorpus, skipped: Skipped
) -> tuple[FilesCorpus, float, float, list[Document]]:
    """Return a corpus with what `look` does, its rows joined if most go on with the one before.

    Passages of one text must not be on both sides of a split.
    """
    documents, words, sample = look(corpus, skipped)
    follow = sum(one.title == two.title != "" for one, two in itertools.pairwise(sample))
    if not corpus.fields.title or 2 * follow < len(sample):
        return corpus, documents, words, sample
    corpus = corpus.model_copy(update={"join_title": True})
    joined, words, sample = look(corpus, Skipped())
    if joined == documents:  # the number of rows
        joined *= 1 - follow / _SAMPLE
    return corpus, joined, words, sample


def held_out(
    documents: float, words: float, sample: list[Document], max_words: int
) -> tuple[float, list[Document]]:
    """Return the share of documents that are kept for training, and those of the others.

    If the sample is not the whole corpus, they are as many of it, at most all.
    """
    aside = min(_HELD_OUT, _HELD_OUT_CHUNKS / chunks_of(documents, words, max_words))
    kept = round(1 - float(f"{aside:.2g}"), 9)  # not 0.9299999999999999
    if documents > len(sample):
        return kept, sample[: round(documents * (1 - kept))]
    return kept, [document for document in sample if place(document.id) >= kept]


def queries_of(aside: list[Document], max_words: int) -> dict[str, int]:
    """Return about how many queries, which occur just once, each task of documents gives."""
    chunks = [
        {"document": document.id, "title": document.title, "text": text}
        for document in aside
        for text in chunk_text(document.text, _Unsplit, max_words)[0]
    ]
    times = {kind: Counter(query for query, _ in cut(chunks)) for kind, cut in CUTS.items()}
    return {
        kind: sum(count == 1 for query, count in found.items() if query)
        for kind, found in times.items()
    }


class _Unsplit:
    """In place of Punkt, which has to be trained: only marks that need no space end a sentence."""

    @staticmethod
    def span_tokenize(text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def chunks_of(documents: float, words: float, max_words: int) -> float:
    """Estimate the number of chunks of documents with so many words each."""
    return documents * (words / (CHUNK_FILL * max_words) + 0.5)


def rows_of(file: Path) -> float:
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
