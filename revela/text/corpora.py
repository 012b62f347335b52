"""Corpora: streams of documents from packages, local files and the Hugging Face hub."""

import gzip
import importlib.util
import io
import itertools
import json
import lzma
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, cast

from revela.common.errors import RevelaError, unknown_name
from revela.config.steps import AnyCorpus, FilesCorpus, HubCorpus, PackagesCorpus, RowCorpus

_JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")


@dataclass(frozen=True)
class Document:
    """One document of a corpus."""

    id: str
    text: str
    title: str = ""


@dataclass
class Skipped:
    """Bad rows that were left out: how many, and what was wrong with the first ones."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < 20:
            self.examples.append(problem)


class BadRow(Exception):
    """A row that is no document; its message says where it stands and what is wrong."""


def read_documents(corpus: AnyCorpus, skipped: Skipped) -> Iterator[Document]:
    """Yield the documents of a corpus in order, in constant memory.

    Args:
        corpus: where the documents come from.
        skipped: counts the bad rows that `on_bad_row: skip` leaves out.

    Raises:
        RevelaError: a source cannot be read, or a row is bad and `on_bad_row` is `error`.
    """
    if corpus.max_documents is None:
        yield from _all_documents(corpus, skipped)
        return
    # Two passes, so that a sample of millions is never in memory: one counts, one chooses.
    available = sum(1 for _ in _all_documents(corpus, Skipped()))
    count = min(corpus.max_documents, available)
    chosen = iter(sorted(random.Random(corpus.seed).sample(range(available), count)))
    following = next(chosen, None)
    for index, document in enumerate(_all_documents(corpus, skipped)):
        if index == following:
            yield document
            following = next(chosen, None)


def _all_documents(corpus: AnyCorpus, skipped: Skipped) -> Iterator[Document]:
    if isinstance(corpus, PackagesCorpus):
        documents = _package_documents(corpus.packages)
    else:
        documents = _row_documents(corpus, skipped)
    for document in documents:
        if not any(part in document.id for part in corpus.exclude):
            yield document


# ---------------------------------------------------------------------------- packages


def _package_documents(packages: list[str]) -> Iterator[Document]:
    """Yield each package's description, then its modules in file order; tests are left out."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise RevelaError(f"package {package!r} is not installed; install it or drop it")
        root = Path(spec.submodule_search_locations[0])
        for distribution in metadata.packages_distributions().get(package, [])[:1]:
            description = (metadata.metadata(distribution)["Description"] or "").strip()
            if description:
                yield Document(f"{package}/README", description, distribution)
        for path in sorted(root.rglob("*.py")):
            if {"tests", "testing", "test", "_vendor"} & set(path.relative_to(root).parts):
                continue
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            if text:
                name = str(path.relative_to(root.parent))
                yield Document(name, text, name.removesuffix(".py").replace("/", "."))


# ---------------------------------------------------------------------------- rows


def _row_documents(corpus: FilesCorpus | HubCorpus, skipped: Skipped) -> Iterator[Document]:
    rows = _file_rows(corpus) if isinstance(corpus, FilesCorpus) else _hub_rows(corpus)
    documents = _checked(rows, corpus, skipped)
    return _joined(documents) if corpus.join_title else documents


def _checked(
    rows: Iterable[tuple[str, Any]], corpus: RowCorpus, skipped: Skipped
) -> Iterator[Document]:
    """Turn (place, row) into documents; a row may itself be the error that reading it raised."""
    for place, row in rows:
        try:
            yield _document(place, row, corpus)
        except BadRow as error:
            if corpus.on_bad_row == "error":
                raise RevelaError(f"{error}; on_bad_row: skip leaves such rows out") from error
            skipped.add(str(error))


def _document(place: str, row: Any, corpus: RowCorpus) -> Document:
    if isinstance(row, Exception):
        raise BadRow(f"{place}: {row}") from row
    if not isinstance(row, dict):
        raise BadRow(f"{place}: expected an object with fields, got {type(row).__name__}")

    def value_of(name: str | None, default: str) -> Any:
        if name is None:
            return default
        if name not in row:
            raise BadRow(f"{place}: {unknown_name('field', name, map(str, row))}")
        return row[name]

    name = corpus.fields.text
    text = value_of(name, "") or ""
    if not isinstance(text, str):
        raise BadRow(f"{place}: field {name!r} is no text but {type(text).__name__}")
    if not text.strip():
        raise BadRow(f"{place}: field {name!r} is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow(f"{place}: field {name!r}: invalid UTF-8: {error.reason}") from error
    identity, title = value_of(corpus.fields.id, place), value_of(corpus.fields.title, "")
    return Document(str(identity), text, str(title or ""))


def _joined(passages: Iterator[Document]) -> Iterator[Document]:
    """Join consecutive passages of a title into one document, named by its first passage."""
    for _, group in itertools.groupby(passages, key=lambda passage: passage.title):
        first, *rest = group
        yield replace(first, text=" ".join([first.text, *(passage.text for passage in rest)]))


def local_files(corpus: FilesCorpus) -> list[Path]:
    """Return the files that a corpus reads, in order.

    Raises:
        RevelaError: the path does not exist, or is a folder without a file to read.
    """
    path = Path(corpus.path)
    if not path.exists():
        raise RevelaError(f"{path}: no such file or folder")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in files if file.suffix in {".txt", ".md"} or _is_rows(file)]
    if not files:
        raise RevelaError(f"{path}: no .txt, .md, .jsonl[.gz|.xz] or .parquet file in it")
    return files


def _file_rows(corpus: FilesCorpus) -> Iterator[tuple[str, Any]]:
    for file in local_files(corpus):
        if file.suffix in {".txt", ".md"}:
            yield str(file), _text_row(file, corpus)
        else:
            yield from _rows_of(file)


def _is_rows(path: Path) -> bool:
    return path.name.endswith((*_JSON_LINES, ".parquet"))


def _text_row(file: Path, corpus: RowCorpus) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return error
    row = {corpus.fields.text: text}
    return row | {name: str(file) for name in (corpus.fields.id, corpus.fields.title) if name}


def _rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    if path.name.endswith(".parquet"):
        yield from _parquet_rows(path)
    elif path.name.endswith(_JSON_LINES):
        with path.open("rb") as stream:
            yield from json_lines(stream, str(path))
    else:
        raise RevelaError(f"{path}: unknown format; allowed: .jsonl[.gz|.xz], .parquet, a folder")


def json_lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (`name:line`, row) of JSON lines, compressed or not; a bad line's row is its error."""
    if name.endswith(".gz"):
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    elif name.endswith(".xz"):
        stream = cast(BinaryIO, lzma.LZMAFile(stream))  # noqa: SIM115
    number = 0
    try:
        for number, line in enumerate(io.BufferedReader(cast(io.RawIOBase, stream)), start=1):
            if not line.strip():
                continue
            try:
                yield f"{name}:{number}", json.loads(line.decode("utf-8"))
            except json.JSONDecodeError as error:
                yield f"{name}:{number}", ValueError(f"broken JSON: {error}")
            except UnicodeDecodeError as error:
                yield f"{name}:{number}", ValueError(f"invalid UTF-8: {error.reason}")
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, OSError) as error:
        raise RevelaError(f"{name}:{number + 1}: cannot be read: {error}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        rows = (row for batch in file.iter_batches(1024) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield f"{path}:{number}", row
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise RevelaError(f"{path}: not a readable Parquet file: {error}") from error


def _hub_rows(corpus: HubCorpus) -> Iterator[tuple[str, Any]]:
    """Stream a hub data set, or read one raw file of its repository."""
    name = corpus.dataset
    if corpus.file is not None:
        import huggingface_hub

        local = _reachable(
            name,
            lambda: huggingface_hub.hf_hub_download(
                name, cast(str, corpus.file), repo_type="dataset", revision=corpus.revision
            ),
        )
        yield from _rows_of(Path(local))
        return
    import datasets

    rows = _reachable(
        name,
        lambda: datasets.load_dataset(
            name, corpus.subset, split=corpus.split, revision=corpus.revision, streaming=True
        ),
    )
    numbered = enumerate(rows, start=1)
    while (item := _reachable(name, lambda: next(numbered, None))) is not None:
        yield f"{name}:{item[0]}", item[1]


def _reachable(name: str, load: Any) -> Any:
    """Call `load`, saying in one line why a hub data set cannot be had.

    Raises:
        RevelaError: offline, gated, misspelt, or without the split asked for.
    """
    from revela.common.hub import explain

    try:
        return load()
    except Exception as error:
        raise RevelaError(explain("data set", name, error)) from error
