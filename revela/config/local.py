"""Local files named by a configuration, which are inputs of steps: texts, collections, models."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from revela.common.errors import RevelaError, check_name, errors_at, reading
from revela.common.outputs import read_json
from revela.config.formats import ALLOWED, ROWS, is_aside, is_plain, row_format
from revela.config.names import ModelRef
from revela.config.text import AnyCorpus

PUNKT = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
"""The files of a Punkt model."""

_BLOCKS, _BLOCK_BYTES = 64, 16_384
_OF_A_MODEL = {".safetensors", ".json", ".txt", ".model"}
_OTHER_WEIGHTS = {
    ".bin": "pickled ones: save them with safe_serialization=True",
    ".gguf": "GGUF ones, which cannot be trained: use the model that they were made from",
    ".onnx": "ONNX ones, which cannot be trained: use the model that they were made from",
}


def text_files(path: Path) -> list[Path]:
    """Return the files that a corpus reads, in order; of a folder, all that it can.

    Hidden files, and the results of this workflow if they are in the folder, are not texts; nor are
    a README, a licence and the like beside rows. Formats are told by content in a folder in which
    no name tells one.

    Raises:
        RevelaError: the path does not exist, its format is unknown, a folder has no such files or
            both rows and plain texts, or a name is not UTF-8.
    """
    with reading(path, "texts"):  # it may be without permission
        if not path.exists():
            raise RevelaError(f"{path}: no such file or folder")
        if not path.is_dir() and (is_plain(path) or not row_format(path)):
            raise RevelaError(f"{path}: unknown format; allowed: {ALLOWED}, a folder")
        files = _in_folder(path) if path.is_dir() else [path]
    for file in files:  # ids of documents, manifests and Snakemake's lists of files are UTF-8
        try:
            str(file).encode()
        except UnicodeEncodeError as error:
            raise RevelaError(f"{str(file)!r}: rename it: its name is not UTF-8") from error
    return files


def _in_folder(folder: Path) -> list[Path]:
    visible = [file for file in _visible(folder) if file.is_file()]
    plain = [file for file in visible if is_plain(file)]
    texts = [file for file in plain if not is_aside(file)]
    others = [file for file in visible if not is_plain(file) and not is_aside(file)]
    rows = [file for file in others if file.name.lower().endswith(ROWS)]
    if rows and texts:
        both = f"both files of rows and plain texts, such as {texts[0].name}"
        raise RevelaError(f"{folder}: contains {both}; use one kind")
    files = rows or (plain if texts else [file for file in others if row_format(file)] or plain)
    if not files:
        raise RevelaError(f"{folder}: no .txt or .md file in it, nor {ALLOWED}")
    return files


def corpus_files(corpus: AnyCorpus) -> list[Path]:
    """Return the local files of a corpus: its texts and the model that splits its sentences.

    Raises:
        RevelaError: see `text_files`; or a file of the model is missing.
    """
    texts = text_files(Path(corpus.path)) if corpus.source == "files" else []
    model = [Path(corpus.punkt, name) for name in PUNKT] if corpus.punkt else []
    for file in model:
        if not file.is_file():
            raise RevelaError(f"{corpus.punkt}: no Punkt model: no {file.name} in it")
    return texts + model


def unread_files(path: Path) -> list[str]:
    """Return the names of a folder's other files and linked folders, which a corpus skips."""
    if not path.is_dir():
        return []
    read = {*text_files(path)}
    return [
        f"{file.name} (a link)" if file.is_symlink() else file.name
        for file in _visible(path)
        if file not in read
    ]


def _visible(folder: Path) -> list[Path]:
    def fail(error: OSError) -> NoReturn:
        raise RevelaError(f"{error.filename}: {error.strerror}") from error

    paths: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in folders + files if not name.startswith(".")]
    results = Path("results").resolve()
    return sorted(
        file
        for file in paths
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
    judgements = ["qrels.tsv", "qrels/{}.tsv", "qrels/{}-*.parquet", "data/{}-*.parquet"]
    qrels = [file.format(split) for file in judgements[split != "test" :]]
    judged = [file for pattern in judgements for file in folder.glob(pattern.format("*"))]
    splits = {re.split("[.-]", file.name)[0] for file in judged}
    splits = {"test" if name == "qrels" else name for name in splits}
    if splits:
        check_name(str(folder), "split", split, splits)
    for names in (corpus, queries, qrels):
        present = [name for name in names if any(folder.glob(name))]
        if len(present) > 1 and not present[0].endswith(".parquet"):
            raise RevelaError(f"{folder}: both {present[0]} and {present[1]} in it; keep one")
    return _one_of(folder, *corpus), _one_of(folder, *queries), _one_of(folder, *qrels)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that determine its vectors, in order.

    Raises:
        RevelaError: it lacks a configuration, weights in safetensors or a tokenizer, or its first
            module is no Transformer.
    """
    folders, home = [folder], folder
    if (listed := folder / "modules.json").is_file():
        with reading(listed, "a list of modules"):
            modules = json.loads(listed.read_text(encoding="utf-8"))
            folders += [folder / module["path"] for module in modules if module["path"]]
            kind, home = modules[0]["type"].rpartition(".")[2], folder / modules[0]["path"]
        if kind != "Transformer":
            raise RevelaError(f"{folder}: begins with a module {kind}, not with a Transformer")
    (described,) = _one_of(home, "config.json", "adapter_config.json")
    read_json(described)
    if not any(home.glob("*.safetensors")):
        other = next((kind for kind in _OTHER_WEIGHTS if any(folder.rglob(f"*{kind}"))), None)
        hint = f"; it has {_OTHER_WEIGHTS[other]}" if other else ""
        raise RevelaError(f"{folder}: no safetensors weights in it{hint}")
    if described.name == "config.json":
        _one_of(home, "tokenizer.json", "tokenizer_config.json")
    files = {
        file for place in folders for file in place.glob("[!.]*") if file.suffix in _OF_A_MODEL
    }
    return sorted(files - {folder / "manifest.json"})


def not_a_language_model(config: Mapping[str, Any], has_modules: bool) -> str | None:
    """Return why a model's `config.json` and modules do not describe a causal language model."""
    if code := _own_code(config):
        return f"has code of its own ({code}), which is never run"
    kinds = config.get("architectures") or ["ForCausalLM"]
    if has_modules or not any("CausalLM" in kind or "LMHeadModel" in kind for kind in kinds):
        what = "an encoder" if has_modules else kinds[0]
        return f"is {what}, not a causal language model"
    return None


def not_an_encoder(read: Callable[[str], Any]) -> str | None:
    """Return why a model's files do not describe an encoder that can be computed.

    `read` returns the content of one of its JSON files, or None.
    """
    modules, width = read("modules.json") or [], None
    home = modules[0]["path"] if modules else ""
    codes = [module["type"] for module in modules]
    codes = [code for code in codes if not code.startswith("sentence_transformers.")]
    if code := _own_code(read(os.path.join(home, "config.json")) or {}) or next(iter(codes), None):
        return f"has code of its own ({code}), which is never run"
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        settings = read(os.path.join(module["path"], "config.json")) or {}
        if kind == "Pooling":
            mode = settings.get("pooling_mode")  # or, in older files, a key for each mode
            older = sum(
                on is True for key, on in settings.items() if key.startswith("pooling_mode_")
            )
            size = settings.get("embedding_dimension", settings.get("word_embedding_dimension", 0))
            width = size * (len(mode) if isinstance(mode, list) else older or 1)
        elif kind == "Dense":
            if width not in (None, inputs := settings.get("in_features")):
                return f"has a Dense layer of {inputs} inputs, but what it gets has {width}"
            width = settings.get("out_features")
    return None


def _own_code(config: Mapping[str, Any]) -> str | None:
    """Return the class in the model's own code that a `config.json` asks for, if there is one."""
    if not (own := config.get("auto_map")):
        return None
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    stock = MODEL_MAPPING_NAMES.get(config.get("model_type", ""), ())
    stock = (stock,) if isinstance(stock, str) else stock
    code = own.get("AutoModel") or ("" if stock else own.get("AutoConfig") or str(own))
    return code if code.rpartition(".")[2] not in ("", *stock) else None


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


def digest(files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files, not of timestamps.

    Some blocks are read of a file of more than a megabyte. Copies and fresh checkouts have the same
    hash, other weights and texts do not.
    """
    hashed = hashlib.sha256()
    for file in files:
        state = file.stat()
        hashed.update(f"{file.name} {state.st_size} ".encode())
        hashed.update(_blocks(file, state.st_size, state.st_ctime_ns))
    return hashed.hexdigest()[:12]


@functools.cache
def _blocks(file: Path, size: int, _: int) -> bytes:
    with file.open("rb") as stream:
        if size <= _BLOCKS * _BLOCK_BYTES:
            return hashlib.sha256(stream.read()).digest()
        hashed = hashlib.sha256()
        for block in range(_BLOCKS):
            stream.seek(size * block // _BLOCKS)
            hashed.update(stream.read(_BLOCK_BYTES))
        return hashed.digest()


def _one_of(folder: Path, *names: str) -> list[Path]:
    """Return the file with the first name that exists, or the shards that match a pattern."""
    if not folder.is_dir():
        raise RevelaError(f"{folder}: no such folder")
    with reading(folder, "a folder"):  # `glob` passes over one without permission
        os.listdir(folder)
    for name in names:
        if files := sorted(folder.glob(name)):
            return files
    raise RevelaError(f"{folder}: no {' or '.join(names)} in it")
