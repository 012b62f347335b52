"""Builds an index of texts: their chunks, BM25 over them, and embeddings of one or more retrievers.

    chunks.parquet      document id and title, position of the chunk in it, text
    bm25/               as saved by bm25s
    embeddings/0/ …     shards of the first retriever, of the next, …
    index.json          written last: the settings of the index, the weights of its hybrids

When it is rebuilt after an interruption or a change of the texts, every valid shard is kept.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s

from revela.common.errors import RevelaError
from revela.common.locks import locked
from revela.common.outputs import atomic_output, remove, write_json
from revela.common.versions import STAGE_VERSIONS
from revela.config.evaluation import Language
from revela.config.text import AnyCorpus
from revela.evaluation.bm25 import guess_language, tokenizer
from revela.evaluation.embeddings import encode_corpus, passage
from revela.retriever.encode import devices, native_dtype
from revela.retriever.load import load_encoder, read_encoder
from revela.retriever.source import Source
from revela.search import index
from revela.search.tuning import Tuning
from revela.text.chunking import chunk_corpus
from revela.text.rows import parquet_rows

_LONGEST = 512  # tokens of a chunk, unless told otherwise
_SAMPLE = 1_000  # chunks that tell the language
_OWN = {"chunks.parquet", "bm25", "embeddings", "index.json"}


def fitting_length(models: Sequence[str]) -> int:
    """Return the number of tokens that all of some retrievers can encode, 512 at most.

    Raises:
        RevelaError: a model is missing, or none that can be read.
    """
    own = (read_encoder(Source(m), index.encoder_entry(m).encoding).max_seq_length for m in models)
    return min(_LONGEST, *(length or _LONGEST for length in own))


def build(
    corpus: AnyCorpus,
    models: Sequence[str],
    folder: Path,
    max_length: int,
    language: Language | None,
    workers: int,
) -> dict[str, Any]:
    """Index a corpus, or update its index; return the contents of `index.json`.

    `max_length` tokens of a chunk are encoded; `language` is BM25's, by default that of the former
    index, or of the texts.

    Raises:
        RevelaError: the folder contains other files or a different index, or another process is
            indexing into it; or a text or a model cannot be read.
    """
    if folder.exists():
        # Hidden files: temporary ones of a killed call, or a file manager's.
        other = {file.name for file in folder.glob("[!.]*")} - _OWN
        if other or not folder.is_dir():
            raise RevelaError(f"{folder}: exists but is not an index; give another --output")
    if corpus.source == "files" and folder.resolve().is_relative_to(Path(corpus.path).resolve()):
        raise RevelaError(f"{folder}: is in the folder of the texts; give another --output")
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in models]
    with locked(folder, "revela index"):
        for name in models:  # before the texts are read: it is there, and can be computed
            read_encoder(Source(name), index.encoder_entry(name).encoding)
        described: dict[str, Any] = {
            "version": index.VERSION,
            "models": [{"name": name, "revision": Source(name).fingerprint()} for name in models],
            "max_length": max_length,
            "language": language,
            "corpus": corpus.model_dump(mode="json"),
        }
        if (folder / "index.json").exists():
            former = index.read_description(folder)
            described["language"] = language or former["language"]
            settings = _settings(described)
            for key, value in _settings(former).items():
                if value != settings.get(key):
                    made = f"{folder} was made with {key} {value!r}, not {settings.get(key)!r}"
                    raise RevelaError(f"{made}; remove it or give another --output")
        with atomic_output(folder / "chunks.parquet") as temporary:
            counts = chunk_corpus(corpus, temporary, workers)
            remove(folder / "index.json")  # the index is whole until here
        if skipped := counts.skipped.summary():
            print(skipped)
        chunks = list(parquet_rows(folder / "chunks.parquet"))
        texts = [passage(row["title"], row["text"]) for row in chunks]
        if not described["language"]:
            described["language"] = guess_language(texts[:: len(texts) // _SAMPLE + 1])
            print(f"language of BM25: {described['language']} (--language sets another)")
        bm25 = bm25s.BM25()
        try:
            bm25.index(tokenizer(described["language"])(texts), show_progress=False)
        except ValueError as error:
            raise RevelaError(f"BM25 finds no words in the {len(texts)} chunks") from error
        with atomic_output(folder / "bm25") as temporary:
            bm25.save(temporary, show_progress=False)
        del bm25  # encoding may need the memory
        described["dense_weights"], tuning = [], Tuning(chunks)
        names = index.labels(models) if len(models) > 1 else ["the retriever"]
        for number, (model, name) in enumerate(zip(described["models"], names, strict=True)):
            load = functools.partial(
                load_encoder, index.encoder_entry(model["name"]), index.PRECISION
            )
            version, dtype = STAGE_VERSIONS["evaluate"], native_dtype(index.PRECISION)
            made_by = f"{version} {model['revision']} {dtype} {max_length}"
            place = folder / "embeddings" / str(number)
            shards = encode_corpus(
                load, texts, max_length, place, made_by, devices(), index.SHARD_SIZE
            )
            for stale in set(place.glob("[0-9]*.safetensors")) - {shard.path for shard in shards}:
                remove(stale)  # from a larger version of the corpus
            weight = tuning.weight(load(devices()[0]), described["language"], max_length)
            described["dense_weights"].append(weight)
            why = f"chosen on {tuning.chosen_on}" if tuning.enough else "as the texts are few"
            print(f"weight of {name}: {weight}, {why}")
        described |= {"documents": counts.documents, "chunks": counts.chunks}
        write_json(folder / "index.json", described)
    return described


def _settings(described: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an index that a second call cannot change."""
    settings = {key: described[key] for key in ("models", "max_length", "language")}
    return described["corpus"] | settings
