"""An index of texts: their chunks, BM25 over them, and embeddings of one or more retrievers.

    chunks.parquet      document id and title, position of the chunk in it, text
    bm25/               as saved by bm25s
    embeddings/0/ …     shards of the first retriever, of the next, …
    index.json          written last: the settings of the index

docs/ecosystem.md describes these files for other programs; a change raises `VERSION`.
When it is rebuilt after an interruption or a change of the texts, every valid shard is kept. Search
is exact, as in evaluation.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bm25s
import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from revela.common.errors import RevelaError, reading
from revela.common.locks import locked
from revela.common.outputs import atomic_output, read_json, remove, write_json
from revela.common.versions import STAGE_VERSIONS
from revela.config.evaluation import EncoderModel, Language
from revela.config.settings import parse_settings
from revela.config.text import AnyCorpus
from revela.evaluation.bm25 import guess_language, tokenizer
from revela.evaluation.embeddings import SHARD_SIZE, encode_corpus
from revela.evaluation.search import exact_search
from revela.retriever.encode import devices, encode, native_dtype
from revela.retriever.load import load_encoder, read_encoder
from revela.retriever.source import Source
from revela.search.fusion import DENSE_WEIGHT, Fusion, Hit, Ranking, fuse
from revela.text.chunking import chunk_corpus
from revela.text.rows import parquet_rows

VERSION = 1
PRECISION = "bfloat16"  # if the GPU supports it

_DEPTH = 100  # hits of each ranking that are fused
_SAMPLE = 1_000  # chunks that tell the language
_HITS = 1_000_000  # held at a time while documents are collected
_OWN = {"chunks.parquet", "bm25", "embeddings", "index.json"}

# Returns a number of best chunks for some queries, which are given by their indices.
Finder = Callable[[list[int], int], list[list[Hit]]]


def build(
    corpus: AnyCorpus,
    models: Sequence[str],
    folder: Path,
    max_length: int,
    language: Language | None,
    workers: int,
) -> dict[str, Any]:
    """Index a corpus, or update its index; return the contents of `index.json`.

    `models` are folders or hub names of retrievers; `max_length` tokens of a chunk are encoded;
    `language` is BM25's, by default that of the former index, or of the texts.

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
            read_encoder(Source(name), _encoder(name).encoding)
        described: dict[str, Any] = {
            "version": VERSION,
            "models": [{"name": name, "revision": Source(name).fingerprint()} for name in models],
            "max_length": max_length,
            "language": language,
            "corpus": corpus.model_dump(mode="json"),
        }
        if (folder / "index.json").exists():
            former = _described(folder)
            described["language"] = language or former["language"]
            settings = _settings(described)
            for key, value in _settings(former).items():
                if value != settings.get(key):
                    raise RevelaError(
                        f"{folder} was made with {key} {value!r}, not {settings.get(key)!r}; "
                        "remove it or give another --output"
                    )
        with atomic_output(folder / "chunks.parquet") as temporary:
            counts = chunk_corpus(corpus, temporary, workers)
            remove(folder / "index.json")  # the index is whole until here
        if skipped := counts.skipped.summary():
            print(skipped)
        texts = _texts(folder)
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
        for number, model in enumerate(described["models"]):
            load = functools.partial(load_encoder, _encoder(model["name"]), PRECISION)
            version, dtype = STAGE_VERSIONS["evaluate"], native_dtype(PRECISION)
            made_by = f"{version} {model['revision']} {dtype} {max_length}"
            place = folder / "embeddings" / str(number)
            shards = encode_corpus(load, texts, max_length, place, made_by, devices())
            for stale in set(place.glob("[0-9]*.safetensors")) - {shard.path for shard in shards}:
                remove(stale)  # from a larger version of the corpus
        described |= {"documents": counts.documents, "chunks": counts.chunks}
        write_json(folder / "index.json", described)
    return described


class Index:
    """An index to search. Models and embeddings are loaded on first use."""

    def __init__(self, folder: Path) -> None:
        """Open an index; raise a `RevelaError` if it is none, or incomplete."""
        self.folder = folder
        self.described = _described(folder)
        with reading(folder / "chunks.parquet", "a readable Parquet file"):
            self.chunks = pd.read_parquet(folder / "chunks.parquet")
        self._documents, self._positions = (
            self.chunks[column].to_numpy() for column in ("document", "position")
        )
        self.models = [model["name"] for model in self.described["models"]]
        self.labels = _labels(self.models)
        self._model = functools.cache(self._load)

    def search(
        self,
        queries: Sequence[str],
        depth: int,
        ranking: Ranking = "hybrid",
        model: int = 0,
        fusion: Fusion = "weighted-sum",
        dense_weight: float = DENSE_WEIGHT,
        chunks: bool = False,
    ) -> list[list[Hit]]:
        """Return the best documents of each query, best first, or with `chunks` the best chunks.

        A document is ranked by its best chunk, which is the hit. BM25 finds only chunks that share
        a word with the query. A hybrid fuses the top hundred of both rankings, or the top `depth`
        if that is larger; its hit of a document is BM25's, if it has one.

        Raises:
            RevelaError: a retriever is missing or has changed, or the index is damaged.
        """
        finders: list[Finder] = []
        if ranking != "bm25":
            encoder, blocks = self._model(model)
            embeddings = encode(encoder, queries, "query", self.described["max_length"])
            finders.append(lambda some, count: self._hits(embeddings[some], count, blocks))
        if ranking != "dense":
            finders.append(lambda some, count: self._lexical([queries[n] for n in some], count))
        deep = max(depth, _DEPTH) if ranking == "hybrid" else depth
        rankings = [self._best(find, len(queries), deep, chunks) for find in finders]
        if ranking != "hybrid":
            return rankings[0]
        fused = []
        for dense, bm25 in zip(*rankings, strict=True):
            same = {self.trec_id(hit.chunk, chunks): hit.chunk for hit in bm25}
            dense = [
                Hit(same.get(self.trec_id(hit.chunk, chunks), hit.chunk), hit.score)
                for hit in dense
            ]
            fused.append(fuse(dense, bm25, fusion, dense_weight)[:depth])
        return fused

    def trec_id(self, chunk: int, as_chunk: bool = False) -> str:
        """Return the id of a chunk's document, or `<document>#<position>`, without spaces."""
        name = without_spaces(self._documents[chunk])
        return f"{name}#{self._positions[chunk]}" if as_chunk else name

    def near(self, chunk: int, depth: int, model: int | None = None) -> list[Hit]:
        """Return the chunks most similar to one, by a model's embeddings or by BM25 (None)."""
        if model is None:
            (hits,) = self._lexical([self.chunks["text"][chunk]], depth + 1)
        else:
            blocks = self._model(model)[1]
            embedding = blocks[chunk // SHARD_SIZE][chunk % SHARD_SIZE].float()
            (hits,) = self._hits(embedding[None], depth + 1, blocks)
        return [hit for hit in hits if hit.chunk != chunk][:depth]

    def row(self, hit: Hit) -> dict[str, Any]:
        """Return a hit with its document, the chunk's position in it, and its text.

        A document that is a file is named by its path within the folder of the texts.
        """
        row = self.chunks.loc[hit.chunk].to_dict()
        return {"chunk": hit.chunk, "score": hit.score} | row | {"position": int(row["position"])}

    def _best(self, find: Finder, queries: int, depth: int, chunks: bool) -> list[list[Hit]]:
        """Return `depth` hits of each query with different ids, fewer if there are no more."""
        best: dict[int, list[Hit]] = {}
        waiting, deep = list(range(queries)), depth
        while waiting:
            size, unfinished = max(1, _HITS // deep), []
            for start in range(0, len(waiting), size):
                some = waiting[start : start + size]
                for query, hits in zip(some, find(some, deep), strict=True):
                    first: dict[str, Hit] = {}
                    for hit in hits:
                        first.setdefault(self.trec_id(hit.chunk, chunks), hit)
                    best[query] = list(first.values())[:depth]
                    if len(first) < depth and len(hits) == deep:
                        unfinished.append(query)
            waiting, deep = unfinished, 4 * deep
        return [best[query] for query in range(queries)]

    def _hits(self, queries_QD: Tensor, depth: int, blocks: list[Tensor]) -> list[list[Hit]]:
        scores, numbers = exact_search(queries_QD, blocks, depth, device=devices()[0])
        return [
            [Hit(number, score) for score, number in zip(best, where, strict=True)]
            for best, where in zip(scores.tolist(), numbers.tolist(), strict=True)
        ]

    @functools.cached_property
    def _bm25(self) -> tuple[Any, Callable[[list[str]], Any]]:
        folder = self.folder / "bm25"
        with reading(folder, "a BM25 index"):
            words = tokenizer(self.described["language"])
            return bm25s.BM25.load(folder, show_progress=False), words

    def _lexical(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """Return the chunks that share a word with each query, best first."""
        bm25, tokenize = self._bm25
        terms, depth = tokenize(list(queries)), min(depth, len(self.chunks))
        best = bm25.retrieve(terms, k=depth, show_progress=False)
        return [
            [Hit(int(n), float(s)) for n, s in zip(numbers, scores, strict=True) if s > 0]
            for numbers, scores in zip(*best, strict=True)
        ]

    def _load(self, number: int) -> tuple[SentenceTransformer, list[Tensor]]:
        name = self.models[number]
        if Source(name).fingerprint() != self.described["models"][number]["revision"]:
            raise RevelaError(
                f"{name} has changed since {self.folder} was made; remove it and run revela index "
                "again"
            )
        place = self.folder / "embeddings" / str(number)
        try:
            blocks = [load_file(path)["embeddings"] for path in sorted(place.glob("*.safetensors"))]
        except SafetensorError as error:
            raise RevelaError(f"{place}: {error}; run revela index again") from error
        return load_encoder(_encoder(name), PRECISION, devices()[0]), blocks


def _encoder(name: str) -> EncoderModel:
    settings = json.dumps({"kind": "encoder", "retriever": name})
    entry: EncoderModel = parse_settings(EncoderModel, settings, "--model")
    return entry


def _settings(described: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an index that a second call cannot change."""
    settings = {key: described[key] for key in ("models", "max_length", "language")}
    return described["corpus"] | settings


def without_spaces(name: str) -> str:
    """Return a name for a TREC run, whose fields are separated by spaces."""
    return re.sub(r"\s", lambda space: quote(space[0]), name)


def _labels(models: Sequence[str]) -> list[str]:
    """Return labels of models: their folder's name if that is unambiguous."""
    parts = [Path(model).parts for model in models]
    names = [path[-2] if path[-1] == "retriever" and path[1:] else path[-1] for path in parts]
    return names if len(set(names)) == len(names) else list(models)


def _texts(folder: Path) -> list[str]:
    """Return the texts of the chunks as evaluation encodes them, behind their titles."""
    rows = parquet_rows(folder / "chunks.parquet", ["title", "text"])
    return [f"{row['title']} {row['text']}".strip() for row in rows]


def _described(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    if not path.exists():
        raise RevelaError(f"{folder}: no index, or an incomplete one; run 'revela index' first")
    described = read_json(path)
    if (version := described.get("version")) != VERSION:
        raise RevelaError(f"{path}: version {version}, expected {VERSION}: remove {folder}")
    return described
