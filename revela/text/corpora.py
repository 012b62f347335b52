"""Corpora: streams of documents from packages, local files and the Hugging Face hub."""

import contextlib
import hashlib
import importlib.util
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, check_name, printable, unknown_name
from revela.common.hub import explained
from revela.config.local import ROWS, is_plain, text_files
from revela.config.text import (
    AnyCorpus,
    FieldNames,
    FilesCorpus,
    First,
    HubCorpus,
    PackagesCorpus,
    RowCorpus,
)
from revela.text.rows import column_names, numbered_rows, take

_BAD_ROWS, _BAD_SHARE = 100, 0.01  # maximum number and share that are skipped, but at most half
_ROWS_TO_JUDGE = 10_000  # before that, bad rows are judged at the end only
_ROWS_TO_NAME = 100  # that tell which fields hold what
_EXAMPLES = 20  # of bad rows that are kept
_CHANCE = 2  # words that may repeat by chance
_WORD = re.compile(r"[^\W_]")
_TEXTS = ("text", "content", "contents", "body", "passage")
_TITLES, _IDS = ("title", "head", "heading", "headline", "name"), ("id", "_id", "key", "uid")
_IDS_STORED = 1_000_000  # to count repetitions
_PASSAGE_WORDS = 300  # at most, in a file of passages


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

    def summary(self) -> str:
        """Return what was skipped or is unusual, for people; empty if nothing."""
        found = []
        if self.count:
            found.append(f"skipped {self.count} bad rows, first: {printable(self.examples[0])}")
        for key in ("cleaned", "wordless", "repeated_ids", "copied_beginnings"):
            if count := getattr(self, key):
                found.append(f"{count} {key.replace('_', ' ')}")
        return "; ".join(found)

    def check(self, rows: int) -> None:
        """Raise a RevelaError if too many of some rows were skipped."""
        if self.count > max(min(_BAD_ROWS, rows / 2), rows * _BAD_SHARE):
            bad = f"{self.count} of {rows} rows are bad, too many to skip"
            raise RevelaError(f"{bad}; the first: {self.examples[0]}")


def read_documents(corpus: AnyCorpus, skipped: Skipped) -> Iterator[Document]:
    """Return an iterator over the documents of a corpus, in order and in constant memory.

    Bad rows skipped by `on_bad_row: skip` are counted in `skipped`.

    Raises:
        RevelaError: a source cannot be read, or a row is bad and `on_bad_row` is `error`.
    """
    documents = _all_documents(corpus, skipped)
    if corpus.max_documents is None:
        return documents
    if isinstance(corpus.max_documents, First):
        return itertools.islice(documents, corpus.max_documents.first)
    # Two passes: the first one counts, so that documents are never all held in memory.
    available = sum(1 for _ in _all_documents(corpus, Skipped()))
    return take(documents, available, min(corpus.max_documents, available), corpus.seed)


def field_names(files: list[Path]) -> FieldNames:
    """Return which fields hold the text, a title and an id, judging by the first rows.

    Raises:
        RevelaError: the rows cannot be read, or have no text.
    """
    if is_plain(files[0]):
        return FieldNames()
    lengths: dict[str, int] = defaultdict(int)
    keys: dict[str, None] = {}
    for place, row in itertools.islice(_rows_of(files[0]), _ROWS_TO_NAME):
        if isinstance(row, Exception) and not keys:
            raise RevelaError(f"{place}: {row}")
        for key, value in row.items() if isinstance(row, dict) else ():
            keys[key] = None
            lengths[key] += len(value) if isinstance(value, str) else 0
    texts = [key for key, length in lengths.items() if length]
    if not texts:
        named = ", ".join(keys) or "none"
        raise RevelaError(f"{files[0]}: no field of the first rows is a text: {named}")
    text = max([key for key in _TEXTS if key in texts] or texts, key=lambda key: lengths[key])
    return FieldNames(
        text=text,
        title=next((key for key in _TITLES if key in texts and key != text), None),
        id=next((key for key in _IDS if key in keys), None),
    )


def _all_documents(corpus: AnyCorpus, skipped: Skipped) -> Iterator[Document]:
    if isinstance(corpus, PackagesCorpus):
        documents = _package_documents(corpus.packages)
    else:
        rows = _file_rows(corpus) if isinstance(corpus, FilesCorpus) else _hub_rows(corpus)
        documents = _checked(rows, corpus, skipped)
        documents = _joined(documents, skipped) if corpus.join_title else documents
    low, high = corpus.share
    for document in documents:
        excluded = any(part in document.id for part in corpus.exclude)
        if low <= place(document.id) < high and not excluded:
            yield document


def place(name: str) -> float:
    """Return a number in [0, 1) that depends only on a document's id."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _package_documents(packages: list[str]) -> Iterator[Document]:
    """Yield each package's description, then its modules in file order, without tests."""
    for package in packages:
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
        if spec is None:
            advice = "install it or remove it from the configuration"
            raise RevelaError(f"package {package!r} is not installed; {advice}")
        if not spec.submodule_search_locations:
            raise RevelaError(f"{package!r} is a single module, not a package")
        root = Path(spec.submodule_search_locations[0])
        for distribution in metadata.packages_distributions().get(package, [])[:1]:
            description = (metadata.metadata(distribution)["Description"] or "").strip()
            if description:
                yield Document(f"{package}/README", description)
        for path in sorted(root.rglob("*.py")):
            if {"tests", "testing", "test", "_vendor"} & set(path.relative_to(root).parts):
                continue
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            if text:
                yield Document(str(path.relative_to(root.parent)), text)


def _checked(
    rows: Iterable[tuple[str, Any]], corpus: RowCorpus, skipped: Skipped
) -> Iterator[Document]:
    """Turn (place, row) into documents; a row may be the error raised by reading it."""
    seen: set[str] = set()
    path = Path(corpus.path) if isinstance(corpus, FilesCorpus) else Path()
    above = f"{path if path.is_dir() else path.parent}/"
    number = 0
    for number, (place, row) in enumerate(rows, start=1):
        if number == 1 and isinstance(row, dict):  # later rows may lack an id or a title
            for name in (corpus.fields.id, corpus.fields.title):
                if name is not None:
                    check_name(place, "field", name, [*map(str, row)])
        try:
            document = _document(place, row, corpus.fields)
        except ValueError as error:
            problem = f"{place}: {error}"
            if corpus.on_bad_row == "error":
                raise RevelaError(f"{problem}; on_bad_row: skip skips such rows") from error
            skipped.count += 1
            if skipped.count <= _EXAMPLES:
                skipped.examples.append(problem)
            if number > _ROWS_TO_JUDGE:
                skipped.check(number)
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
    skipped.check(number)


def _document(place: str, row: Any, fields: FieldNames) -> Document:
    """Make a document from a row, or raise a ValueError that describes the problem."""
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with fields; got {type(row).__name__}")
    if fields.text not in row:
        raise ValueError(unknown_name("field", fields.text, map(str, row)))
    text = row[fields.text] or ""
    if not isinstance(text, str):
        raise ValueError(f"field {fields.text!r} must be a string; got {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"field {fields.text!r} is empty")
    title, own = row.get(fields.title) or "", row.get(fields.id)
    for name, value in ((fields.id, own), (fields.title, title)):
        if isinstance(value, dict | list):
            kind = type(value).__name__
            raise ValueError(f"field {name!r} must be a string or number; got {kind}")
    unnamed = own in (None, "") or own != own  # NaN, of a column with gaps
    return Document(place if unnamed else str(own), text, str(title))


def _joined(passages: Iterator[Document], skipped: Skipped) -> Iterator[Document]:
    """Join consecutive passages with the same title into one document, named by the first one.

    In files of passages of equal length an article's last passage is filled up from the article's
    beginning; that copy is removed.
    """
    for _, group in itertools.groupby(passages, key=lambda one: (one.title, one.title or one.id)):
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


def _file_rows(corpus: FilesCorpus) -> Iterator[tuple[str, Any]]:
    names = [name for name in (corpus.fields.id, corpus.fields.title) if name]
    for file in text_files(Path(corpus.path)):
        if not is_plain(file):
            yield from _rows_of(file, [corpus.fields.text, *names])
            continue
        try:
            text = file.read_text(encoding="utf-8")
            if text.startswith("%PDF-") or text.count("\0") > len(text) / 100:
                yield str(file), ValueError("not a text: PDF or binary")
                continue
            yield str(file), dict.fromkeys(names, str(file)) | {corpus.fields.text: text}
        except UnicodeDecodeError as error:
            yield str(file), error
        except OSError as error:
            raise RevelaError(f"{file}: cannot be read: {error.strerror}") from error


def _rows_of(path: Path, fields: list[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of a file; of Parquet only some fields, if it has them all."""
    if not path.name.lower().endswith(ROWS):
        raise RevelaError(f"{path}: unknown format; allowed: {', '.join(ROWS)}")
    parquet = path.suffix.lower() == ".parquet"
    known = parquet and set(fields or ()) <= set(column_names(path))
    return numbered_rows(path, fields if known else None)


def _hub_rows(corpus: HubCorpus) -> Iterator[tuple[str, Any]]:
    """Stream a hub data set, or read one raw file of its repository."""
    import datasets
    import huggingface_hub

    name, revision = corpus.dataset, corpus.revision
    with explained("data set", name):
        if corpus.file is None:
            # If the connection breaks off, datasets continues where it was, for several minutes.
            rows = datasets.load_dataset(
                name, corpus.subset, split=corpus.split, revision=revision, streaming=True
            )
            for number, row in enumerate(rows, start=1):
                yield f"{name}:{number}", row
            return
        local = huggingface_hub.hf_hub_download(
            name, corpus.file, repo_type="dataset", revision=revision
        )
    fields = [field for field in vars(corpus.fields).values() if field]
    for place, row in _rows_of(Path(local), fields):
        yield place.replace(local, f"{name}/{corpus.file}", 1), row
