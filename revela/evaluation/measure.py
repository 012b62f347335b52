"""Evaluation of a retriever on a task by mteb: scores, ranked lists, nDCG@10 by query.

mteb loads the task, calls the model's `index` and `search`, and computes the measures.
"""

import heapq
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from revela.common.errors import RevelaError
from revela.common.hub import explained
from revela.common.outputs import atomic_output, write_text
from revela.config.evaluation import AnyRetriever, RetrievalBenchmark

_RUN_DEPTH = 100  # documents per query in a saved run


def load_searcher(
    model: AnyRetriever,
    name: str,
    revision: str,
    suite: RetrievalBenchmark,
    folder: Path,
    similar: Sequence[Path] = (),
) -> Any:
    """Return a model as a searcher for mteb; for the arguments see `DenseSearch`."""
    # A system's modules are imported only for it: those of an encoder take seconds.
    if model.kind == "bm25s":
        from revela.evaluation.bm25 import Bm25s

        return Bm25s(model.language)
    if model.kind == "api":
        import mteb
        from mteb.models import SearchEncoderWrapper

        if not os.environ.get(model.key):
            raise RevelaError(f"model {name!r} needs the environment variable {model.key}")
        try:
            return SearchEncoderWrapper(mteb.get_model(model.name))
        except ImportError as error:
            raise RevelaError(f"model {name!r}: {str(error).splitlines()[0]}") from error
    if model.kind == "lucene":
        from revela.evaluation.lucene import LuceneSearch

        return LuceneSearch(model, name, folder, torch.get_num_threads())
    from revela.evaluation.search import DenseSearch

    return DenseSearch(model, name, revision, suite, folder, similar)


def judgements(task: Any) -> dict[str, dict[str, int]]:
    """Return query → document → relevance of the judged queries, which are named as in a run."""
    parts = _parts(task)
    return {
        f"{subset}/{query}" if len(parts) > 1 else query: dict(judged)
        for subset, data in parts.items()
        for query in data["queries"]["id"]
        if (judged := data["relevant_docs"].get(query))
    }


def _parts(task: Any) -> dict[str, Any]:
    """Return the data of each `split/subset` of a task."""
    with explained("data set", task.metadata.dataset["path"]):
        task.load_data()
        task.convert_v1_dataset_format_to_v2(num_proc=None)
    return {
        f"{split}/{subset}": data
        for subset, splits in task.dataset.items()
        for split, data in splits.items()
    }


@dataclass(frozen=True)
class Measured:
    """The results of an evaluation."""

    scores: dict[str, Any]  # every measure, of the task and of each subset if it has several
    run: str  # lines of a TREC run; with several subsets a query is named `split/subset/query`
    queries: str  # CSV of each query's nDCG@10: subset, query, ndcg_at_10
    unjudged: int  # number of queries without judgements, which are excluded
    result: Any  # mteb's result for the task
    model: Any  # mteb's description of the model

    @property
    def summary(self) -> str:
        """The main score, and the number of excluded queries if there are any."""
        excluded = f"; queries without judgements, excluded: {self.unjudged}"
        return f"nDCG@10 {100 * self.scores['ndcg_at_10']:.1f}{excluded * bool(self.unjudged)}"

    def write(self, run: Path | None, queries: Path | None, mteb: Path | None) -> None:
        """Write a TREC run, a CSV of queries, a folder of results in mteb's format."""
        from mteb import ResultCache

        for path, text in ((run, self.run), (queries, self.queries)):
            if path:
                write_text(path, text)
        if mteb:
            with atomic_output(mteb) as temporary:
                ResultCache(temporary).save_to_cache(self.result, self.model)


def evaluate(searcher: Any, task: Any) -> Measured:
    """Evaluate a searcher on a task with mteb.

    Raises:
        RevelaError: the task's data cannot be loaded or is not what mteb expects.
    """
    import mteb

    parts = _parts(task)
    unjudged = sum(len(data["queries"]["id"]) for data in parts.values()) - len(judgements(task))
    run, queries = [], []
    tag = searcher.mteb_model_meta.name
    specific_scores = task.task_specific_scores

    # mteb calls it once per subset, with the measures and documents of all queries.
    def record(scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str) -> Any:
        subset = f"{hf_split}/{hf_subset}" if len(parts) > 1 else ""
        for query, documents in results.items():
            queries.append((subset, query, scores[query]["ndcg_cut_10"]))
            # Best first, equal scores in the order of trec_eval.
            best = heapq.nlargest(_RUN_DEPTH, documents.items(), key=lambda item: item[::-1])
            name = f"{subset}/{query}" if subset else query
            for rank, (document, score) in enumerate(best, start=1):
                run.append(f"{name} Q0 {document} {rank} {score:.9g} {tag}\n")
        return specific_scores(scores, qrels, results, hf_split=hf_split, hf_subset=hf_subset)

    task.task_specific_scores = record
    (result,) = mteb.evaluate(searcher, task, cache=None, show_progress_bar=False).task_results
    subsets = {
        f"{split}/{entry['hf_subset']}": {
            key: value
            for key, value in entry.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for split, entries in result.scores.items()
        for entry in entries
    }
    means = pd.DataFrame(subsets).dropna().mean(axis=1).sort_index()
    scores: dict[str, Any] = {"task": result.task_name, **means}
    if len(subsets) > 1:
        scores["subsets"] = subsets
    table = pd.DataFrame(queries, columns=["subset", "query", "ndcg_at_10"])
    listed = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return Measured(scores, "".join(run), listed, unjudged, result, searcher.mteb_model_meta)
