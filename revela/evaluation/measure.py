"""Evaluation: a model on a task along mteb's own path; scores, ranked lists, each query's measure.

mteb loads the task, calls the model's `index` and `search`, and computes the measures.
"""

import csv
import functools
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.hub import explain
from revela.config.steps import (
    AnyRetriever,
    ApiModel,
    Bm25Model,
    EncoderModel,
    LuceneModel,
    MtebBenchmark,
    RetrievalBenchmark,
)
from revela.encoder import Encoder, devices, load_encoder, native_dtype
from revela.evaluation.bm25 import Bm25s
from revela.evaluation.embeddings import Passages, Shard, encode_corpus
from revela.evaluation.lucene import LuceneSearch
from revela.evaluation.search import exact_search

_RUN_DEPTH = 100  # documents of a query that a saved run keeps
_BM25_DEPTH = 1_000  # documents of a query whose BM25 score is multiplied
_NO_PROMPT = "Retrieve text based on user query."  # mteb's, for a task without a prompt


class Retriever:
    """An encoder as mteb searches with it: passages into shards, then exact search."""

    def __init__(
        self, model: EncoderModel, name: str, revision: str, suite: RetrievalBenchmark, folder: Path
    ) -> None:
        from mteb.models.model_meta import ModelMeta

        self.model = model
        self.suite = suite
        self.folder = folder
        self.revision = revision
        self.max_length = min(suite.max_length, model.max_length or suite.max_length)
        self.bm25 = Bm25s() if model.times_bm25 else None
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": f"revela/{name}", "revision": revision}
        )

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder on the first device."""
        return load_encoder(self.model, self.suite.precision, devices()[0])

    def index(self, corpus: Any, *, hf_split: str, hf_subset: str, **rest: Any) -> None:
        """Encode a corpus into shards, or take those that an interrupted call left."""
        self.ids: list[str] = list(corpus["id"])
        made_by = [self.revision, self.model.dump(), str(native_dtype(self.suite.precision))]
        load = functools.partial(load_encoder, self.model, self.suite.precision)
        self.shards: list[Shard] = encode_corpus(
            load if len(devices()) > 1 else lambda _: self.encoder,
            Passages(corpus),
            self.max_length,
            self.folder / f"{hf_split}-{hf_subset}",
            "\n".join(made_by),
            devices(),
        )
        if self.bm25:
            self.bm25.index(corpus, hf_split=hf_split, hf_subset=hf_subset, **rest)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: dict[str, list[str]] | None = None,
        **rest: Any,
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores, only those of `top_ranked` where it is given.

        Raises:
            RevelaError: a query is not a text.
        """
        names, texts = list(queries["id"]), list(queries["text"])
        if not all(isinstance(text, str) for text in texts):
            raise RevelaError(f"task {task_metadata.name}: its queries are not plain texts")
        lexical: dict[str, dict[str, float]] = {}
        if self.bm25:
            wanted = {"task_metadata": task_metadata, "top_ranked": top_ranked, **rest}
            lexical = self.bm25.search(queries, top_k=_BM25_DEPTH, **wanted)
            top_ranked = {name: list(found) for name, found in lexical.items()}
        encoding = _encoding_for(self.model.encoding, task_metadata, self.suite)
        embeddings = Encoder(self.encoder.model, self.encoder.tokenizer, encoding).encode(
            texts, "query", self.max_length
        )
        scores, numbers = exact_search(
            embeddings,
            (shard.load() for shard in self.shards),
            top_k,
            self._allowed(names, top_ranked) if top_ranked is not None else None,
            devices()[0],
        )
        return {
            name: {
                self.ids[number]: score * lexical[name][self.ids[number]] if self.bm25 else score
                for score, number in zip(best, where, strict=True)
                if score > -np.inf
            }
            for name, best, where in zip(names, scores.tolist(), numbers.tolist(), strict=True)
        }

    def _allowed(
        self, queries: list[str], top_ranked: dict[str, list[str]]
    ) -> list[np.ndarray | None]:
        place = {document: number for number, document in enumerate(self.ids)}
        return [
            None
            if len(documents) == len(place)
            else np.sort(np.fromiter((place[d] for d in documents), np.int64, len(documents)))
            for documents in (top_ranked.get(query, self.ids) for query in queries)
        ]


def _encoding_for(encoding: Any, task_metadata: Any, suite: RetrievalBenchmark) -> Any:
    """Return a model's encoding with the task's instruction in its query prefix."""
    prompt = task_metadata.prompt
    prompt = prompt.get("query") if isinstance(prompt, dict) else prompt
    own = suite.instructions.get(task_metadata.name) if isinstance(suite, MtebBenchmark) else None
    instruction = (own or prompt or _NO_PROMPT).strip()
    prefix = encoding.query_prefix.replace("{instruction}", instruction)
    return encoding.model_copy(update={"query_prefix": prefix})


def load_searcher(
    model: AnyRetriever, name: str, revision: str, suite: RetrievalBenchmark, folder: Path
) -> Any:
    """Return a model as mteb searches with it.

    Args:
        model: which one.
        name: what it is called in runs.
        revision: of its weights.
        suite: the benchmark: how long texts may be, in what precision they are encoded.
        folder: for what it leaves on disk.

    Raises:
        RevelaError: the key of an API is not in the environment.
    """
    if isinstance(model, Bm25Model):
        return Bm25s()
    if isinstance(model, ApiModel):
        import mteb
        from mteb.models import SearchEncoderWrapper

        if not os.environ.get(model.key):
            raise RevelaError(f"model {name!r} needs the environment variable {model.key}")
        return SearchEncoderWrapper(mteb.get_model(model.name))
    if isinstance(model, LuceneModel):
        return LuceneSearch(model, name, folder, torch.get_num_threads())
    return Retriever(model, name, revision, suite, folder)


# ---------------------------------------------------------------------------- measuring


class Recorded:
    """A searcher whose ranked lists are kept, the best documents of each query."""

    def __init__(self, searcher: Any, without_itself: bool) -> None:
        self.searcher = searcher
        self.without_itself = without_itself
        self.mteb_model_meta = searcher.mteb_model_meta
        self.lists: dict[tuple[str, str], dict[str, dict[str, float]]] = {}

    def index(self, corpus: Any, **rest: Any) -> None:
        """Pass a corpus on."""
        self.searcher.index(corpus, **rest)

    def search(self, queries: Any, *, hf_split: str, hf_subset: str, **rest: Any) -> Any:
        """Return each query's documents and scores."""
        found = self.searcher.search(queries, hf_split=hf_split, hf_subset=hf_subset, **rest)
        self.lists[hf_split, hf_subset] = {
            query: self._best(query, documents) for query, documents in found.items()
        }
        return found

    def _best(self, query: str, documents: dict[str, float]) -> dict[str, float]:
        ranked = sorted(documents.items(), key=lambda item: (item[1], item[0]), reverse=True)
        kept = [item for item in ranked if not (self.without_itself and item[0] == query)]
        return dict(kept[:_RUN_DEPTH])


@dataclass(frozen=True)
class Measured:
    """What an evaluation found.

    Attributes:
        scores: every measure, of the task and of each subset if it has several.
        run: lines of a TREC run; a query of several subsets is called `split/subset/query`.
        queries: CSV of each query's nDCG@10: subset, query, ndcg_at_10.
        unjudged: queries without a relevant document, which do not count.
    """

    scores: dict[str, Any]
    run: str
    queries: str
    unjudged: int


def evaluate(searcher: Any, task: Any) -> Measured:
    """Evaluate a searcher on a task with mteb.

    Raises:
        RevelaError: the task's data cannot be had or is not what mteb expects, or no query of it
            has a relevant document.
    """
    import mteb

    try:
        task.load_data()
        task.convert_v1_dataset_format_to_v2(num_proc=None)
    except RevelaError:
        raise
    except Exception as error:
        raise RevelaError(explain("data set", task.metadata.dataset["path"], error)) from error
    parts = [(split, subset) for subset, splits in task.dataset.items() for split in splits]
    unjudged = 0
    for split, subset in parts:
        data = task.dataset[subset][split]
        judged = sum(bool(documents) for documents in data["relevant_docs"].values())
        if not judged:
            raise RevelaError(f"task {task.metadata.name}: no query of {split}/{subset} is judged")
        unjudged += len(data["queries"]) - judged
    recorded = Recorded(searcher, task.ignore_identical_ids)
    result = mteb.evaluate(recorded, task, cache=None, show_progress_bar=False)
    (task_result,) = result.task_results
    subsets = {
        f"{split}/{entry['hf_subset']}": {
            key: value
            for key, value in entry.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for split, entries in task_result.scores.items()
        for entry in entries
    }
    measures = set.intersection(*(set(scores) for scores in subsets.values()))
    means = {
        measure: sum(scores[measure] for scores in subsets.values()) / len(subsets)
        for measure in sorted(measures)
    }
    scores = {"task": task_result.task_name, **means}
    if len(subsets) > 1:
        scores["subsets"] = subsets
    relevant = {part: task.dataset[part[1]][part[0]]["relevant_docs"] for part in recorded.lists}
    return Measured(
        scores,
        _run_lines(recorded.lists, searcher.mteb_model_meta.name),
        _query_lines(recorded.lists, relevant),
        unjudged,
    )


def _run_lines(lists: dict[tuple[str, str], dict[str, dict[str, float]]], tag: str) -> str:
    """Return TREC lines: query, Q0, document, rank, score, tag; best first."""
    return "".join(
        f"{f'{split}/{subset}/' if len(lists) > 1 else ''}{query} Q0 {document} {rank} "
        f"{score:.9g} {tag}\n"
        for (split, subset), queries in lists.items()
        for query, documents in queries.items()
        for rank, (document, score) in enumerate(documents.items(), start=1)
    )


def _query_lines(lists: dict[tuple[str, str], Any], relevant: dict[tuple[str, str], Any]) -> str:
    """Return a CSV of each query's nDCG@10, in the order of the queries."""
    import ir_measures

    measure = ir_measures.nDCG @ 10
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["subset", "query", "ndcg_at_10"])
    for part, queries in lists.items():
        subset = "/".join(part) if len(lists) > 1 else ""
        values = {
            metric.query_id: metric.value
            for metric in ir_measures.iter_calc([measure], relevant[part], queries)
        }
        lines.writerows([subset, query, f"{values[query]:.6g}"] for query in queries)
    return text.getvalue()


def weights_of(model: AnyRetriever) -> dict[str, str | None]:
    """Return the folders and hub names of a model's weights, each with the revision asked for."""
    if not isinstance(model, EncoderModel):
        return {}
    if model.adapter:
        return {model.retriever: None, model.adapter: model.revision}
    return {model.retriever: model.revision}


def revision_of(model: AnyRetriever) -> str:
    """Return what tells a model's weights from others': hashes of folders, a hub's revisions."""
    return "-".join(
        outputs.sha256(Path(name))[:12] if Path(name).is_dir() else (revision or "main")
        for name, revision in weights_of(model).items()
    )
