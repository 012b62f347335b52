"""`bench.search.fusion`: the hybrids of the study, against a plain computation."""

import math
import shlex

from bench.search import fusion
from revela.evaluation.benchmarks import write_collection
from tests.test_docs import FUSION, of

DOCUMENTS = ["a", "b", "c"]
BM25 = {"q0": [3.0, 1.9, 1.0], "q1": [1.0, 2.0, 3.0]}  # scores of the documents
DENSE = {"q0": [0.1, 0.9, 0.2], "q1": [0.7, 0.8, 0.9]}
RELEVANT = {"q0": "b", "q1": "c"}


def ndcg(scores: dict[str, float], relevant: str) -> float:
    rank = sorted(scores, key=lambda name: -scores[name]).index(relevant)
    return 100 / math.log2(rank + 2)


def scaled(scores: list[float]) -> list[float]:
    return [(one - min(scores)) / (max(scores) - min(scores)) for one in scores]


def test_the_command_of_the_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.common.RESULTS", tmp_path / "RESULTS.md")
    (line,) = of(FUSION)
    given = shlex.split(line)[3:]
    models = given[given.index("--models") + 1 : given.index("--seeds")]
    names = ["bm25", *models, *(f"{model}-seed{seed}" for model in models for seed in (1, 2))]
    for task in ("results/benchmarks/pydocs/x", "collections/y"):
        judged = [(query, document, 1) for query, document in RELEVANT.items()]
        texts = [(name, "", name) for name in DOCUMENTS]
        write_collection(tmp_path / task, texts, [(query, query) for query in BM25], judged)
        for name in names:
            run = tmp_path / "results/runs" / name / f"{task[-1]}.trec"
            run.parent.mkdir(parents=True, exist_ok=True)
            run.write_text(
                "".join(
                    f"{query} Q0 {document} 1 {score} {name}\n"
                    for query, scores in (BM25 if name == "bm25" else DENSE).items()
                    for document, score in zip(DOCUMENTS, scores, strict=True)
                )
            )
    monkeypatch.setattr("sys.argv", ["fusion", *given])
    fusion.main()
    means = {}
    for weight in (0.0, 0.1, 0.2, 0.5, 1.0):
        found = []
        for query, relevant in RELEVANT.items():
            both = zip(scaled(BM25[query]), scaled(DENSE[query]), strict=True)
            summed = [one + weight * other for one, other in both]
            found.append(ndcg(dict(zip(DOCUMENTS, summed, strict=True)), relevant))
        means[weight] = sum(found) / len(found)
    written = (tmp_path / "RESULTS.md").read_text()
    gains = [f"{means[weight] - means[0.0]:+.1f}" for weight in (0.1, 0.2, 0.5, 1.0)]
    assert f"| {models[0]} | x | {means[0.0]:.1f} | 100.0 | {' | '.join(gains)} |" in written
    best = max(means[weight] for weight in (0.1, 0.2, 0.5, 1.0))
    assert f"| BM25 + {models[0]} | 1.0, 1.0 | {best:.1f} (" in written
    assert line.partition("--")[0].strip() in written
