"""`revela download`, `chunk`, `batch`, `export-batches`, `pair`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from revela.common.outputs import atomic_output
from revela.config.text import AnyCorpus, Batches, HubFiles, Pairs
from revela.step import Made, Output, command, step

app = typer.Typer()


@step(app)
def download(settings: HubFiles, output: Output) -> Made:
    """Download files of a hub data set into the hub's cache and list them (JSON)."""
    from revela.text import chunking, downloads

    commits = downloads.download(settings, output)
    chunking.pretrained_punkt()  # its only other download
    return Made(f"{settings.dataset} at {commits[settings.dataset]}", {"commits": commits})


@step(app)
def chunk(
    settings: AnyCorpus,
    inputs: dict[str, Path],
    output: Output,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = os.cpu_count() or 1,
) -> Made:
    """Cut a corpus into chunks of whole sentences (Parquet)."""
    from revela.text.chunking import chunk_corpus
    from revela.text.downloads import downloaded
    from revela.text.files import corpus_files, unread_files

    on_hub = settings.source == "hub"
    commits, files = downloaded(inputs["download"]) if on_hub else ({}, {})
    counts = chunk_corpus(settings, output, workers, files)
    summary = (
        f"{counts.documents} documents → {counts.chunks} chunks; "
        f"{counts.sentences_cut} sentences over {settings.max_words} words were cut"
    )
    if skipped := counts.skipped.summary():
        summary += f"; {skipped}"
    if unread := unread_files(Path(settings.path)) if settings.source == "files" else []:
        summary += f"; {len(unread)} other files not read, such as {unread[0]}"
    facts = {**vars(counts), "skipped": vars(counts.skipped), "commits": commits}
    return Made(summary, facts, corpus_files(settings))


@step(app)
def batch(settings: Batches, inputs: dict[str, Path], output: Output) -> Made:
    """Group chunks of consecutive documents into batches (Parquet)."""
    from revela.text.batching import make_batches
    from revela.text.downloads import downloaded

    commits, files = downloaded(inputs["download"]) if settings.hub else ({}, {})
    facts = make_batches(settings, files or inputs, output)
    summary = (
        f"{facts['batches']} batches of {settings.batch_size} "
        f"(of {facts['batches_before_sampling']}; {facts['chunks_dropped']} chunks left over): "
    )
    return Made(summary + _drawn(facts), {**facts, "commits": commits})


def _drawn(facts: dict[str, Any]) -> str:
    return ", ".join(f"{n} from {name or 'a file'}" for name, n in facts["drawn"].items())


@command(app)
def export_batches(batches: Path, output: Output) -> None:
    """Convert a batch file to JSON lines, the format of the authors' published batches."""
    from revela.text.batching import read_batches
    from revela.text.rows import count_rows

    rows = ({"src": row["source"], "text": row["texts"]} for row in read_batches(batches))
    with atomic_output(output) as temporary, temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    print(f"{count_rows(batches)} batches")


@step(app)
def pair(settings: Pairs, inputs: dict[str, Path], output: Output) -> Made:
    """Make query-document pairs with negatives from chunks, for objectives on pairs (Parquet)."""
    from revela.text.pairs import make_pairs

    facts = make_pairs(settings, inputs, output)
    summary = f"{facts['pairs']} pairs, {facts['inverse_cloze']} by inverse cloze: {_drawn(facts)}"
    if few := facts["chunks_too_short"]:
        summary += f"; {few} chunks of one word gave none"
    return Made(summary, facts)
