"""Local files named by a configuration, which are inputs of steps: texts, collections, models."""

import functools
import hashlib
import os
from pathlib import Path
from typing import NoReturn

from revela.common.errors import RevelaError, errors_at, reading, unknown_name
from revela.common.outputs import read_json
from revela.config.names import ModelRef

PLAIN_TEXT = (".txt", ".md")
JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
ROWS = (*JSON_LINES, ".parquet")
_BLOCKS, _BLOCK_BYTES = 64, 16_384


def text_files(path: Path) -> list[Path]:
    """Return the files that a corpus reads, in order; of a folder, all that it can.

    Hidden files, and the results of this workflow if they are in the folder, are not texts.

    Raises:
        RevelaError: the path does not exist, its format is unknown, a folder has no such files or
            both rows and plain texts, or a name is not UTF-8.
    """
    with reading(path, "texts"):  # it may be without permission
        if not path.exists():
            raise RevelaError(f"{path}: no such file or folder")
    if path.is_dir():
        files = [file for file in _visible(path) if file.is_file() and _is_read(file)]
        if not files:
            raise RevelaError(f"{path}: no .txt, .md, .jsonl[.gz|.xz] or .parquet file in it")
        plain = [file for file in files if is_plain(file)]
        if 0 < len(plain) < len(files):
            both = f"both files of rows and plain texts, such as {plain[0].name}"
            raise RevelaError(f"{path}: contains {both}; use one kind")
    elif path.name.lower().endswith(ROWS):
        files = [path]
    else:
        raise RevelaError(f"{path}: unknown format; allowed: {', '.join(ROWS)}, a folder")
    # Ids of documents are written as UTF-8, and so are the file lists of manifests and Snakemake.
    for file in files:
        try:
            str(file).encode()
        except UnicodeEncodeError as error:
            raise RevelaError(f"{str(file)!r}: rename it: its name is not UTF-8") from error
    return files


def _is_read(file: Path) -> bool:
    return file.name.lower().endswith((*PLAIN_TEXT, *ROWS))


def is_plain(file: Path) -> bool:
    """Return whether a file is one document, not one of many rows."""
    return file.suffix.lower() in PLAIN_TEXT


def unread_files(path: Path) -> list[str]:
    """Return the names of a folder's other files and linked folders, which a corpus skips."""
    found = _visible(path) if path.is_dir() else []
    return [
        f"{file.name} (a link)" if file.is_symlink() else file.name
        for file in found
        if not (file.is_file() and _is_read(file))
    ]


def _visible(folder: Path) -> list[Path]:
    def fail(error: OSError) -> NoReturn:
        raise RevelaError(f"{error.filename}: {error.strerror}") from error

    found: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in folders + files if not name.startswith(".")]
    results = Path("results").resolve()
    return sorted(
        file
        for file in found
        if (file.is_file() or file.is_symlink())
        and (results not in file.absolute().parents or results in folder.absolute().parents)
    )


def collection_files(
    folder: Path, split: str = "test"
) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files of a collection's corpus, of its queries and of a split's judgements.

    They are in BEIR layout or, as Parquet files, in that of mteb's data sets.

    Raises:
        RevelaError: one is missing, or there in two formats.
    """
    texts = ("{}.jsonl", "{}.jsonl.gz", f"{{}}/{split}-*.parquet", "{}/*.parquet")
    corpus, queries = ([file.format(name) for file in texts] for name in ("corpus", "queries"))
    qrels = [f"qrels/{split}.tsv", f"qrels/{split}-*.parquet", f"data/{split}-*.parquet"]
    if split == "test":
        qrels.insert(0, "qrels.tsv")
    judged = [*folder.glob("qrels/*.tsv"), *folder.glob("qrels/*.parquet")]
    judged += [*folder.glob("data/*.parquet")]
    splits = {file.name.partition(".")[0].partition("-")[0] for file in judged}
    if (folder / "qrels.tsv").exists():
        splits.add("test")
    if splits and split not in splits:
        raise RevelaError(f"{folder}: {unknown_name('split', split, splits)}")
    for names in (corpus, queries, qrels):
        found = [file for file in names if any(folder.glob(file))]
        if len(found) > 1 and not found[0].endswith(".parquet"):
            raise RevelaError(f"{folder}: both {found[0]} and {found[1]} in it; keep one")
    return _one_of(folder, *corpus), _one_of(folder, *queries), _one_of(folder, *qrels)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder, in order.

    Raises:
        RevelaError: it lacks a configuration, weights in safetensors or a tokenizer.
    """
    (described,) = _one_of(folder, "config.json", "adapter_config.json")
    read_json(described)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickled = any(folder.glob("*.bin"))
        hint = "; save its pickled weights with safe_serialization=True" if pickled else ""
        raise RevelaError(f"{folder}: no safetensors weights in it{hint}")
    if described.name == "config.json":
        _one_of(folder, "tokenizer.json", "tokenizer_config.json")
    others = {*folder.glob("*.json"), *folder.glob("tokenizer*")} - {folder / "manifest.json"}
    return sorted({*weights, *others})


def check_model_folder(name: str) -> None:
    """Check that a model given by a folder is there and complete.

    Raises:
        RevelaError: it is not; the message begins with the model.
    """
    if (folder := ModelRef(name)).is_folder:
        with errors_at(f"model {name!r}"):
            if not Path(folder).is_dir():
                raise RevelaError("no such folder")
            model_files(Path(folder))


def fingerprint(folder: Path) -> str:
    """Return the digest of a model's files; errors are those of `model_files`."""
    return digest(tuple(model_files(folder)), whole=0)


@functools.cache
def digest(files: tuple[Path, ...], whole: int = _BLOCKS * _BLOCK_BYTES) -> str:
    """Return a hash of the names and contents of files, not of timestamps.

    Of a file with more than `whole` bytes, some blocks are read. Copies and fresh checkouts have
    the same hash, other weights and texts do not.
    """
    hashed = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        hashed.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            if size <= whole:
                hashed.update(stream.read())
                continue
            for block in range(_BLOCKS):
                stream.seek(size * block // _BLOCKS)
                hashed.update(stream.read(_BLOCK_BYTES))
    return hashed.hexdigest()[:12]


def _one_of(folder: Path, *names: str) -> list[Path]:
    """Return the file with the first name that exists, or the shards that match a pattern."""
    if not folder.is_dir():
        raise RevelaError(f"{folder}: no such folder")
    with reading(folder, "a folder"):  # `glob` passes over one without permission
        os.listdir(folder)
    for name in names:
        if found := sorted(folder.glob(name)):
            return found
    raise RevelaError(f"{folder}: no {' or '.join(names)} in it")
