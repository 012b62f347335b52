"""`revela collection`, `evaluate`, `evaluate-lm`."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from revela.common import outputs
from revela.common.errors import RevelaError, check_name
from revela.common.files import digest
from revela.common.locks import locked
from revela.common.outputs import atomic_output, check_ours, read_json, write_json
from revela.common.versions import STAGE_VERSIONS
from revela.config.evaluation import (
    AnyRetriever,
    HybridModel,
    IrDatasetsBenchmark,
    LanguageModel,
    LmEvalBenchmark,
    MadeBenchmark,
    PydocsBenchmark,
    RetrievalBenchmark,
)
from revela.evaluation.benchmarks import data_commits, load_task
from revela.evaluation.collections import collection_files
from revela.step import Made, Output, command, step

app = typer.Typer()

Scores = Annotated[Path, typer.Option("--scores", help="JSON file to write.")]
_CACHE = "Folder for embeddings and BM25 indexes meanwhile, and for finished results."
Cache = Annotated[Path, typer.Option(help=_CACHE)]
Name = Annotated[str, typer.Option(help="Name of the model in the output.")]
Run = Annotated[Path | None, typer.Option(help="TREC run to write.")]
Queries = Annotated[Path | None, typer.Option(help="CSV to write: nDCG@10 by query.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of a local task's collection.")]
Mteb = Annotated[Path | None, typer.Option(help="Folder for results in mteb's format.")]


@step(app)
def collection(settings: MadeBenchmark, task: str, inputs: dict[str, Path], output: Output) -> Made:
    """Write a task in BEIR layout: from a corpus, from Python's library, or of ir_datasets."""
    from revela.evaluation import irdatasets, pydocs, texts

    check_name("--settings", "task", task, settings.tasks)
    if isinstance(settings, PydocsBenchmark):
        counts = pydocs.write_task(settings, task, output)
    elif isinstance(settings, IrDatasetsBenchmark):
        counts = irdatasets.write_task(settings, task, output)
    else:
        counts = texts.write_task(settings, task, inputs[settings.corpus], output)
    summary = f"{task}: {counts['queries']} queries, {counts['documents']} documents"
    return Made(summary, {"task": task, **counts})


@command(app)
def evaluate(
    model: AnyRetriever,
    benchmark: list[RetrievalBenchmark],
    inputs: dict[str, Path],
    scores: Scores,
    cache: Cache,
    run: Run = None,
    queries: Queries = None,
    mteb: Mteb = None,
    name: Name = "model",
) -> None:
    """Evaluate a retriever on all tasks of one or several benchmarks.

    The folder of a local collection is the input TASK. `{task}` in the path of an output stands for
    the task. The cache keeps the results of a task, for as long as nothing that they depend on
    changes.
    """
    from revela.retriever.source import Source

    source = Source.of(model) if model.kind == "encoder" else None
    revision = source.fingerprint() if source else ""
    tasks = [(task, suite) for suite in benchmark for task in suite.tasks]
    if len(tasks) > 1 and "{task}" not in str(scores):
        raise RevelaError(f"--scores {scores}: must contain {{task}} for {len(tasks)} tasks")
    given = {"scores.json": scores, "run.trec": run, "queries.csv": queries, "mteb": mteb}
    given["manifest.json"] = scores.parent / f"{scores.stem}.manifest.json"
    started = outputs.STARTED
    with contextlib.ExitStack() as stack:
        works: list[Path] = []  # their embeddings are there until the end, for common passages
        for task, suite in tasks:
            made = {k: Path(str(path).replace("{task}", task)) for k, path in given.items() if path}
            check_ours(*made.values())
            work, folder = stack.enter_context(_working(cache, name, task)), inputs.get(task)
            files = _files(suite, folder)
            used = [STAGE_VERSIONS["evaluate"], revision, model.dump(), suite.dump(), digest(files)]
            key = hashlib.sha256(json.dumps(used).encode()).hexdigest()[:12]
            finished = cache / "finished" / work.name / key
            if finished.exists():
                print(f"{name} on {task}: evaluated before; remove {finished} to do so again")
            else:
                from revela.evaluation import measure

                loaded = load_task(suite, task, folder, work)
                searcher = measure.load_searcher(model, name, revision, suite, work, works)
                measured = measure.evaluate(searcher, loaded)
                settings = {"model": model, "benchmark": suite}
                record = outputs.manifest(
                    made["scores.json"],
                    {key: value.model_dump(mode="json") for key, value in settings.items()},
                    [*(source.folders() if source else []), *files],
                    started,
                    stage_version=STAGE_VERSIONS["evaluate"],
                    task=task,
                    revision=revision,
                    commits=(source.commits() if source else {}) | data_commits(suite, loaded),
                    queries_without_judgement=measured.unjudged,
                )
                for other in finished.parent.glob("[!.]*"):
                    outputs.remove(other)
                with atomic_output(finished) as place:
                    measured.write(place / "run.trec", place / "queries.csv", place / "mteb")
                    write_json(place / "scores.json", measured.scores)
                    write_json(place / "manifest.json", record)
                print(f"{name} on {task}: {measured.summary}", flush=True)
            for kind, path in made.items():
                _link(finished / kind, path)
            works.append(work)
            started = time.time()  # of the next one


@step(app)
def judgements(
    task: str, benchmark: RetrievalBenchmark, output: Output, cache: Cache, folder: Folder = None
) -> Made:
    """Write a task's judgements, query → document → relevance, its queries named as in runs."""
    from revela.evaluation import measure

    with _working(cache, "judgements", task) as work:
        loaded = load_task(benchmark, task, folder, work)
        judged = measure.judgements(loaded)
    write_json(output, judged)
    commits = data_commits(benchmark, loaded)
    facts = {"task": task, "queries": len(judged), "commits": commits}
    return Made(f"{task}: {len(judged)} judged queries", facts, _files(benchmark, folder))


@step(app)
def fuse(
    task: str,
    model: HybridModel,
    benchmark: RetrievalBenchmark,
    inputs: dict[str, Path],
    output: Scores,
    cache: Cache,
    run: Run = None,
    queries: Queries = None,
    folder: Folder = None,
    mteb: Mteb = None,
    name: Name = "model",
) -> Made:
    """Evaluate BM25 fused with a retriever, from their runs.

    The inputs are runs, named MODEL/TASK, of the task and of those that choose the retriever and
    its weight, and the judgements of the latter, each named TASK.
    """
    from revela.evaluation import fusion, measure

    check_ours(*filter(None, (run, queries, mteb)))
    bm25 = model.of[0]

    def runs(of_task: str, relevant: fusion.Judgements) -> dict[str, fusion.Run]:
        found: dict[str, fusion.Run] = {}
        for part in model.of:
            path = inputs[f"{part}/{of_task}"]
            found[part] = fusion.read_run(path)
            fusion.check_queries(relevant, path, found[part], may_lack=part == bm25)
        return found

    tuning = {other: read_json(path) for other, path in inputs.items() if "/" not in other}
    if not tuning or task in tuning:
        needed = f"judgements of tasks other than {task!r} to choose its weight: set tuned_on"
        raise RevelaError(f"model {name!r} needs {needed}")
    with _working(cache, name, task) as work:
        loaded = load_task(benchmark, task, folder, work)
        own = runs(task, measure.judgements(loaded))
        best, weight = fusion.choose(
            (judged, found.pop(bm25), found)
            for other, judged in tuning.items()
            for found in [runs(other, judged)]
        )
        ranked = fusion.fuse_runs(own[best], own[bm25], weight)
        measured = measure.evaluate(fusion.SavedSearch(name, f"{best}-{weight}", ranked), loaded)
        measured.write(run, queries, mteb)
    fused = {"retriever": best, "weight": weight, "tuned_on": list(tuning)}
    write_json(output, measured.scores | {"fused": fused})
    summary = f"{name} on {task}: {measured.summary}; weight of {best}: {weight}"
    facts = {"task": task, "fused": fused, "commits": data_commits(benchmark, loaded)}
    return Made(summary, facts, _files(benchmark, folder))


def _link(source: Path, path: Path) -> None:
    """Make `path` a copy of a file or folder, of the same bytes on the disk if possible."""

    def copy(file: str | Path, to: str | Path) -> None:
        try:
            os.link(file, to)
        except OSError:  # on another disk
            shutil.copy(file, to)

    with atomic_output(path) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, copy_function=copy)
        else:
            copy(source, temporary)
    os.utime(path)  # newer than what it is made from


@contextlib.contextmanager
def _working(cache: Path, name: str, task: str) -> Iterator[Path]:
    """Yield a folder for one evaluation at a time; what a restart reuses is kept if it fails."""
    work = cache / re.sub(r"[^\w.@+-]", "-", f"{name}-{task}")
    with locked(work, "evaluation", innermost=1), outputs.scratch(work, "*/*.safetensors"):
        yield work


def _files(benchmark: Any, folder: Path | None) -> list[Path]:
    split = getattr(benchmark, "split", "test")
    return list(itertools.chain(*collection_files(folder, split))) if folder else []


@step(app)
def evaluate_lm(
    task: str,
    model: LanguageModel,
    benchmark: LmEvalBenchmark,
    output: Scores,
    name: Name = "model",
) -> Made:
    """Evaluate a language model on a task of lm-eval."""
    from revela.evaluation import lm_eval
    from revela.retriever.source import Source

    scores, facts = lm_eval.evaluate(model, benchmark, task)
    write_json(output, scores)
    measures = (f"{key} {100 * value:.1f}" for key, value in scores.items() if key != "task")
    summary = f"{name} on {task}: {', '.join(measures)}"
    return Made(summary, {"task": task, **facts}, Source(model.language_model).folders())
