"""Corpora: streams of documents from packages, local files and the Hugging Face hub."""

import gzip
import importlib.util
import io
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, cast

from revela.config import AnyCorpus, FilesCorpus, HubCorpus, PackagesCorpus, RowCorpus
from revela.errors import RevelaError, unknown_name


@dataclass(frozen=True)
class Document:
    """One document of a corpus."""

    id: str
    text: str
    title: str = ""


class BadRow(Exception):
    """A row that is no document; its message says where it stands and what is wrong."""


def read_documents(corpus: AnyCorpus, skipped: list[str]) -> Iterator[Document]:
    """Yield the documents of a corpus in order, in constant memory.

    Args:
        corpus: where the documents come from.
        skipped: receives a line for every bad row that `on_bad_row: skip` left out.

    Raises:
        RevelaError: a source cannot be read, or a row is bad and `on_bad_row` is `error`.
    """
    documents: Iterator[Document]
    if isinstance(corpus, PackagesCorpus):
        documents = _package_documents(corpus.packages)
    else:
        documents = _row_documents(corpus, skipped)
    if corpus.documents is not None:
        documents = _sample(documents, corpus.documents, corpus.seed)
    yield from documents


def _sample(documents: Iterator[Document], count: int, seed: int) -> Iterator[Document]:
    """Yield a seeded reservoir sample of documents, in their own order."""
    choose = random.Random(seed)
    kept: list[tuple[int, Document]] = []
    for index, document in enumerate(documents):
        if index < count:
            kept.append((index, document))
        elif (place := choose.randrange(index + 1)) < count:
            kept[place] = (index, document)
    yield from (document for _, document in sorted(kept, key=lambda item: item[0]))


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


def _row_documents(corpus: FilesCorpus | HubCorpus, skipped: list[str]) -> Iterator[Document]:
    rows = _file_rows(corpus) if isinstance(corpus, FilesCorpus) else _hub_rows(corpus)
    documents = _checked(rows, corpus, skipped)
    return _joined(documents) if corpus.join_title else documents


def _checked(
    rows: Iterable[tuple[str, Any]], corpus: RowCorpus, skipped: list[str]
) -> Iterator[Document]:
    """Turn (place, row) into documents; a row may itself be the error that reading it raised."""
    for place, row in rows:
        try:
            yield _document(place, row, corpus)
        except BadRow as error:
            if corpus.on_bad_row == "error":
                raise RevelaError(f"{error}; on_bad_row: skip leaves such rows out") from error
            skipped.append(str(error))


def _document(place: str, row: Any, corpus: RowCorpus) -> Document:
    if isinstance(row, Exception):
        raise BadRow(f"{place}: {row}") from row
    if not isinstance(row, dict):
        raise BadRow(f"{place}: expected an object with fields, got {type(row).__name__}")

    def field(name: str | None, default: str) -> str:
        if name is None:
            return default
        if name not in row:
            raise BadRow(f"{place}: {unknown_name('field', name, map(str, row))}")
        value = row[name]
        return "" if value is None else str(value)

    text = field(corpus.fields.text, "")
    if not text.strip():
        raise BadRow(f"{place}: field {corpus.fields.text!r} is empty")
    return Document(field(corpus.fields.id, place), text, field(corpus.fields.title, ""))


def _joined(passages: Iterator[Document]) -> Iterator[Document]:
    """Join consecutive passages of a title into one document, named by its first passage."""
    for _, group in itertools.groupby(passages, key=lambda passage: passage.title):
        first, *rest = group
        yield replace(first, text=" ".join([first.text, *(passage.text for passage in rest)]))


def _file_rows(corpus: FilesCorpus) -> Iterator[tuple[str, Any]]:
    path = Path(corpus.path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        texts = [file for file in files if file.suffix in {".txt", ".md"}]
        rows = [file for file in files if _is_rows(file)]
        if not texts and not rows:
            raise RevelaError(f"{path}: no .txt, .md, .jsonl, .jsonl.gz or .parquet file in it")
        for file in texts:
            yield str(file), _text_row(file, corpus)
        for file in rows:
            yield from _rows_of(file)
    elif not path.exists():
        raise RevelaError(f"{path}: no such file or folder")
    else:
        yield from _rows_of(path)


def _is_rows(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz", ".parquet"))


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
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        with path.open("rb") as stream:
            yield from json_lines(stream, str(path))
    else:
        raise RevelaError(f"{path}: unknown format; allowed: .jsonl, .jsonl.gz, .parquet, a folder")


def json_lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (`name:line`, row) of JSON lines, gzipped or not; a bad line's row is its error."""
    if name.endswith(".gz"):
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
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
    except (gzip.BadGzipFile, EOFError, OSError) as error:
        raise RevelaError(f"{name}:{number + 1}: cannot be read: {error}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        rows = (row for batch in file.iter_batches(1024) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield f"{path}:{number}", row
    except pyarrow.ArrowInvalid as error:
        raise RevelaError(f"{path}: not a Parquet file: {error}") from error


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
    for number, row in enumerate(rows, start=1):
        yield f"{name}:{number}", row


def _reachable(name: str, load: Any) -> Any:
    """Call `load`, saying in one line why a hub data set cannot be had.

    Raises:
        RevelaError: offline, gated, misspelt, or without the split asked for.
    """
    from revela.hub import explain

    try:
        return load()
    except Exception as error:
        raise RevelaError(explain("data set", name, error)) from error
