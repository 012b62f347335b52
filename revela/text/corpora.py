"""Corpora: streams of documents from packages, local files and the Hugging Face hub."""

import contextlib
import hashlib
import importlib.util
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from revela.common.errors import RevelaError, check_name, printable, unknown_name
from revela.config.text import AnyCorpus, FieldNames, FilesCorpus, First, PackagesCorpus, RowCorpus
from revela.text.fields import text_of
from revela.text.files import text_files
from revela.text.formats import is_plain
from revela.text.plain import read_plain
from revela.text.rows import column_kinds, numbered_rows, take

_BAD_ROWS, _BAD_SHARE = 100, 0.01  # maximum number and share that are skipped, but at most half
_ROWS_TO_JUDGE = 10_000  # before that, bad rows are judged at the end only
_EXAMPLES = 20  # of bad rows that are kept
_CHANCE = 2  # words that may repeat by chance
_WORD = re.compile(r"[^\W_]")
_IDS_STORED = 1_000_000  # to count repetitions
_PASSAGE_WORDS = 300  # at most, in a file of passages
_OF_OTHERS = {"tests", "testing", "test", "_vendor"}  # modules of a package

# The name of each file of rows, with (place, row); a row may be the error raised by reading it. A
# folder of plain texts is one file without a name, its texts are the rows.
_Files = Iterator[tuple[str, Iterator[tuple[str, Any]]]]


@dataclass(frozen=True)
class Document:
    """One document of a corpus."""

    id: str
    text: str
    title: str = ""


@dataclass
class Skipped:
    """Skipped bad rows: their number, and the errors of the first ones."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    copied_beginnings: int = 0  # articles whose end repeated their beginning
    cleaned: int = 0  # texts that lost a byte-order mark or null characters
    wordless: int = 0  # documents without a letter or digit, skipped
    repeated_ids: int = 0  # documents with the id of one of the first million
    repeated_texts: int = 0  # documents with the text of one before, skipped

    def summary(self) -> str:
        """Return what was skipped or is unusual, for people; empty if nothing."""
        parts = []
        if self.count:
            parts.append(f"skipped {self.count} bad rows, first: {printable(self.examples[0])}")
        for key in ("cleaned", "wordless", "repeated_ids", "repeated_texts", "copied_beginnings"):
            if count := getattr(self, key):
                parts.append(f"{count} {key.replace('_', ' ')}")
        return "; ".join(parts)

    def check(self, rows: int) -> None:
        """Raise a RevelaError if too many of some rows were skipped."""
        most = max(min(_BAD_ROWS, rows / 2), rows * _BAD_SHARE)
        if self.count > most:
            raise _too_many(self.count, f"{rows} rows", self.examples[0])


def _too_many(bad: int, of: str, first: str) -> RevelaError:
    return RevelaError(f"{bad} of {of} are bad, too many to skip; the first: {first}")


def read_documents(
    corpus: AnyCorpus, skipped: Skipped, downloads: Mapping[str, Path] = MappingProxyType({})
) -> Iterator[Document]:
    """Return an iterator over the documents of a corpus, in order and in constant memory.

    The files of a hub corpus are those in `downloads`, by their names. Bad rows that `on_bad_row`
    allows are counted in `skipped`.
    """
    documents = _all_documents(corpus, skipped, downloads)
    if corpus.max_documents is None:
        return documents
    if isinstance(corpus.max_documents, First):
        return itertools.islice(documents, corpus.max_documents.first)
    # Two passes: the first one counts, so that documents are never all held in memory.
    available = sum(1 for _ in _all_documents(corpus, Skipped(), downloads))
    return take(documents, available, min(corpus.max_documents, available), corpus.seed)


def _all_documents(
    corpus: AnyCorpus, skipped: Skipped, downloads: Mapping[str, Path]
) -> Iterator[Document]:
    if isinstance(corpus, PackagesCorpus):
        documents = _package_documents(corpus.packages)
    else:
        documents = _checked(_files(corpus, downloads), corpus, skipped)
        documents = _joined(documents, skipped) if corpus.join_title else documents
    low, high = corpus.share
    seen: set[float] = set()
    for document in documents:
        if corpus.skip_repeated:  # before the share, or a text could be on both sides of a split
            text = place(document.text)
            if text in seen:
                skipped.repeated_texts += 1
                continue
            seen.add(text)
        excluded = any(part in document.id for part in corpus.exclude)
        if low <= place(document.id) < high and not excluded:
            yield document


def place(name: str) -> float:
    """Return a number in [0, 1) that depends only on a document's id."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _package_documents(packages: list[str]) -> Iterator[Document]:
    """Yield each package's description, then its modules in file order."""
    for package in packages:
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            advice = "install it or remove it from the configuration"
            raise RevelaError(f"{package!r} is not an installed package: {advice}")
        root = Path(spec.submodule_search_locations[0])
        for distribution in metadata.packages_distributions().get(package, [])[:1]:
            description = (metadata.metadata(distribution)["Description"] or "").strip()
            if description:
                yield Document(f"{package}/README", description)
        for path in sorted(root.rglob("*.py")):
            if _OF_OTHERS & {*path.relative_to(root).parts}:
                continue
            if text := path.read_text(encoding="utf-8", errors="replace").strip():
                yield Document(str(path.relative_to(root.parent)), text)


def _checked(files: _Files, corpus: RowCorpus, skipped: Skipped) -> Iterator[Document]:
    """Turn rows into documents, and judge the bad rows of each file and of all."""
    seen: set[str] = set()
    path = Path(corpus.path) if isinstance(corpus, FilesCorpus) else Path()
    above = f"{path if path.is_dir() else path.parent}/"
    total = 0
    for name, rows in files:
        before, bad, first = total, 0, ""
        for total, (place, row) in enumerate(rows, start=before + 1):
            if total == 1 and isinstance(row, dict):  # later rows may lack an id or a title
                for key in (corpus.fields.id, corpus.fields.title):
                    if key is not None:
                        check_name(place, "field", key, [*map(str, row)])
            try:
                document = document_of(place, row, corpus.fields)
                if not document.text.strip() and name:
                    raise ValueError(f"field {corpus.fields.text!r} is empty")
            except ValueError as error:
                problem = f"{place}: {error}"
                if corpus.on_bad_row == "error":
                    raise RevelaError(f"{problem}; on_bad_row: skip skips such rows") from error
                bad, first = bad + 1, first or problem
                skipped.count += 1
                if skipped.count <= _EXAMPLES:
                    skipped.examples.append(problem)
                if total > _ROWS_TO_JUDGE:
                    skipped.check(total)
                continue
            text = document.text.removeprefix("\ufeff").replace("\0", "")
            skipped.cleaned += text != document.text
            if not _WORD.search(text):
                skipped.wordless += 1
                continue
            if corpus.fields.id:
                skipped.repeated_ids += document.id in seen
                if len(seen) < _IDS_STORED:
                    seen.add(document.id)
            # Splits by id must not depend on where the texts are.
            yield replace(document, id=document.id.removeprefix(above), text=text)
        here = total - before
        if not name and bad and 3 * bad >= here:
            raise _too_many(bad, f"{here} files", first)
        if name and 2 * bad > here > 1:
            raise _too_many(bad, f"{here} rows of {name}", first)
    skipped.check(total)


def document_of(place: str, row: Any, fields: FieldNames) -> Document:
    """Return the document that a row is or holds; its place is its id if it has none.

    The text of a document that has only a title is its title. It is empty if there is neither.

    Raises:
        ValueError: it is an error, or not a row with a text.
    """
    if isinstance(row, Document):
        return row
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with fields; got {type(row).__name__}")
    if fields.text not in row:
        raise ValueError(unknown_name("field", fields.text, map(str, row)))
    name, title, value = (
        "" if value is None or value != value else value  # NaN, of a column with gaps
        for value in (row.get(fields.id), row.get(fields.title), row[fields.text])
    )
    for key, short in ((fields.id, name), (fields.title, title)):
        if isinstance(short, dict | list | bool):
            kind = type(short).__name__
            raise ValueError(f"field {key!r} must be a string or number; got {kind}")
    text = text_of(value)
    if text is None:
        raise ValueError(f"field {fields.text!r} must be a string; got {type(value).__name__}")
    name, title = place if name == "" else str(name), str(title)
    return Document(name, text, title) if text.strip() else Document(name, title.strip())


def _joined(passages: Iterator[Document], skipped: Skipped) -> Iterator[Document]:
    """Join consecutive passages with the same title into one document, named by the first one.

    In files of passages of equal length an article's last passage is filled up from the article's
    beginning; that copy is removed.
    """
    for _, group in itertools.groupby(
        passages, key=lambda passage: (passage.title, passage.title or passage.id)
    ):
        article = list(group)
        words = " ".join(passage.text for passage in article).split(" ")
        longest = min(len(article[-1].text.split(" ")), len(words) - 1, _PASSAGE_WORDS)
        for count in range(longest, _CHANCE, -1):
            # Slices would make this quadratic for long documents.
            if all(words[n - count] == words[n] for n in range(count)):
                skipped.copied_beginnings += 1
                words = words[:-count]
                break
        yield replace(article[0], text=" ".join(words))


def _files(corpus: RowCorpus, downloads: Mapping[str, Path]) -> _Files:
    if isinstance(corpus, FilesCorpus):
        files, encoding = text_files(Path(corpus.path)), corpus.encoding
        if is_plain(files[0]):
            yield "", ((str(file), _plain_row(file, corpus)) for file in files)
            return
        downloads = {str(file): file for file in files}
    else:
        encoding = "utf-8"
    named = {name for name in vars(corpus.fields).values() if name}
    for name, path in downloads.items():
        columns = [*named] if named <= {*column_kinds(path)} else None  # others stay unread
        rows = numbered_rows(path, columns, encoding)
        yield name, ((place.replace(str(path), name, 1), row) for place, row in rows)


def _plain_row(file: Path, corpus: FilesCorpus) -> Document | ValueError:
    """Return a file of one text as a document, or the reason why it is none."""
    try:
        title, text = read_plain(file, corpus.encoding)
    except ValueError as error:
        return error
    title = title or (str(file) if corpus.fields.title else "")
    return Document(str(file), text, title) if text.strip() else Document(str(file), title)
