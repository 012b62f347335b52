"""An index of texts: their chunks, BM25 over them, and embeddings of one or more retrievers.

    chunks.parquet      document id and title, position of the chunk in it, text
    bm25/               as saved by bm25s
    embeddings/0/ …     shards of the first retriever, of the next, …
    index.json          written last: the settings of the index

When it is rebuilt after an interruption or a change of the texts, every valid shard is kept. Search
is exact, as in evaluation.
"""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bm25s
import pandas as pd
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from revela.common.errors import RevelaError, reading
from revela.common.locks import locked
from revela.common.outputs import atomic_output, read_json, remove, write_json
from revela.common.versions import STAGE_VERSIONS
from revela.config.encoding import EncodingKeys
from revela.config.evaluation import EncoderModel, Language
from revela.config.local import text_files
from revela.config.names import ModelRef
from revela.config.text import AnyCorpus
from revela.evaluation.bm25 import guess_language, tokenizer
from revela.evaluation.embeddings import SHARD_SIZE, Shard, encode_corpus
from revela.evaluation.search import exact_search
from revela.retriever.encode import devices, encode, prompt_of
from revela.retriever.load import load_encoder, read_encoder
from revela.retriever.source import Source
from revela.retriever.tokenizer import appends_eos
from revela.search.fusion import DENSE_WEIGHT, Fusion, Hit, Ranking, fuse
from revela.text.chunking import chunk_corpus
from revela.text.rows import parquet_rows

VERSION = 1
PRECISION = "bfloat16"  # if the GPU supports it

_DEPTH = 100  # hits of each ranking that are fused
_SAMPLE = 1_000  # chunks that tell the language
_HITS = 1_000_000  # held at a time while documents are collected
_PLAIN = ("max_length", "language")
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

    Args:
        corpus: the corpus whose documents are cut into chunks.
        models: folders or hub names of retrievers; search uses the first one by default.
        folder: folder of the index.
        max_length: maximum number of tokens in a chunk; less for a retriever whose own is smaller.
        language: language of BM25's stemmer and stop words; by default that of the former index, or
            of the texts.
        workers: processes that split documents.

    Raises:
        RevelaError: the folder contains other files or a different index, or another process is
            indexing into it; a text or a model cannot be read; or the texts changed meanwhile.
    """
    if folder.exists():
        # Hidden files: temporary ones of a killed call, or a file manager's.
        other = {file.name for file in folder.glob("[!.]*")} - _OWN
        if other or not folder.is_dir():
            raise RevelaError(f"{folder}: exists but is not an index; give another --output")
    if corpus.source == "files" and folder.resolve().is_relative_to(Path(corpus.path).resolve()):
        raise RevelaError(f"{folder}: is in the folder of the texts; give another --output")
    with locked(folder, "revela index"):
        return _build(corpus, models, folder, max_length, language, workers)


def _build(
    corpus: AnyCorpus,
    models: Sequence[str],
    folder: Path,
    max_length: int,
    language: Language | None,
    workers: int,
) -> dict[str, Any]:
    models = [str(Path(one).resolve()) if Path(one).is_dir() else one for one in models]
    if twice := {model for model in models if models.count(model) > 1}:
        raise RevelaError(f"--model {min(twice)}: given twice")
    entries = _entries(models)
    encoders = [load_encoder(entry, PRECISION, devices()[0]) for entry in entries]
    described: dict[str, Any] = {
        "version": VERSION,
        "models": [{"name": model, "revision": Source(model).fingerprint()} for model in models],
        "max_length": max_length,
        "language": language,
        "corpus": corpus.model_dump(mode="json", exclude_defaults=True),
    }
    former = _described(folder) if (folder / "index.json").exists() else described
    described["language"] = language or former["language"]
    kind: Any = type(corpus)
    defaults = kind.model_construct().model_dump(mode="json", exclude_none=True)
    if difference := _difference(former, described, defaults):
        advice = "remove it or give another --output"
        raise RevelaError(f"{folder} was made with {difference}; {advice}")
    before = _state(corpus)
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
    for number, (entry, encoder) in enumerate(zip(entries, encoders, strict=True)):
        load: Any = functools.partial(load_encoder, entry, PRECISION)
        if len(devices()) == 1:
            load = {devices()[0]: encoder}.__getitem__
        facts = (
            f"{STAGE_VERSIONS['evaluate']} {Source.of(entry).fingerprint()}",
            entry.encoding.dump(),
            encoder[0].model.dtype,
            max_length,
        )
        made_by = "\n".join(map(str, facts))
        place = folder / "embeddings" / str(number)
        shards = encode_corpus(load, texts, max_length, place, made_by, devices())
        for stale in set(place.glob("[0-9]*.safetensors")) - {shard.path for shard in shards}:
            remove(stale)  # from a larger version of the corpus
    if _state(corpus) != before:
        raise RevelaError("the texts changed during indexing; run the command again")
    described |= {"documents": counts.documents, "chunks": counts.chunks}
    write_json(folder / "index.json", described)
    return described


class Index:
    """An index to search. Models and embeddings are loaded on first use."""

    def __init__(self, folder: Path) -> None:
        """Open an index.

        Raises:
            RevelaError: the folder is not an index, or it is incomplete or of another version.
        """
        self.folder = folder
        self.described = _described(folder)
        with reading(folder / "chunks.parquet", "a readable Parquet file"):
            self.chunks = pd.read_parquet(folder / "chunks.parquet")
        if len(self.chunks) != self.described["chunks"]:
            raise RevelaError(
                f"{folder}: {len(self.chunks)} chunks, expected {self.described['chunks']}; "
                "run revela index again"
            )
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
        found = [self._best(find, len(queries), deep, chunks) for find in finders]
        if ranking != "hybrid":
            return found[0]
        fused = []
        for dense, bm25 in zip(*found, strict=True):
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
            (found,) = self._lexical([self.chunks["text"][chunk]], depth + 1)
        else:
            blocks = self._model(model)[1]
            own = blocks[chunk // SHARD_SIZE][chunk % SHARD_SIZE].float()
            (found,) = self._hits(own[None], depth + 1, blocks)
        return [hit for hit in found if hit.chunk != chunk][:depth]

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
        found = bm25.retrieve(
            tokenize(list(queries)), k=min(depth, len(self.chunks)), show_progress=False
        )
        return [
            [Hit(int(n), float(s)) for n, s in zip(numbers, scores, strict=True) if s > 0]
            for numbers, scores in zip(*found, strict=True)
        ]

    def _load(self, number: int) -> tuple[SentenceTransformer, list[Tensor]]:
        name = self.models[number]
        encoder = load_encoder(_entries(self.models)[number], PRECISION, devices()[0])
        if Source(name).fingerprint() != self.described["models"][number]["revision"]:
            raise RevelaError(
                f"{name} has changed since {self.folder} was made; remove it and run revela index "
                "again"
            )
        blocks = []
        place = self.folder / "embeddings" / str(number)
        for path in sorted(place.glob("*.safetensors")):
            try:
                blocks.append(Shard(path, range(0)).load())
            except (SafetensorError, OSError) as error:
                raise RevelaError(
                    f"{path}: cannot be read ({error}); run revela index again"
                ) from error
        if (count := sum(map(len, blocks))) != len(self.chunks):
            raise RevelaError(
                f"{place}: {count} embeddings of {len(self.chunks)} chunks; run revela index again"
            )
        return encoder, blocks


def _entries(models: Sequence[str]) -> list[EncoderModel]:
    """Return the settings of models; one without encoding files uses that of the first."""
    entries = [EncoderModel(kind="encoder", retriever=ModelRef(model)) for model in models]
    first = read_encoder(Source.of(entries[0]), EncodingKeys())
    pooling: Any = next(one.pooling_mode for one in first if isinstance(one, Pooling))
    encoding = EncodingKeys(
        query_prefix=prompt_of(first, "query"),
        passage_prefix=prompt_of(first, "passage"),
        pooling={"lasttoken": "last"}.get(pooling, pooling),
        append_eos=appends_eos(first.tokenizer),
        normalize=first.similarity_fn_name == "cosine",
    )
    return [
        entry if Source.of(entry).modules else entry.model_copy(update={"encoding": encoding})
        for entry in entries
    ]


def _difference(former: dict[str, Any], now: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Return how the settings of an index differ from those that it was made with, if they do.

    `defaults` are those of its corpus.
    """
    was, are = ({one["name"]: one["revision"] for one in each["models"]} for each in (former, now))
    if list(was) != list(are):
        return f"models {', '.join(was)}, not {', '.join(are)}"
    if changed := [name for name in was if was[name] != are[name]]:
        return f"other weights of {changed[0]}"
    before, after = (each["corpus"] | {key: each[key] for key in _PLAIN} for each in (former, now))
    for key in after | before:
        if before.get(key) != after.get(key):
            made, asked = (each.get(key, defaults.get(key)) for each in (before, after))
            return f"{key} {made!r}, not {asked!r}"
    return ""


def without_spaces(name: str) -> str:
    """Return a name for a TREC run, whose fields are separated by spaces."""
    return re.sub(r"\s", lambda space: quote(space[0]), name)


def _labels(models: Sequence[str]) -> list[str]:
    """Return labels of models: their folder's name if that is unambiguous."""
    parts = [Path(model).parts for model in models]
    names = [one[-2] if one[-1] == "retriever" and one[1:] else one[-1] for one in parts]
    return names if len(set(names)) == len(names) else list(models)


def _texts(folder: Path) -> list[str]:
    """Return the texts of the chunks as evaluation encodes them, behind their titles."""
    rows = parquet_rows(folder / "chunks.parquet", ["title", "text"])
    return [f"{row['title']} {row['text']}".strip() for row in rows]


def _state(corpus: AnyCorpus) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of a corpus's local files, if it has any."""
    files = text_files(Path(corpus.path)) if corpus.source == "files" else []
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _described(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    if not path.exists():
        raise RevelaError(f"{folder}: no index, or an incomplete one; run 'revela index' first")
    described = read_json(path)
    if (version := described.get("version")) != VERSION:
        raise RevelaError(f"{path}: version {version}, expected {VERSION}: remove {folder}")
    return described
