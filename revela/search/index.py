"""Searches an index of texts, as `revela.search.build` writes it; exactly, as in evaluation."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import bm25s
import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from revela.common.errors import RevelaError, reading
from revela.common.outputs import read_json
from revela.config.evaluation import EncoderModel
from revela.config.settings import parse_settings
from revela.evaluation.bm25 import tokenizer
from revela.evaluation.fusion import fuse
from revela.evaluation.search import exact_search
from revela.retriever.encode import devices, encode
from revela.retriever.load import load_encoder
from revela.retriever.source import Source
from revela.search import Ranking

VERSION = 2
PRECISION = "bfloat16"  # if the GPU supports it
SHARD_SIZE = 1_024  # chunks, so that a killed call on a CPU loses a minute
DEPTH = 100  # hits of each ranking that are fused
_HITS = 1_000_000  # held at a time while documents are collected


class Hit(NamedTuple):
    """A search result: the number of a chunk in the index, and its score."""

    chunk: int
    score: float


# Returns a number of best chunks for some queries, which are given by their indices.
Finder = Callable[[list[int], int], list[list[Hit]]]


class Index:
    """An index to search. Models and embeddings are loaded on first use."""

    def __init__(self, folder: Path) -> None:
        """Open an index; raise a `RevelaError` if it is none, or incomplete."""
        self.folder = folder
        self.described = read_description(folder)
        with reading(folder / "chunks.parquet", "a readable Parquet file"):
            self.chunks = pd.read_parquet(folder / "chunks.parquet")
        self._documents = self.chunks["document"].to_numpy()
        self.models = [model["name"] for model in self.described["models"]]
        self.labels = labels(self.models)
        self.weights: list[float] = self.described["dense_weights"]
        self._model = functools.cache(self._load)

    def search(
        self,
        queries: Sequence[str],
        depth: int,
        ranking: Ranking = "hybrid",
        model: int = 0,
        dense_weight: float | None = None,
        chunks: bool = False,
    ) -> list[list[Hit]]:
        """Return the best documents of each query, best first, or with `chunks` the best chunks.

        A document is ranked by its best chunk, which is the hit. A hybrid fuses the top hundred of
        both rankings, or the top `depth` if that is larger; its hit of a document is BM25's, if it
        has one. `dense_weight`, from 0 to 1, is by default the one chosen for the index.

        Raises:
            RevelaError: a retriever is missing or has changed, or the index is damaged.
        """
        finders: list[Finder] = []
        if ranking != "bm25":
            encoder, blocks = self._model(model)
            embeddings = encode(encoder, queries, "query", self.described["max_length"])
            finders.append(lambda some, count: dense_hits(embeddings[some], blocks, count))
        if ranking != "dense":
            finders.append(lambda some, count: self._lexical([queries[n] for n in some], count))
        deep = max(depth, DEPTH) if ranking == "hybrid" else depth
        rankings = [self._best(find, len(queries), deep, chunks) for find in finders]
        if ranking != "hybrid":
            return rankings[0]
        weight = self.weights[model] if dense_weight is None else dense_weight
        found = []
        for hits, of_bm25 in zip(*rankings, strict=True):
            same = {self.trec_id(hit.chunk, chunks): hit.chunk for hit in of_bm25}
            dense = {same.get(self.trec_id(h.chunk, chunks), h.chunk): h.score for h in hits}
            fused = fuse(dense, {hit.chunk: hit.score for hit in of_bm25}, weight)
            found.append([Hit(*one) for one in list(fused.items())[:depth]])
        return found

    def trec_id(self, chunk: int, as_chunk: bool = False) -> str:
        """Return the id of a chunk's document, or `<document>#<position>`, without spaces."""
        name = without_spaces(self._documents[chunk])
        return f"{name}#{self.chunks['position'][chunk]}" if as_chunk else name

    def near(self, chunk: int, depth: int, model: int | None = None) -> list[Hit]:
        """Return the chunks most similar to one, by a model's embeddings or by BM25 (None)."""
        if model is None:
            (hits,) = self._lexical([self.chunks["text"][chunk]], depth + 1)
        else:
            blocks = self._model(model)[1]
            embedding = blocks[chunk // SHARD_SIZE][chunk % SHARD_SIZE].float()
            (hits,) = dense_hits(embedding[None], blocks, depth + 1)
        return [hit for hit in hits if hit.chunk != chunk][:depth]

    def row(self, hit: Hit) -> dict[str, Any]:
        """Return a hit with its document, the chunk's position in it, and its text."""
        row = self.chunks.loc[hit.chunk].to_dict()
        return {**hit._asdict(), **row, "position": int(row["position"])}

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

    @functools.cached_property
    def _bm25(self) -> Any:
        with reading(self.folder / "bm25", "a BM25 index"):
            return bm25s.BM25.load(self.folder / "bm25", show_progress=False)

    def _lexical(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        terms = tokenizer(self.described["language"])(list(queries))
        return lexical_hits(self._bm25, terms, depth)

    def _load(self, number: int) -> tuple[SentenceTransformer, list[Tensor]]:
        name = self.models[number]
        if Source(name).fingerprint() != self.described["models"][number]["revision"]:
            advice = "remove it and run revela index again"
            raise RevelaError(f"{name} has changed since {self.folder} was made; {advice}")
        place = self.folder / "embeddings" / str(number)
        try:
            blocks = [load_file(path)["embeddings"] for path in sorted(place.glob("*.safetensors"))]
        except SafetensorError as error:
            raise RevelaError(f"{place}: {error}; run revela index again") from error
        return load_encoder(encoder_entry(name), PRECISION, devices()[0]), blocks


def dense_hits(queries_QD: Tensor, blocks: Iterable[Tensor], depth: int) -> list[list[Hit]]:
    """Return the chunks with the largest dot products for each query, best first."""
    scores, numbers = exact_search(queries_QD, blocks, depth, device=devices()[0])
    return [list(map(Hit, *best)) for best in zip(numbers.tolist(), scores.tolist(), strict=True)]


def lexical_hits(bm25: Any, terms: Any, depth: int) -> list[list[Hit]]:
    """Return the chunks that share a word with each query, which is given by its terms."""
    depth = min(depth, bm25.scores["num_docs"])
    best = bm25.retrieve(terms, k=depth, show_progress=False)
    found = zip(best.documents.tolist(), best.scores.tolist(), strict=True)
    return [[hit for hit in map(Hit, *hits) if hit.score > 0] for hits in found]


def encoder_entry(name: str) -> Any:
    """Return the settings of a retriever, by its folder or hub name."""
    settings = json.dumps({"kind": "encoder", "retriever": name})
    return parse_settings(EncoderModel, settings, "--model")


def without_spaces(name: str) -> str:
    """Return a name for a TREC run, whose fields are separated by spaces."""
    return re.sub(r"\s", lambda space: quote(space[0]), name)


def labels(models: Sequence[str]) -> list[str]:
    """Return labels of models: their folder's name if that is unambiguous."""
    parts = [Path(model).parts for model in models]
    names = [p[-2] if p[-1] in ("retriever", "model") and p[1:] else p[-1] for p in parts]
    return names if len(set(names)) == len(names) else list(models)


def read_description(folder: Path) -> dict[str, Any]:
    """Return the contents of `index.json`; raise a `RevelaError` if it is none, or another's."""
    path = folder / "index.json"
    if not path.exists():
        raise RevelaError(f"{folder}: no index, or an incomplete one; run 'revela index' first")
    described = read_json(path)
    if (version := described.get("version")) != VERSION:
        raise RevelaError(f"{path}: version {version}, expected {VERSION}: remove {folder}")
    return described
