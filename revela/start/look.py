"""What `revela new` learns of texts before it reads them all: documents, words, chunks."""

import itertools
from pathlib import Path

from revela.common.errors import RevelaError
from revela.config.text import FilesCorpus
from revela.text.corpora import Document, Skipped, read_documents
from revela.text.files import text_files
from revela.text.formats import OPENERS, is_plain
from revela.text.rows import count_rows
from revela.text.words import word_pattern

# Words of a chunk as a share of `max_words`, except in the last chunk of a document, which is half
# as long: 0.87 to 0.93 of 120 words, 0.80 to 0.85 of 60 and 0.78 to 0.80 of 25 on books and
# manuals.
CHUNK_FILL = 0.88
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
        documents = sum(map(_rows_of, text_files(Path(corpus.path))))
    words = sum(len(word_pattern(doc.text).findall(doc.text)) for doc in sample)
    return documents, words / len(sample), sample


def chunks_of(documents: float, words: float, max_words: int) -> float:
    """Estimate the number of chunks of documents with so many words each."""
    return documents * (words / (CHUNK_FILL * max_words) + 0.5)


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
