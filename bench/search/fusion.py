"""The gain of a hybrid of BM25 and a retriever over BM25, by the retriever's weight.

Reads runs, nDCG@10 and judgements of tasks evaluated from local folders, such as the demo's. A
second table tests the hybrids, each with the weight that gains most on the other tasks.
"""

import argparse
import shlex
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytrec_eval

from bench.common import report
from revela.config.names import ModelName
from revela.config.report import Row, Table
from revela.evaluation.benchmarks import read_qrels, read_rows
from revela.evaluation.collections import collection_files
from revela.evaluation.fusion import fuse, read_run
from revela.report.significance import analyse

_WEIGHTS = (0.1, 0.2, 0.5, 1.0)  # times the retriever's scores, added to BM25's

Scores = dict[str, pd.Series]  # nDCG@10 × 100 of each query, by retriever (one a seed)


def main() -> None:
    """Fuse each retriever's runs with BM25's, and write two tables."""
    parser = argparse.ArgumentParser(prog="bench.search.fusion", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument(
        "--tasks", type=Path, nargs="+", help="folders of collections; the demo's by default"
    )
    models = ["demo-untouched", "demo-contriever", "demo-replug", "demo-revela"]
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--seeds", type=int, default=1, help="of each model; their mean is shown")
    given = parser.parse_args()
    folders = given.tasks or [given.results / "benchmarks/pydocs"]
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"{folder} does not exist: run `make demo` first, or give --tasks")
    tasks = [task for folder in folders for task in sorted(folder.iterdir()) if task.is_dir()]
    seeds = {
        model: [str(ModelName(model, seed or None)) for seed in range(given.seeds)]
        for model in given.models
    }
    rows, hybrids, alone = [], {}, {}
    for task in tasks:
        runs = given.results / "runs"
        alone[task], found = _measure(runs, task, [n for names in seeds.values() for n in names])
        for model, names in seeds.items():
            means = {
                way: sum(scores[name].mean() for name in names) / given.seeds
                for way, scores in found.items()
            }
            bm25 = alone[task].mean()
            gains = {way: f"{mean - bm25:+.1f}" for way, mean in means.items() if way != "alone"}
            first = {"retriever": model, "task": task.name, "BM25": f"{bm25:.1f}"}
            rows.append({**first, "alone": f"{means['alone']:.1f}", **gains})
        hybrids[task] = found
    command = shlex.join(["python", "-m", "bench.search.fusion", *sys.argv[1:]])
    title = "Hybrids (nDCG@10 × 100, and points gained)"
    if given.tasks:
        title += f" on {', '.join(task.name for task in tasks)}"
    report(title, command, rows)
    if len(tasks) > 1:  # a weight is chosen on other tasks
        tested = _tested(alone, hybrids, seeds)
        report(title.replace("and points gained", "tested"), command, tested)


def _measure(runs: Path, task: Path, names: list[str]) -> tuple[pd.Series, dict[str, Scores]]:
    """Return the scores of BM25, and those of retrievers alone and by each weight."""
    corpus, queries, judgements = collection_files(task)
    ids = [{row["id"] for row in read_rows(path)} for path in (queries, corpus)]
    qrels = read_qrels(judgements, *ids)

    def measured(run: dict[str, dict[str, float]]) -> pd.Series:
        scores = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
        found = {query: 100 * one["ndcg_cut_10"] for query, one in scores.items()}
        return pd.Series(found).reindex(list(qrels), fill_value=0.0)

    bm25 = read_run(runs / "bm25" / f"{task.name}.trec")
    found: dict[str, Scores] = defaultdict(dict)
    for name in names:
        dense = read_run(runs / name / f"{task.name}.trec")
        found["alone"][name] = measured(dense)

        for weight in _WEIGHTS:
            share = weight / (1 + weight)
            fused = {query: fuse(dense[query], bm25[query], share) for query in qrels}
            found[f"{weight} × dense"][name] = measured(fused)
    return measured(bm25), found


def _tested(
    alone: dict[Path, pd.Series],
    hybrids: dict[Path, dict[str, Scores]],
    seeds: dict[str, list[str]],
) -> list[dict[str, str]]:
    """Return each hybrid's scores, its interval and p against the best, by task and their mean."""
    ways = [f"{weight} × dense" for weight in _WEIGHTS]
    chosen: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:

        def write(name: str, task: Path, scores: pd.Series) -> None:
            path = Path(folder, name, f"{task.name}.queries.csv")
            path.parent.mkdir(exist_ok=True)
            lines = (scores / 100).rename("ndcg_at_10").rename_axis("query").reset_index()
            lines.insert(0, "subset", "")
            lines.to_csv(path, index=False)

        for task, bm25 in alone.items():
            write("bm25", task, bm25)
            others = [other for other in hybrids if other != task]
            for model, names in seeds.items():
                best = max(
                    ways,
                    key=lambda way: sum(hybrids[o][way][n].mean() for o in others for n in names),
                )
                chosen[model].append(best.split()[0])
                for name in names:
                    write(name, task, hybrids[task][best][name])
        table = Table(
            caption="Hybrids",
            columns={task.name: task.name for task in alone},
            rows=[
                Row(label="BM25", model="bm25"),
                *(Row(label=f"BM25 + {model}", model=names) for model, names in seeds.items()),
            ],
        )
        found = analyse(table, Path(folder)).set_index(["system", "column"])
    lines = []
    for row in table.rows:
        line = {"system": row.label, "weights": ", ".join(chosen.get(row.label[7:], ["–"]))}
        for column in [*(task.name for task in alone), table.mean]:
            one = found.loc[row.label, column]
            p = "best" if pd.isna(one["p"]) else f"p = {one['p']:.4f}"
            interval = f"{one['ci_low']:.1f} to {one['ci_high']:.1f}"
            line[column] = f"{one['score']:.1f} ({interval}; {p})"
        lines.append(line)
    return lines


if __name__ == "__main__":
    main()
