"""Local files named by a configuration, which are inputs of steps: texts, collections, models."""

import functools
import hashlib
from pathlib import Path

from revela.common.errors import RevelaError
from revela.common.outputs import read_json

PLAIN_TEXT = (".txt", ".md")
JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
ROWS = (*JSON_LINES, ".parquet")
_BLOCKS, _BLOCK_BYTES = 64, 16_384


def text_files(path: Path) -> list[Path]:
    """Return the files that a corpus reads, in order.

    Raises:
        RevelaError: the path does not exist, its format is unknown, a folder has no such files, or
            a name is not UTF-8.
    """
    if not path.exists():
        raise RevelaError(f"{path}: no such file or folder")
    if not path.is_dir():
        if not path.name.endswith(ROWS):
            raise RevelaError(f"{path}: unknown format; allowed: {', '.join(ROWS)}, a folder")
        return _with_utf8_names([path])
    read = (*PLAIN_TEXT, *ROWS)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(read))
    if not files:
        raise RevelaError(f"{path}: no .txt, .md, .jsonl[.gz|.xz] or .parquet file in it")
    return _with_utf8_names(files)


def _with_utf8_names(files: list[Path]) -> list[Path]:
    # Ids of documents are written as UTF-8, and so are the file lists of manifests and Snakemake.
    for file in files:
        try:
            str(file).encode()
        except UnicodeEncodeError as error:
            raise RevelaError(f"{str(file)!r}: rename it: its name is not UTF-8") from error
    return files


def collection_files(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files of a collection's corpus, of its queries and of its judgements.

    They are in BEIR layout or, as Parquet files, in that of mteb's data sets.

    Raises:
        RevelaError: one is missing.
    """
    texts = ("{}.jsonl", "{}.jsonl.gz", "{}/test-*.parquet", "{}/*.parquet")
    corpus, queries = (
        _one_of(folder, *(file.format(name) for file in texts)) for name in ("corpus", "queries")
    )
    qrels = ("qrels.tsv", "qrels/test.tsv", "qrels/test-*.parquet", "data/test-*.parquet")
    return corpus, queries, _one_of(folder, *qrels)


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


@functools.cache
def fingerprint(folder: Path) -> str:
    """Return a hash of the names, sizes and some blocks of a model's files, not of timestamps.

    Copies and fresh checkouts have the same hash, other weights do not. Errors are those of
    `model_files`.
    """
    digest = hashlib.sha256()
    for file in model_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            for block in range(_BLOCKS):
                stream.seek(size * block // _BLOCKS)
                digest.update(stream.read(_BLOCK_BYTES))
    return digest.hexdigest()[:12]


def _one_of(folder: Path, *names: str) -> list[Path]:
    """Return the file with the first name that exists, or the shards that match a pattern."""
    if not folder.is_dir():
        raise RevelaError(f"{folder}: no such folder")
    for name in names:
        if found := sorted(folder.glob(name)):
            return found
    raise RevelaError(f"{folder}: no {' or '.join(names)} in it")
