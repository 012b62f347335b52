"""Fuses BM25's ranking with a retriever's, and chooses how much each counts on judged queries."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from revela.common.errors import RevelaError, reading

Document = TypeVar("Document", str, int)
Run = dict[str, dict[str, float]]
"""Query → document → score."""
Judgements = Mapping[str, Mapping[str, int]]
"""Query → document → relevance."""

WEIGHTS = tuple(tenth / 10 for tenth in range(11))
"""The retriever's weights that are tried."""


def fuse(
    dense: Mapping[Document, float], bm25: Mapping[Document, float], weight: float
) -> dict[Document, float]:
    """Return the documents of a retriever's and BM25's ranking with fused scores, best first.

    The scores of each ranking are scaled to [0, 1]; the fused score is `weight` times the
    retriever's plus `1 - weight` times BM25's. A document that is not in a ranking scores 0 there.
    """
    fused: dict[Document, float] = {}
    for ranking, share in ((bm25, 1 - weight), (dense, weight)):
        low, high = min(ranking.values(), default=0), max(ranking.values(), default=0)
        for document, score in ranking.items():
            scaled = (score - low) / (high - low) if high > low else 1.0
            fused[document] = fused.get(document, 0.0) + share * scaled
    return dict(sorted(fused.items(), key=lambda item: (-item[1], item[0])))


def fuse_runs(dense: Run, bm25: Run, weight: float) -> Run:
    """Return the fused ranking of each query of a retriever's run; BM25's may lack some."""
    return {query: fuse(ranking, bm25.get(query, {}), weight) for query, ranking in dense.items()}


def choose(tuning: Iterable[tuple[Judgements, Run, Mapping[str, Run]]]) -> tuple[str, float]:
    """Return the retriever and its weight with the highest mean nDCG@10 over all judged queries.

    Each task gives its judgements, BM25's run and the run of each retriever. Of equal weights the
    smallest is returned.
    """
    import pytrec_eval

    totals: dict[tuple[str, float], float] = defaultdict(float)
    for relevant, bm25, retrievers in tuning:
        judge = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10"})
        for (name, dense), weight in itertools.product(retrievers.items(), WEIGHTS):
            scores = judge.evaluate(fuse_runs(dense, bm25, weight)).values()
            totals[name, weight] += sum(score["ndcg_cut_10"] for score in scores)
    return max(totals, key=totals.__getitem__)


class SavedSearch:
    """A run of a task as mteb's SearchProtocol."""

    def __init__(self, name: str, revision: str, run: Run) -> None:
        """Prepare a search by a model's name and revision."""
        from mteb.models.model_meta import ModelMeta

        self.run = run
        named = {"name": f"revela/{name}", "revision": revision}
        self.mteb_model_meta = ModelMeta.create_empty(named)

    def index(self, corpus: Any, **_: Any) -> None:
        """Remember the ids of a corpus."""
        self.ids = set(corpus["id"])

    def search(
        self, queries: Any, *, hf_split: str, hf_subset: str, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores; a document not in the corpus is an error."""
        found = {}
        for query in queries["id"]:
            name = query if query in self.run else f"{hf_split}/{hf_subset}/{query}"
            found[query] = self.run[name]
            if others := found[query].keys() - self.ids:
                where = f"document {min(others)!r} of query {name!r}"
                raise RevelaError(f"{where} is not in the task's corpus: a run of another one")
        return found


def read_run(path: Path) -> Run:
    """Return the run of a file, an error if it is not a TREC run."""
    run: Run = defaultdict(dict)
    with reading(path, "a TREC run"):
        for line in path.read_text(encoding="utf-8").splitlines():
            query, rest = line.split(" Q0 ", 1)
            document, _, score, _ = rest.rsplit(" ", 3)
            run[query][document] = float(score)
    return dict(run)


def check_queries(relevant: Judgements, path: Path, run: Run, may_lack: bool = False) -> None:
    """Check that a run is over a task's judged queries; BM25's may lack those that find nothing."""
    if others := run.keys() - relevant.keys():
        raise RevelaError(f"{path}: query {min(others)!r} is not a query of the task")
    if not may_lack and (missing := relevant.keys() - run.keys()):
        raise RevelaError(f"{path}: query {min(missing)!r} is missing")
