"""The gain of a hybrid of BM25 and a retriever over BM25, by fusion method.

Reads runs, nDCG@10 and judgements of tasks evaluated from a local folder, such as the demo's.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import pytrec_eval

from bench.common import report
from revela.config.local import collection_files
from revela.evaluation.benchmarks import read_qrels, read_rows
from revela.search.fusion import DENSE_WEIGHT, Fusion, Hit, fuse

_WEIGHTS = (0.1, DENSE_WEIGHT, 0.5, 1.0)


def main() -> None:
    """Fuse each retriever's runs with BM25's, and write a table."""
    parser = argparse.ArgumentParser(prog="bench.search.fusion", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--tasks", type=Path, help="folder of collections; the demo's by default")
    models = ["demo-untouched", "demo-contriever", "demo-replug", "demo-revela"]
    parser.add_argument("--models", nargs="+", default=models)
    given = parser.parse_args()
    folder = given.tasks or given.results / "benchmarks/pydocs"
    if not folder.is_dir():
        parser.error(f"{folder} does not exist: run `make demo` first, or give --tasks")
    tasks = sorted(folder.iterdir())
    rows = [_gains(given.results / "runs", model, task) for model in given.models for task in tasks]
    title = "Hybrids (nDCG@10 × 100, and points gained)"
    if given.tasks:
        title += f" on {', '.join(task.name for task in tasks)}"
    report(title, "python -m bench.search.fusion", rows)


def _gains(runs: Path, model: str, task: Path) -> dict[str, str]:
    corpus, queries, judgements = collection_files(task)
    ids = [{row["id"] for row in read_rows(path)} for path in (queries, corpus)]
    qrels = read_qrels(judgements, *ids)
    bm25, dense = (_run(runs / name / f"{task.name}.trec") for name in ("bm25", model))

    def measured(run: dict[str, dict[str, float]]) -> float:
        scores = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
        return 100 * sum(one["ndcg_cut_10"] for one in scores.values()) / len(qrels)

    def hybrid(fusion: Fusion, weight: float) -> float:
        return measured(
            {query: _fused(dense[query], bm25[query], fusion, weight) for query in qrels}
        )

    alone = measured(bm25)
    return {
        "retriever": model,
        "task": task.name,
        "BM25": f"{alone:.1f}",
        "alone": f"{measured(dense):.1f}",
        **{f"{one} × dense": f"{hybrid('weighted-sum', one) - alone:+.1f}" for one in _WEIGHTS},
        "reciprocal rank": f"{hybrid('reciprocal-rank', 0) - alone:+.1f}",
    }


def _run(path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, _ = line.split(" ")
        found[query][document] = float(score)
    return found


def _fused(
    dense: dict[str, float], bm25: dict[str, float], fusion: Fusion, weight: float
) -> dict[str, float]:
    """Return the scores of the documents of two rankings, fused as in an index."""
    names = list({**dense, **bm25})
    numbers = {name: number for number, name in enumerate(names)}
    hits = [[Hit(numbers[name], score) for name, score in one.items()] for one in (dense, bm25)]
    return {names[hit.chunk]: hit.score for hit in fuse(*hits, fusion, weight)}


if __name__ == "__main__":
    main()
