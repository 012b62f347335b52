"""How long a run will take, measured by a few of its steps."""

import contextlib
import io
import os
import sys
import tempfile
import time
from pathlib import Path

from revela.config.evaluation import EncoderModel, FolderBenchmark
from revela.config.file import Config
from revela.config.text import First
from revela.evaluation.collections import collection_files
from revela.retriever.encode import devices, encode
from revela.retriever.load import load_encoder
from revela.start.look import rows_of
from revela.text.batching import make_batches
from revela.text.chunking import chunk_corpus
from revela.text.corpora import Skipped, read_documents
from revela.text.pairs import make_pairs
from revela.text.rows import parquet_rows
from revela.text.words import word_pattern
from revela.training.trainer import train
from revela.training.trainlog import LOG, read_log

_JOB = 10  # seconds of a core that a job takes to start, mostly to import its libraries
_CHUNKS = 128  # that the steps are measured on


def run_time(config: Config, name: str, held_out: float) -> tuple[float, str]:
    """Return the seconds that a config of `revela new` takes here, and what its steps take.

    Two steps of each experiment are made on the first documents of the corpus `name`, and some of
    its chunks are encoded; `held_out` chunks are to be searched.

    Raises:
        RevelaError: an encoder or the language model cannot be loaded or trained.
    """
    corpus = config.corpora[name]
    first = words = 0
    for document in read_documents(corpus, Skipped()):
        first += 1
        words += len(word_pattern(document.text).findall(document.text))
        if words > _CHUNKS * corpus.max_words:
            break
    corpus = corpus.model_copy(update={"max_documents": First(first=first)})
    total, steps = 0.0, []
    print(f"{name}: measuring two steps of each objective", file=sys.stderr, flush=True)
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    os.environ["REVELA_TRACKERS"] = ""  # nothing to track
    with tempfile.TemporaryDirectory() as temporary, quiet[0], quiet[1]:
        folder = Path(temporary)
        made = {name: folder / "chunks"}
        chunk_corpus(corpus, made[name], workers=1)
        make_batches(config.batches[name], made, folder / "batches")
        make_pairs(config.pairs[name], made, folder / "pairs")
        for label, experiment in config.experiments.items():
            two = experiment.model_copy(update={"steps": 2, "warmup_steps": 0})
            train(two, folder / experiment.data.section, folder / label)
            seconds = read_log(folder / label / LOG)[-1]["seconds"]  # the first one prepares
            total += seconds * (experiment.steps or 0)
            steps.append(f"{experiment.objective.name} {seconds:.1f} s")
        texts = [row["text"] for row in parquet_rows(made[name])][:_CHUNKS]
        encoders = [model for model in config.models.values() if isinstance(model, EncoderModel)]
        count = passages(config, held_out)
        for model in encoders:
            encoder = load_encoder(model, "bfloat16", devices()[0])
            start = time.monotonic()
            encode(encoder, texts, "passage", 512)
            times = 1 + len(config.experiments) * (model is encoders[0])  # it is adapted by each
            total += (time.monotonic() - start) / len(texts) * count * times
    at_once = os.cpu_count() or 1 if devices()[0] == "cpu" else 1  # jobs
    jobs = len({config.first_of_job(task) for task in config.retrieval_tasks})
    return total + _JOB * jobs * len(config.evaluated) / at_once, ", ".join(steps)


def passages(config: Config, held_out: float) -> float:
    """Return how many passages a model encodes; a document of a collection counts as a chunk."""
    count = 0.0
    for task in config.retrieval_tasks:
        suite = config.benchmarks[config.tasks[task]]
        if isinstance(suite, FolderBenchmark):
            corpus, _, _ = collection_files(Path(suite.path) / task)
            count += sum(map(rows_of, corpus))
        elif not config.shares_corpus(task):
            count += held_out
    return count
