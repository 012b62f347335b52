"""Golden results of the stages for fixed inputs: results must not change without their version.

`python -m tests.workflow.test_versions STAGE …` records the current results of the named stages.
"""

import hashlib
import json
import lzma
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.pydocs import make
from revela.common.versions import STAGE_VERSIONS
from revela.config.encoding import Encoding
from revela.config.evaluation import (
    Bm25Model,
    EncoderModel,
    FolderBenchmark,
    PydocsBenchmark,
    TextsBenchmark,
)
from revela.config.report import Listing, Table
from revela.config.text import Batches, FilesCorpus, Pairs
from revela.config.training import Experiment
from revela.evaluation import commands as evaluation
from revela.evaluation import pydocs
from revela.evaluation.benchmarks import write_collection
from revela.report import commands as report
from revela.text import chunking
from revela.text import commands as text
from revela.training import commands as training
from tests.conftest import TEXTS

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden.json")
BACKBONE = str(ROOT / "data/backbones/1m")


def digest(made: Any) -> str:
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def write_rows(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def chunk(folder: Path) -> dict[str, str]:
    path = folder / "rows.jsonl"
    texts = [f"{TEXTS[n % 5]} So {n}.\n\nAn end." for n in range(20)]
    rows = [{"id": str(n), "title": f"T{n // 2}", "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"id": "id", "title": "title"}
    made = {}
    for name, changes in {
        "plain": {},
        "sampled": {"max_documents": 7, "seed": 1, "exclude": ["3"]},
        "joined": {"join_title": True},
    }.items():
        corpus = FilesCorpus(source="files", path=str(path), fields=fields, max_words=9, **changes)
        # Always the Punkt trained on the corpus, whether one is installed or not.
        with mock.patch.object(chunking, "pretrained_punkt", return_value=None):
            text.chunk(corpus, {}, folder / "out", workers=1)
        made[name] = digest(rows_of(folder / "out"))
    return made


def chunks(folder: Path) -> Path:
    rows = [
        {"document": str(n // 5), "title": f"T{n // 5}" * (n < 30), "position": n % 5}
        | {"text": f"{n} {TEXTS[n % 5]}"}
        for n in range(62)
    ]
    return write_rows(folder / "chunks", rows)


def batch(folder: Path) -> dict[str, str]:
    inputs = {"c": chunks(folder)}
    made = {}
    for name, changes in {
        "plain": {"corpora": ["c"], "batch_size": 8},
        "sampled": {"corpora": ["c"], "batch_size": 4, "num_batches": 5, "seed": 1},
        "runs": {"corpora": ["c"], "batch_size": 4, "run_length": 2},
        "mixed": {"sample_from": {"plain": 3}, "batch_size": 4},
    }.items():
        text.batch(Batches.model_validate(changes), inputs, folder / name)
        inputs[name] = folder / name
        made[name] = digest(rows_of(folder / name))
    return made


def pair(folder: Path) -> str:
    settings = Pairs(corpora=["c"], negatives=3, num_pairs=40, seed=1)
    text.pair(settings, {"c": chunks(folder)}, folder / "out")
    return digest(rows_of(folder / "out"))


def collection(folder: Path) -> dict[str, str]:
    library = folder / "library"
    library.mkdir()
    body = "".join(f"    line_{n} = value + {n}\n" for n in range(7))
    source = "".join(
        f'def function_{n}(value):\n    """Return number {n} of a few that are here."""\n{body}\n'
        for n in range(30)
    )
    (library / "module.py").write_text(source.replace("value", "other", 9))
    functions = folder / "functions.jsonl.xz"
    rows = "".join(json.dumps(row) + "\n" for row in make.functions(library))
    functions.write_bytes(lzma.compress(rows.encode()))
    made = {}
    for task in ("docstring-to-function", "function-to-docstring", "first-to-second-half"):
        settings = PydocsBenchmark(source="pydocs", tasks=[task], max_queries=5)
        with mock.patch.object(pydocs, "FUNCTIONS", functions):
            evaluation.collection(settings, task, {}, folder / task)
        made[task] = contents(folder / task)
    cut = TextsBenchmark(source="texts", corpus="c", tasks=["halves", "titles"], max_queries=9)
    for task in cut.tasks:
        evaluation.collection(cut, task, {"c": chunks(folder)}, folder / task)
        made[task] = contents(folder / task)
    return made


def contents(folder: Path, pattern: str = "*") -> str:
    return digest([file.read_text() for file in sorted(folder.glob(pattern))])


def evaluate(folder: Path) -> dict[str, Any]:
    """Return the best document and the measures of BM25, a tiny encoder, and both together."""
    task = folder / "mine/task"
    documents = [(f"d{n}", "", f"{TEXTS[n % 5]} Number {n}.") for n in range(12)]
    queries = [("q0", "mud of rivers"), ("q1", "a matrix number 4"), ("q2", "jobs")]
    judged = [("q0", "d2", 1), ("q1", "d4", 2), ("q1", "d9", 1), ("q2", "d3", 1)]
    write_collection(task, documents, queries, judged)
    place = {"path": str(folder / "mine"), "tasks": ["task"]}
    suite = FolderBenchmark(source="folder", precision="float32", **place)
    models = {"bm25s": Bm25Model(kind="bm25s")}
    for pooling in ("last", "mean"):
        how = {"encoding": Encoding(pooling=pooling), "times_bm25": pooling == "mean"}
        models[pooling] = EncoderModel(kind="encoder", retriever=BACKBONE, **how)
    made = {}
    for name, model in models.items():
        scores, run = folder / f"{name}.json", folder / f"{name}.trec"
        given = [suite], {"task": task}, scores, folder / "cache", run
        evaluation.evaluate(model, *given, name=name)
        made[name] = {
            f"{query} {document}": float(score)
            for query, _, document, rank, score, _ in map(str.split, run.open())
            if rank == "1"
        }
        measures = json.loads(scores.read_text())
        made[name] |= {key: measures[key] for key in ("ndcg_at_10", "recall_at_5")}
    return made


def train(folder: Path) -> dict[str, list[float]]:
    """Return the losses of two steps of each objective."""
    texts = [[f"{TEXTS[(n + k) % 5]} And {n * k}." for k in range(4)] for n in range(8)]
    rows = [
        {"source": "c", "texts": row, "documents": ["d"] * 4}
        | {"query": row[0], "positive": row[1], "negatives": row[2:]}
        for row in texts
    ]
    data = write_rows(folder / "batches-and-pairs", rows)
    made = {}
    for objective in (
        {"name": "revela", "temperature": 0.1},
        {"name": "replug", "retriever_temperature": 0.1, "language_model_temperature": 0.1},
        {"name": "contriever", "temperature": 0.1},
    ):
        name = objective["name"]
        contriever = name == "contriever"
        settings = {"objective": objective, "data": "data", "retriever": BACKBONE}
        settings |= {"language_model": None if contriever else BACKBONE, "max_length": 24}
        settings |= {"batches_per_step": 4, "batches_per_device": 2 if contriever else 1}
        settings |= {"warmup_steps": 1, "learning_rate": 1e-2, "precision": "float32"}
        settings["lora"] = {"rank": 4, "dropout": 0}  # its random numbers differ between processors
        with mock.patch("revela.training.trainer.check_folder"):
            training.train(Experiment(**settings), data, folder / name)
        made[name] = [json.loads(line)["loss"] for line in (folder / name / "log.jsonl").open()]
        assert len(made[name]) == 2
    return made


def table_of(step: Callable[..., Any], folder: Path) -> str:
    """Return what a step makes of the scores of three models, one of which is not printed."""
    scores = {"one": [0.5, 0.25, 0.75], "two": [0.4, 0.2, 0.9], "three": [1, 0, 0]}
    for model, values in scores.items():
        path = folder / "scores" / model / "task.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"task": "task", "ndcg_at_10": sum(values) / 3}))
        lines = [f",q{n},{value}\n" for n, value in enumerate(values)]
        path.with_suffix(".queries.csv").write_text("".join(["subset,query,ndcg_at_10\n", *lines]))
    printed = folder / "printed.csv"
    printed.write_text("task,One,Other\ntask,49.5,60.0\nMean,49.5,61.0\n")
    rows = [
        {"label": "One", "model": "one", "reported": "One"},
        {"label": "Two", "size": "2B", "group": "g", "model": ["two", "three"]},
        {"label": "Other", "reported": "Other", "shaded": True},
    ]
    settings = {"caption": "C & D", "columns": {"task": "task"}, "reported": str(printed)}
    step(Table.model_validate(settings | {"rows": rows}), folder / "scores", folder / "out.csv")
    return contents(folder, "out*.*")


def listing(folder: Path) -> dict[str, str]:
    (folder / "list.csv").write_text("Name,License,url\na,MIT,http://x\nb_c,GPL,http://y\n")
    chosen = {"columns": ["Name", "License"], "links": {"Name": "url"}, "group": "License"}
    settings = Listing(caption="Listed", file=str(folder / "list.csv"), **chosen)
    report.listing(settings, {}, folder / "out.csv")
    (folder / "printed.csv").write_text(f"Position,Printed\n1,{TEXTS[2]}\n2,“More” of it\n")
    beside = Listing(caption="Beside", file=str(folder / "printed.csv"), batches="b")
    rows = {"source": "c", "documents": ["d", "e"]}
    batches = [rows | {"texts": [text, f"{text} | " * 9]} for text in TEXTS]
    report.listing(beside, {"b": write_rows(folder / "b", batches)}, folder / "out_beside.csv")
    return {"plain": contents(folder, "out.*"), "beside": contents(folder, "out_beside.*")}


STAGES: dict[str, Callable[[Path], Any]] = {
    **{made.__name__: made for made in (chunk, batch, pair, collection, evaluate, train)},
    "table": partial(table_of, report.table),
    "compare": partial(table_of, report.compare),
    "listing": listing,
}


@pytest.mark.parametrize("stage", STAGES)
def test_results_change_with_their_version_only(stage, tmp_path):
    golden, version = json.loads(GOLDEN.read_text())[stage], STAGE_VERSIONS[stage]
    same = equal(STAGES[stage](tmp_path), golden["made"])
    assert same or version > golden["version"], (
        f"results changed: raise STAGE_VERSIONS[{stage!r}] in revela/common/versions.py"
    )
    assert (same, version) == (True, golden["version"]), (
        f"a new version: record its results by python -m tests.workflow.test_versions {stage}"
    )


def equal(made: Any, golden: Any) -> bool:
    """Compare numbers to the precision in which processors agree, everything else exactly."""
    if isinstance(golden, float):
        return made == pytest.approx(golden, rel=1e-4)
    if isinstance(golden, dict):
        return made.keys() == golden.keys() and all(equal(made[k], golden[k]) for k in golden)
    if isinstance(golden, list):
        return made == pytest.approx(golden, rel=1e-4)
    return made == golden


def test_every_rule_that_makes_something_has_a_version():
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        for rule in re.split(r"^ *rule\b.*:$", path.read_text(), flags=re.MULTILINE)[1:]:
            made = re.search(r"^ +output:", rule, re.MULTILINE)
            versions = re.findall(r'version=.*?(?:STAGE_VERSIONS\[|version\()\s*"(\w+)"', rule)
            assert len(versions) == bool(made), rule
            assert set(versions) <= set(STAGE_VERSIONS)


if __name__ == "__main__":
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for name in sys.argv[1:] or STAGES:
        with tempfile.TemporaryDirectory() as place:
            recorded[name] = {"version": STAGE_VERSIONS[name], "made": STAGES[name](Path(place))}
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")
