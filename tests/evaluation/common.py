"""Models, and rankings of a small collection."""

import math
from pathlib import Path

from revela.config.evaluation import Bm25Model, EncoderModel, FolderBenchmark
from revela.evaluation import measure as evaluation
from revela.evaluation.benchmarks import local_task


def model_of(backbone, **changes):
    return EncoderModel(kind="encoder", retriever=str(backbone), **changes)


SUITE = FolderBenchmark(
    source="folder", path="-", tasks=["tiny-task"], max_length=64, precision="float32"
)


def searcher_of(model, folder):
    return evaluation.load_searcher(model, "tiny", "r1", SUITE, folder)


def task_of(collection, split="test"):
    return local_task("tiny-task", collection, collection, split)


BM25 = Bm25Model(kind="bm25s")


def measured(model, folder, task):
    """Evaluate a model on a task, or on a collection."""
    task = task if hasattr(task, "metadata") else task_of(task)
    return evaluation.evaluate(searcher_of(model, folder), task)


def rows_of(run):
    return [line.split() for line in run.splitlines()]


def write_run(path: Path, run: dict[str, list[str]]) -> Path:
    """Write rankings of documents, best first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        for query, documents in run.items():
            for rank, document in enumerate(documents, start=1):
                stream.write(f"{query} Q0 {document} {rank} {10 - rank} x\n")
    return path


def bm25_scores(documents, query, k1, b):
    """Return Lucene's BM25 scores by plain loops, of documents and a query as lists of words."""
    mean_length = sum(map(len, documents.values())) / len(documents)
    scores = {}
    for name, words in documents.items():
        for word in query:
            holders = sum(word in other for other in documents.values())
            if count := words.count(word):
                idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
                norm = k1 * (1 - b + b * len(words) / mean_length)
                scores[name] = scores.get(name, 0) + idf * count / (count + norm)
    return scores


def ndcg(ranked, relevant, depth=10):
    """Return nDCG by plain loops, with the gains of trec_eval."""

    def discounted(gains):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:depth], start=1))

    found = discounted([relevant.get(document, 0) for document in ranked])
    return found / discounted(sorted(relevant.values(), reverse=True))


QRELS = {"q0": {"d2": 1}, "q1": {"d3": 2, "d0": 1}, "q2": {"d4": 1}}
