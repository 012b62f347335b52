"""`revela collection`, `evaluate`, `evaluate-lm`."""

import itertools
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from revela.common.errors import check_name
from revela.common.locks import locked
from revela.common.outputs import atomic_output, check_ours, scratch, write_json, write_text
from revela.config.evaluation import (
    AnyRetriever,
    IrDatasetsBenchmark,
    LanguageModel,
    LmEvalBenchmark,
    MadeBenchmark,
    PydocsBenchmark,
    RetrievalBenchmark,
)
from revela.evaluation.benchmarks import load_task
from revela.step import Made, Output, step

app = typer.Typer()

Scores = Annotated[Path, typer.Option("--scores", help="JSON file to write.")]
Cache = Annotated[
    Path,
    typer.Option(help="Folder for temporary embeddings, which a restart reuses, and BM25 indexes."),
]
Name = Annotated[str, typer.Option(help="Name of the model in the output.")]


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


@step(app)
def evaluate(
    task: str,
    model: AnyRetriever,
    benchmark: RetrievalBenchmark,
    output: Scores,
    cache: Cache,
    run: Annotated[Path | None, typer.Option(help="TREC run to write.")] = None,
    queries: Annotated[Path | None, typer.Option(help="CSV to write: nDCG@10 by query.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of a local task's collection.")
    ] = None,
    mteb: Annotated[Path | None, typer.Option(help="Folder for results in mteb's format.")] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Folder to keep embeddings in; deleted by default.")
    ] = None,
    similar: Annotated[
        Path | None,
        typer.Option(exists=True, help="Embeddings of another task, reused for common passages."),
    ] = None,
    name: Name = "model",
) -> Made:
    """Evaluate a retriever on a task."""
    from mteb import ResultCache

    from revela.evaluation import measure
    from revela.evaluation.collections import collection_files
    from revela.retriever.source import Source

    split = getattr(benchmark, "split", "test")
    files = list(itertools.chain(*collection_files(folder, split))) if folder else []
    check_ours(*filter(None, (run, queries, mteb, embeddings)))
    work = cache / re.sub(r"[^\w.@+-]", "-", f"{name}-{task}")
    with locked(work, "evaluation", innermost=1), scratch(work, "*/*.safetensors"):
        loaded_task = load_task(benchmark, task, folder, work)
        source = Source.of(model) if model.kind == "encoder" else None
        revision = source.fingerprint() if source else ""
        searcher = measure.load_searcher(model, name, revision, benchmark, work, similar)
        measured = measure.evaluate(searcher, loaded_task)
        for path, text in ((run, measured.run), (queries, measured.queries)):
            if path:
                write_text(path, text)
        if mteb:
            with atomic_output(mteb) as temporary:
                ResultCache(temporary).save_to_cache(measured.result, searcher.mteb_model_meta)
        write_json(output, measured.scores)
        if embeddings and model.kind == "encoder":
            with atomic_output(embeddings) as temporary:
                temporary.mkdir()
                for shards in work.glob("*/*.safetensors"):
                    place = temporary / shards.parent.name
                    place.mkdir(exist_ok=True)
                    shutil.move(shards, place)
    summary = f"{name} on {task}: nDCG@10 {100 * measured.scores['ndcg_at_10']:.1f}"
    if measured.unjudged:
        summary += f"; queries without judgements, excluded: {measured.unjudged}"
    facts = {
        "task": task,
        "revision": revision,
        "commits": source.commits() if source else {},
        "queries_without_judgement": measured.unjudged,
    }
    return Made(summary, facts, [*(source.folders() if source else []), *files])


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
