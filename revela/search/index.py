"""An index of texts: their chunks, BM25 over them, and embeddings of one or more retrievers.

    chunks.parquet      document id and title, position of the chunk in it, text
    bm25/               as saved by bm25s
    embeddings/0/ …     shards of the first retriever, of the next, …
    index.json          written last: the settings of the index

When it is rebuilt after an interruption or a change of the texts, every valid shard is kept. Search
is exact, as in evaluation.
"""

import functools
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import pandas as pd
import Stemmer
from safetensors import SafetensorError
from torch import Tensor

from revela.common.errors import RevelaError, reading
from revela.common.hub import commit, read_model_json
from revela.common.locks import locked
from revela.common.outputs import atomic_output, read_json, remove, write_json
from revela.common.versions import STAGE_VERSIONS
from revela.config.encoding import EncodingKeys
from revela.config.evaluation import EncoderModel
from revela.config.local import fingerprint, text_files
from revela.config.names import ModelRef
from revela.config.text import AnyCorpus
from revela.encoder import Encoder, devices, load_encoder, load_encoding
from revela.evaluation.embeddings import SHARD_SIZE, Shard, encode_corpus
from revela.evaluation.search import exact_search
from revela.search.fusion import DENSE_WEIGHT, Fusion, Hit, Ranking, fuse
from revela.text.chunking import chunk_corpus
from revela.text.rows import parquet_rows
from revela.text.words import term_pattern

VERSION = 1
PRECISION = "bfloat16"  # if the GPU supports it

_DEPTH = 100  # chunks of each ranking that are fused
_PLAIN = ("max_length", "language")
_OWN = {"chunks.parquet", "bm25", "embeddings", "index.json"}


def build(
    corpus: AnyCorpus,
    models: Sequence[str],
    folder: Path,
    max_length: int,
    language: str,
    workers: int,
) -> dict[str, Any]:
    """Index a corpus, or update its index; return the contents of `index.json`.

    Args:
        corpus: the corpus whose documents are cut into chunks.
        models: folders or hub names of retrievers; search uses the first one by default.
        folder: folder of the index.
        max_length: maximum number of tokens in a chunk; less for a retriever whose own is smaller.
        language: language of BM25's stemmer and stop words, as Snowball names it.
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
    language: str,
    workers: int,
) -> dict[str, Any]:
    models = [str(Path(one).resolve()) if Path(one).is_dir() else one for one in models]
    if twice := {model for model in models if models.count(model) > 1}:
        raise RevelaError(f"--model {min(twice)}: given twice")
    tokenize = _tokenizer(language)
    entries = _entries(models)
    encoders = [load_encoder(entry, PRECISION, devices()[0]) for entry in entries]
    described: dict[str, Any] = {
        "version": VERSION,
        "models": [{"name": model, "revision": _revision(model)} for model in models],
        "max_length": max_length,
        "language": language,
        "corpus": corpus.model_dump(mode="json", exclude_defaults=True),
    }
    former = _described(folder) if (folder / "index.json").exists() else described
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
    bm25 = bm25s.BM25()
    try:
        bm25.index(tokenize(texts), show_progress=False)
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
            f"{STAGE_VERSIONS['evaluate']} {_revision(entry.retriever)}",
            encoder.encoding.dump(),
            encoder.model.dtype,
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
    ) -> list[list[Hit]]:
        """Return the best chunks of each query, best first.

        BM25 finds only chunks that share a word with the query. A hybrid fuses the top hundred of
        both rankings, or the top `depth` if that is larger.

        Raises:
            RevelaError: a retriever is missing or has changed, or the index is damaged.
        """
        if ranking == "bm25":
            return self._lexical(queries, depth)
        if ranking == "dense":
            return self._dense(queries, depth, model)
        deep = max(depth, _DEPTH)
        both = zip(self._dense(queries, deep, model), self._lexical(queries, deep), strict=True)
        return [fuse(dense, bm25, fusion, dense_weight)[:depth] for dense, bm25 in both]

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

    def _dense(self, queries: Sequence[str], depth: int, model: int) -> list[list[Hit]]:
        encoder, blocks = self._model(model)
        embeddings = encoder.encode(queries, "query", self.described["max_length"])
        return self._hits(embeddings, depth, blocks)

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
            return bm25s.BM25.load(folder, show_progress=False), _tokenizer(
                self.described["language"]
            )

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

    def _load(self, number: int) -> tuple[Encoder, list[Tensor]]:
        name = self.models[number]
        encoder = load_encoder(_entries(self.models)[number], PRECISION, devices()[0])
        if _revision(name) != self.described["models"][number]["revision"]:
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
    encoding = EncodingKeys(**load_encoding(entries[0])[1].model_dump())
    return [
        entry
        if read_model_json(entry.retriever, "modules.json")
        else entry.model_copy(update={"encoding": encoding})
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


def _revision(model: str) -> str:
    """Return a hash of a model's folder, or the commit of a hub model."""
    return fingerprint(Path(model)) if Path(model).is_dir() else commit(model, None) or "main"


def _labels(models: Sequence[str]) -> list[str]:
    """Return labels of models: their folder's name if that is unambiguous."""
    parts = [Path(model).parts for model in models]
    names = [one[-2] if one[-1] == "retriever" and one[1:] else one[-1] for one in parts]
    return names if len(set(names)) == len(names) else list(models)


def _tokenizer(language: str) -> Callable[[list[str]], Any]:
    """Return BM25's tokenizer for a language, as Snowball names it."""
    try:
        stemmer = Stemmer.Stemmer(language)
    except KeyError as error:
        allowed = ", ".join(Stemmer.algorithms())
        raise RevelaError(f"--language {language!r}: no stemmer; allowed: {allowed}") from error
    try:
        bm25s.tokenize("", stopwords=language, show_progress=False)
        words: Any = language
    except ValueError:
        words = []  # bm25s has stop words for some languages only
    options = {"stopwords": words, "stemmer": stemmer, "show_progress": False}

    def tokenize(texts: list[str]) -> Any:
        # macOS and PDF files have letters and accents apart, a keyboard has them in one.
        texts = [unicodedata.normalize("NFC", text) for text in texts]
        return bm25s.tokenize(texts, token_pattern=term_pattern(texts), **options)

    return tokenize


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
