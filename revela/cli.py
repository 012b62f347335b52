"""The `revela` command: one step of the pipeline a subcommand, each runnable by hand."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from revela.common import outputs
from revela.common.errors import RevelaError, unknown_name
from revela.config.file import load_config
from revela.config.report import AnyFigure, Listing, Table
from revela.config.steps import (
    AnyCorpus,
    AnyRetriever,
    Backbone,
    Batches,
    Experiment,
    LanguageModel,
    LmEvalBenchmark,
    Pairs,
    PydocsBenchmark,
    RetrievalBenchmark,
    Settings,
    parse_settings,
)

app = typer.Typer(
    help="Dense retriever learning via language modeling: raw text in, retriever out.",
    epilog="`revela settings CONFIG SECTION NAME` prints what --settings of a step expects.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SettingsJson = Annotated[str, typer.Option("--settings", help="The step's settings as JSON.")]
Output = Annotated[Path, typer.Option(help="File or folder to write.")]
Scores = Annotated[Path, typer.Option(help="Folder with <model>/<task>.json, .queries.csv.")]
Named = Annotated[
    list[str], typer.Option("--input", help="NAME=PATH of an input; repeat for each.")
]


def main() -> None:
    """Run the command line; a `RevelaError` becomes one line and exit code 1."""
    try:
        app()
    except RevelaError as error:
        _fail(f"revela: error: {error}")
    except SystemExit as stop:
        if stop.code == 128 + signal.SIGINT:  # typer has caught a Ctrl-C
            print("revela: interrupted", file=sys.stderr)
        raise
    except Exception as error:
        if outputs.could_not_write(error):
            _fail(f"revela: error: cannot write: {' '.join(str(error).split())}")
        raise


def _fail(message: str) -> NoReturn:
    """Exit with one line; of several processes the first prints it, the launcher that of others."""
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if report:
        told = {"timestamp": str(int(time.time())), "py_callstack": message}
        error = {"message": {"message": message, "extraInfo": told}}
        Path(report).write_text(json.dumps(error), encoding="utf-8")
    sys.exit(message if not report or os.environ.get("RANK") == "0" else 1)


@app.command()
def settings(config: Path, section: str, name: str) -> None:
    """Print the settings of one entry of a config as the JSON that its step expects."""
    checked = load_config(config)
    sections = [*type(checked).model_fields, "tasks"]
    if section not in sections:
        raise RevelaError(f"{config}: {unknown_name('section', section, sections)}")
    known = checked.evaluated if section == "models" else getattr(checked, section)
    if name not in known:
        raise RevelaError(f"{config}: {unknown_name('entry', name, known)}")
    print(checked.resolved(section, name).dump())


@app.command()
def check(config: Path) -> None:
    """Check a config: keys, values and every name that one entry uses of another."""
    checked = load_config(config)
    counts = {name: len(getattr(checked, name)) for name in type(checked).model_fields}
    print(f"{config}: fine:", ", ".join(f"{n} {name}" for name, n in counts.items() if n))


@app.command()
def preflight(
    config: Path,
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="Files below results/; all if none."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of a training; else those here.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="GB of one GPU; else as here.")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition of trainings.")] = None,
    tflops: Annotated[
        float | None, typer.Option(help="10¹² operations a second of a GPU; else the paper's 35.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write as well.")] = None,
) -> None:
    """Look at what targets need before hours are spent: models, data, memory, disk, tools."""
    from revela.plan.estimates import PAPER_TFLOPS
    from revela.plan.machine import this_machine
    from revela.plan.preflight import run

    machine = this_machine(gpus, gpu_memory, partition)
    run(load_config(config), targets or [], machine, tflops or PAPER_TFLOPS, output)


@app.command()
def status(results: Annotated[Path, typer.Argument()] = Path("results")) -> None:
    """Show what is running and what is done, from files alone."""
    from revela.plan.status import show

    if not results.is_dir():
        raise RevelaError(f"{results}: no such folder")
    show(results)


@app.command()
def usage(
    results: Annotated[Path, typer.Argument()] = Path("results"),
    output: Annotated[
        Path | None, typer.Option(help="Path without suffix: .csv and .md are written.")
    ] = None,
    paper: Annotated[
        Path | None, typer.Option(help="CSV of what was reported: data, objective, hours, gpus.")
    ] = None,
) -> None:
    """Add up GPU-hours, energy and peak memory of the manifests that are there, by model."""
    from revela.common.usage import to_csv, to_markdown, usage_rows

    rows = usage_rows(results, paper)
    if output:
        outputs.write_text(output.with_suffix(".md"), to_markdown(rows))
        outputs.write_text(output.with_suffix(".csv"), to_csv(rows))
    else:
        print(to_csv(rows), end="")


@app.command()
def chunk(
    settings: SettingsJson,
    output: Output,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Cut a corpus into chunks of whole sentences (Parquet)."""
    from revela.text.chunking import chunk_corpus
    from revela.text.corpora import local_files

    corpus = parse_settings(AnyCorpus, settings)
    with outputs.atomic_output(output) as temporary:
        counts = chunk_corpus(corpus, temporary, workers)
    inputs = local_files(corpus) if corpus.source == "files" else []
    _finish(output, corpus, inputs, **dict(vars(counts), skipped=vars(counts.skipped)))
    if counts.skipped.count:
        print(f"skipped {counts.skipped.count} bad rows; first: {counts.skipped.examples[0]}")
    print(
        f"{counts.documents} documents → {counts.chunks} chunks; "
        f"{counts.sentences_cut} sentences were longer than {corpus.max_words} words and cut"
    )


@app.command()
def batch(settings: SettingsJson, output: Output, input: Named = []) -> None:  # noqa: B006
    """Group chunks of consecutive documents into batches (Parquet)."""
    from revela.text.batching import make_batches

    parsed, paths = parse_settings(Batches, settings), _named(input)
    with outputs.atomic_output(output) as temporary:
        counts = make_batches(parsed, paths, temporary)
    _finish(output, parsed, list(paths.values()), **vars(counts))
    print(
        f"{counts.batches} batches of {parsed.batch_size} "
        f"(of {counts.batches_before_sampling}; {counts.chunks_dropped} chunks left over)"
    )


@app.command()
def export(batches: Path, output: Output) -> None:
    """Write a batch file as JSON lines, the format of the authors' published batches."""
    from revela.text.batching import read_batches, write_jsonl

    with outputs.atomic_output(output) as temporary:
        count = write_jsonl(read_batches(batches), temporary)
    print(f"{count} batches")


@app.command()
def pair(settings: SettingsJson, output: Output, input: Named) -> None:
    """Cut query-document pairs with negatives from chunks, for Contriever (Parquet)."""
    from revela.text.pairs import make_pairs

    parsed, paths = parse_settings(Pairs, settings), _named(input)
    with outputs.atomic_output(output) as temporary:
        counts = make_pairs(parsed, paths, temporary)
    _finish(output, parsed, list(paths.values()), **vars(counts))
    print(f"{counts.pairs} pairs, {counts.inverse_cloze} by inverse cloze")


@app.command()
def pretrain(settings: SettingsJson, input: Named, output: Output) -> None:
    """Pretrain a small Llama and its tokenizer on chunks; called again it goes on."""
    from revela.training.pretraining import pretrain as run

    run(parse_settings(Backbone, settings), list(_named(input).values()), output)


@app.command()
def train(
    settings: SettingsJson,
    data: Annotated[Path, typer.Option(help="Batch file; for Contriever a pair file.")],
    output: Output,
    checkpoint_minutes: Annotated[float, typer.Option(help="Between checkpoints at most.")] = 15,
    zero: Annotated[int, typer.Option(help="DeepSpeed's ZeRO stage, 2 or 3; 0 is DDP.")] = 0,
) -> None:
    """Train a retriever; called again after an interruption it goes on from its checkpoint.

    On several GPUs: python -m revela.training.launch --standalone --nproc_per_node GPUS
    -m revela train …
    """
    from revela.training.checkpoints import Stopped, leave_processes
    from revela.training.trainer import train as run

    try:
        run(parse_settings(Experiment, settings), data, output, checkpoint_minutes, zero)
    except Stopped:
        leave_processes()
        raise
    leave_processes()


@app.command()
def pydocs(settings: SettingsJson, task: str, output: Output) -> None:
    """Write a task of the pydocs benchmark in BEIR layout."""
    from revela.evaluation.pydocs import write_task

    parsed = parse_settings(PydocsBenchmark, settings)
    with outputs.atomic_output(output) as temporary:
        counts = write_task(parsed, task, temporary)
    _finish(output, parsed, [], task=task, **counts)
    print(f"{task}: {counts['queries']} queries, {counts['documents']} documents")


@app.command()
def evaluate(
    task: str,
    model: Annotated[str, typer.Option(help="The model's settings as JSON.")],
    benchmark: Annotated[str, typer.Option(help="The benchmark's settings as JSON.")],
    scores: Annotated[Path, typer.Option(help="JSON file to write; <name>.queries.csv beside it.")],
    run: Annotated[Path, typer.Option(help="TREC run to write.")],
    cache: Annotated[
        Path, typer.Option(help="Folder for embeddings and indexes: a killed call goes on there.")
    ],
    folder: Annotated[Path | None, typer.Option(help="The task's collection, if local.")] = None,
    name: Annotated[str, typer.Option(help="What the model is called in runs.")] = "model",
) -> None:
    """Evaluate a model on a task: scores as JSON, ranked lists as a TREC run, nDCG@10 a query."""
    import contextlib
    import shutil

    from revela.common.hub import commit
    from revela.evaluation import measure as evaluation
    from revela.evaluation.benchmarks import collection_files, load_task

    parsed = parse_settings(AnyRetriever, model)
    suite = parse_settings(RetrievalBenchmark, benchmark)
    loaded_task = load_task(suite, task, folder)
    revision = evaluation.revision_of(parsed)
    searcher = evaluation.load_searcher(parsed, name, revision, suite, cache)
    found = evaluation.evaluate(searcher, loaded_task)
    outputs.write_text(run, found.run)
    outputs.write_text(scores.with_suffix(".queries.csv"), found.queries)
    outputs.write_json(scores, found.scores)
    weights = evaluation.weights_of(parsed)
    facts = {
        "task": task,
        "benchmark": suite.model_dump(mode="json"),
        "revision": revision,
        "commits": {name: commit(name, asked) for name, asked in weights.items()},
        "queries_without_judgement": found.unjudged,
    }
    local = [Path(name) for name in weights if Path(name).is_dir()]
    inputs = local + (collection_files(folder) if folder else [])
    outputs.write_manifest(scores, parsed.model_dump(mode="json"), inputs, **facts)
    if parsed.kind == "encoder":
        shutil.rmtree(cache, ignore_errors=True)  # large, and quickly made again
        with contextlib.suppress(OSError):
            cache.parent.rmdir()  # of the last task under way
    if found.unjudged:
        print(f"{found.unjudged} queries have no relevant document and do not count")
    print(f"{name} on {task}: nDCG@10 {100 * found.scores['ndcg_at_10']:.1f}")


@app.command()
def evaluate_lm(
    task: str,
    model: Annotated[str, typer.Option(help="The language model's settings as JSON.")],
    benchmark: Annotated[str, typer.Option(help="The benchmark's settings as JSON.")],
    scores: Annotated[Path, typer.Option(help="JSON file to write.")],
    name: Annotated[str, typer.Option(help="What the model is called.")] = "model",
) -> None:
    """Evaluate a language model on a task of lm-eval: its measures as JSON."""
    from revela.evaluation.lm_eval import evaluate as measure

    parsed = parse_settings(LanguageModel, model)
    suite = parse_settings(LmEvalBenchmark, benchmark)
    found, facts = measure(parsed, suite, task)
    outputs.write_json(scores, found)
    local = Path(parsed.language_model)
    told = {"model": parsed.model_dump(mode="json"), "benchmark": suite.model_dump(mode="json")}
    outputs.write_manifest(scores, told, [local] if local.is_dir() else [], task=task, **facts)
    measures = (f"{key} {100 * value:.1f}" for key, value in found.items() if key != "task")
    print(f"{name} on {task}: {', '.join(measures)}")


@app.command()
def table(
    settings: SettingsJson,
    scores: Scores,
    output: Annotated[Path, typer.Option(help="Path without suffix: .csv, .md, .tex are written.")],
) -> None:
    """Compile a table from scores and reported figures: CSV, Markdown, LaTeX.

    Beside it, `<output>_significance`: intervals and tests over queries, CSV and Markdown.
    """
    from revela.report import significance, tables

    parsed = parse_settings(Table, settings)
    frame = tables.compile_table(parsed, scores)
    analysis = significance.analyse(parsed, scores)
    undecided = significance.undecided(analysis)
    beside = output.with_name(f"{output.stem}_significance.csv")
    texts = {
        beside.with_suffix(".md"): tables.analysis_to_markdown(parsed, analysis),
        beside: tables.analysis_to_csv(analysis),
        output.with_suffix(".md"): tables.to_markdown(parsed, frame, undecided),
        output.with_suffix(".tex"): tables.to_latex(parsed, frame, undecided),
        output.with_suffix(".csv"): tables.to_csv(frame),
    }
    for path, text in texts.items():
        outputs.write_text(path, text)
    for line in tables.gaps(parsed, frame):
        print(line)


@app.command()
def compare(
    settings: SettingsJson,
    scores: Scores,
    output: Annotated[Path, typer.Option(help="Path without suffix: .csv and .md are written.")],
) -> None:
    """Compare a table's scores with what was printed: differences and verdicts, CSV, Markdown."""
    from revela.report import reported, tables

    parsed = parse_settings(Table, settings)
    frame = reported.compare(parsed, tables.measured_figures(parsed, scores))
    outputs.write_text(output.with_suffix(".md"), tables.comparison_to_markdown(parsed, frame))
    outputs.write_text(output.with_suffix(".csv"), tables.to_csv(frame))


@app.command()
def verify(comparisons: list[Path]) -> None:
    """Check comparisons (CSV of `compare`): fail unless every figure is reproduced."""
    import pandas as pd

    for path in comparisons:
        found = pd.read_csv(path)
        for line in found.itertuples():
            print(
                f"{line.system}, {line.task}: printed {line.printed:.1f}, "
                f"measured {line.measured:.1f}: {line.verdict}"
            )
        off = found[found["verdict"] != "reproduced"]
        if len(off):
            raise RevelaError(f"{path}: {len(off)} of {len(found)} figures are not reproduced")


@app.command()
def check_paper(config: Path) -> None:
    """Add up the printed rows of a config's tables; print each mean that is not what is printed."""
    from revela.report.reported import check_means

    checked = load_config(config)
    for name in (name for name, table in checked.tables.items() if table.reported):
        for system, mean in check_means(checked.table(name)).iterrows():
            if mean["adds_up"] in ("rounding", "no"):
                print(
                    f"{name}: {system}: {checked.tables[name].mean} printed {mean['printed']:.1f},"
                    f" recomputed {mean['recomputed']:.1f}"
                    + (" (rounding)" if mean["adds_up"] == "rounding" else "")
                )


@app.command()
def listing(
    settings: SettingsJson,
    output: Annotated[Path, typer.Option(help="Path without suffix: .csv, .md, .tex are written.")],
) -> None:
    """Print a table that lists instead of measuring: CSV, Markdown, LaTeX."""
    from revela.config.printed import read_listing
    from revela.report import listings

    parsed = parse_settings(Listing, settings)
    rows = read_listing(parsed)
    outputs.write_text(output.with_suffix(".md"), listings.to_markdown(parsed, rows))
    outputs.write_text(output.with_suffix(".tex"), listings.to_latex(parsed, rows))
    outputs.write_text(output.with_suffix(".csv"), listings.to_csv(parsed, rows))


@app.command()
def show(tables: list[Path]) -> None:
    """Print compiled tables (CSV) to the terminal."""
    import csv

    from rich.console import Console
    from rich.table import Table as RichTable

    for path in tables:
        with path.open(encoding="utf-8", newline="") as stream:
            heading, *rows = csv.reader(stream)
        drawn = RichTable(title=path.stem)
        for index, column in enumerate(heading):
            drawn.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            drawn.add_row(*(cell or "–" for cell in row))
        Console(width=None if sys.stdout.isatty() else 120).print(drawn)


@app.command()
def figure(
    settings: SettingsJson,
    output: Annotated[Path, typer.Option(help="Path without suffix: .pdf and .png are written.")],
    input: Named,
) -> None:
    """Draw a figure as PDF and PNG: from training logs (experiment=log.jsonl), scores, tables."""
    from revela.report import figures

    parsed, inputs = parse_settings(AnyFigure, settings), _named(input)
    for suffix in (".png", ".pdf"):
        with outputs.atomic_output(output.with_suffix(suffix)) as temporary:
            figures.save(figures.draw(parsed, inputs), temporary, suffix[1:])


def _named(inputs: list[str]) -> dict[str, Path]:
    """Parse NAME=PATH options.

    Raises:
        RevelaError: one has no `=`, or its file does not exist.
    """
    paths = {}
    for item in inputs:
        name, equals, path = item.partition("=")
        if not equals:
            raise RevelaError(f"--input {item!r}: expected NAME=PATH")
        if not Path(path).exists():
            raise RevelaError(f"--input {item!r}: no such file")
        paths[name] = Path(path)
    return paths


def _finish(output: Path, settings: Settings, inputs: list[Path], **facts: Any) -> None:
    outputs.write_manifest(output, settings.model_dump(mode="json"), inputs, **facts)
