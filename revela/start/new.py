"""Writes a configuration for the user's texts, adapted to their size and to this machine."""

import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml

import revela
from revela.common.errors import RevelaError
from revela.common.outputs import write_text
from revela.config.encoding import EncodingKeys
from revela.config.read import parse_config
from revela.config.text import FilesCorpus
from revela.evaluation.benchmarks import check_collection
from revela.evaluation.bm25 import guess_language
from revela.retriever.load import read_encoder
from revela.retriever.source import Source
from revela.search.index import labels
from revela.start.estimate import run_time
from revela.start.look import chunks_of, held_out, look_joined, queries_of
from revela.start.machine import visible_gpus
from revela.start.status import duration
from revela.text.corpora import Skipped
from revela.text.fields import field_names
from revela.text.files import text_files
from revela.text.formats import is_plain

_BATCH = 16  # chunks that read each other
_STEPS, _MAX_EPOCHS = 64, 10
_SMALL = 200_000_000  # parameters; above, training all of them takes more than 3 GB
_MIN_QUERIES = 20  # of a task
_IN_CHECKOUT = ("data/encoders/all-MiniLM-L6-v2", "data/backbones/5m")
_ON_HUB = ("Alibaba-NLP/gte-modernbert-base", "HuggingFaceTB/SmolLM2-135M")

_TEMPLATE = """\
{schema}# {texts}: {documents:,.0f} documents, about {words:,.0f} words.
#
#   revela run {file}      adapts an encoder to them and says whether that was worth it

corpora:
  {key}: &texts
    source: files
    path: {path}
    fields: {fields}{join_title}
    on_bad_row: skip # such as empty files, up to 100 or one in a hundred
    skip_repeated: true # or a text might be on both sides of the split
    max_words: 120 # of a chunk
    share: [0, {kept}] # the other documents are held out for the benchmark
  {name}-aside: {{<<: *texts, share: [{kept}, 1]}}

pairs: # for Contriever: two spans of a document, or a sentence and the rest of its chunk
  {key}: {{corpora: [{key}], negatives: 0}} # but those in the batch

batches: # for Revela: chunks that read each other; about {chunks:,.0f} chunks
  {key}: {{corpora: [{key}], batch_size: {batch_size}{run_length}}}

experiments:
  {name}-contriever:
    objective: {{name: contriever, temperature: 0.05}}
    data: {key}
    retriever: {encoder}{lora}
    max_length: {max_length}
    batches_per_step: {pairs} # pairs
    batches_per_device: {pairs_per_device}
    steps: {steps} # {epochs:.1f} passes over the texts
    learning_rate: 5.0e-5
    warmup_steps: 0.1 # of all steps
    average_with_start: 0.5 # so that little of what the encoder knows is lost
  {name}-revela:
    base: {name}-contriever
    objective: {{name: revela, reading: joint, freeze_language_model: true, temperature: 0.1}}
    language_model: {language_model}
    batches_per_step: {batches}
    batches_per_device: 1

models:
  bm25: {{kind: bm25s, language: {language}}}
{untouched}  # The best of the three with BM25, and its weight, are chosen on the tuning queries.
  {name}-best+bm25:
    kind: hybrid
    of: [bm25, {name}-untouched, {name}-contriever, {name}-revela]
    tuned_on: {name}-tune

benchmarks: # from the held-out documents: half a chunk, or a title, must retrieve the rest
  {key}: &held-out
    source: texts
    corpus: {name}-aside
    tasks: {tasks}
    queries: [0.5, 1] # those that the table reports
  {name}-tune: {{<<: *held-out, tasks: {tuning}, queries: [0, 0.5]}}
{benchmark}
tables:
  {key}:
    caption: Retrieval on {name} (nDCG@10, %).
    benchmark: {key}
    compared_to: {name}-untouched
    rows:
      - {{label: BM25, model: bm25}}
{rows}      - {{label: adapted by Contriever, model: {name}-contriever}}
      - {{label: adapted by Revela, model: {name}-revela}}
      - {{label: best of the three + BM25, model: {name}-best+bm25}}
{table}"""


def write_config(
    texts: Path,
    output: Path,
    encoders: list[str],
    collection: Path | None,
    field: str | None = None,
) -> str:
    """Write a configuration that adapts an encoder to texts, with entries named after its file.

    The arguments are the options of `revela new`; return lines of summary.

    Raises:
        RevelaError: the texts, the collection or an encoder cannot be read, the texts are too few
            for a step or to hold some out, or the file exists.
    """
    if output.exists():
        raise RevelaError(f"{output}: already exists; give another --output")
    if collection:
        check_collection(collection)
    files = text_files(texts)
    fields = field_names(files, field)
    corpus = FilesCorpus(source="files", path=str(texts), fields=fields, skip_repeated=True)
    corpus, documents, words, sample = look_joined(corpus, skipped := Skipped())
    gpus = visible_gpus()
    kept, aside = held_out(documents, words, sample, corpus.max_words)
    counts = queries_of(aside, corpus.max_words)
    kinds = [kind for kind, count in counts.items() if count >= _MIN_QUERIES]
    if not kinds:
        found = " and ".join(f"{count} {kind}" for kind, count in counts.items())
        raise RevelaError(
            f"{texts}: too few texts to hold some out: {len(aside)} documents give {found} that "
            f"may be queries; a task needs {_MIN_QUERIES}"
        )
    chunks = chunks_of(kept * documents, words, corpus.max_words)
    batches = max(2, gpus)  # of a step, one for each GPU
    at_once = batches * _BATCH  # pairs or chunks of a step
    epoch = int(chunks / at_once)
    if epoch < 2:
        raise RevelaError(
            f"{texts}: {documents * words:.0f} words give about {chunks:.0f} chunks to "
            f"train on; two steps take {2 * at_once}"
        )
    if not encoders:
        encoders = [_ON_HUB[0] if gpus else _of_checkout(_IN_CHECKOUT[0])]
    language_model = _ON_HUB[1] if gpus else _of_checkout(_IN_CHECKOUT[1])
    described = [read_encoder(Source(encoder), EncodingKeys()) for encoder in encoders]
    small = sum(weight.numel() for weight in described[0].parameters()) < _SMALL
    steps = min(_STEPS, _MAX_EPOCHS * epoch)
    name = entry_name(output.stem)
    models = [f"{name}-untouched{f'-{n}' if n else ''}" for n in range(len(encoders))]
    language = guess_language(document.text for document in sample)
    schema = Path("workflow/schema.json")
    text = _TEMPLATE.format(
        # Only in a checkout, where an editor finds the schema.
        schema=f"# yaml-language-server: $schema={os.path.relpath(schema, output.parent)}\n"
        if schema.exists()
        else "",
        file=output,
        name=name,
        key=_flow(name),  # with quotes if it is a number
        texts=texts,
        path=_flow(str(texts)),
        documents=documents,
        words=documents * words,
        fields=_flow(fields.model_dump(exclude_none=True)),
        join_title="\n    join_title: true # rows with equal titles are one text"
        * corpus.join_title,
        kept=kept,
        chunks=chunks,
        # Long documents: a batch from a single place would be too easy.
        run_length=", run_length: 4" if chunks > 8 * kept * documents else "",
        encoder=_flow(encoders[0]),
        lora="\n    lora: null # all weights: the encoder is small" * small,
        max_length=160 if gpus else 128,
        pairs=at_once,
        pairs_per_device=at_once // max(1, gpus),
        steps=steps,
        epochs=steps / epoch,
        language_model=_flow(language_model),
        batches=batches,
        batch_size=_BATCH,
        language=language,
        untouched="".join(
            f"  {model}: {{kind: encoder, retriever: {_flow(encoder)}}}\n"
            for model, encoder in zip(models, encoders, strict=True)
        ),
        tasks=_flow({f"{name}-{kind}": kind for kind in kinds}),
        tuning=_flow({f"{name}-tune-{kind}": kind for kind in kinds}),
        rows="".join(
            f"      - {_flow({'label': f'{label} untouched', 'model': model})}\n"
            for label, model in zip(labels(encoders), models, strict=True)
        ),
        **_brought(name, collection),
    )
    config = parse_config(yaml.safe_load(text), str(output))
    seconds, each_step = run_time(
        config, name, chunks_of((1 - kept) * documents, words, corpus.max_words)
    )
    write_text(output, text)
    made_of = f"{texts}: {documents:,.0f} documents, {documents * words:,.0f} words"
    if not is_plain(files[0]):
        made_of += f" in field {fields.text!r}"
    made_of += f"; language of BM25: {language}"
    if bad_rows := skipped.summary():
        made_of += f"; {bad_rows}"
    made_of += (
        f"\nheld out: about {documents * (1 - kept):,.0f} documents, for {' and '.join(kinds)}"
    )
    for kind in counts.keys() - {*kinds}:
        made_of += f"; not for {kind}, of which only {counts[kind]} occur just once"
    return (
        f"{made_of}\n{steps} steps from {encoders[0]}; about {duration(seconds)} on this machine "
        f"(a step: {each_step})"
    )


def _brought(name: str, collection: Path | None) -> dict[str, str]:
    """Return the lines of a benchmark and a table for the user's own test collection."""
    if not collection:
        return {"benchmark": "", "table": ""}
    folder, task = str(collection.resolve().parent), collection.name
    suite = {"source": "folder", "path": folder, "tasks": [task]}
    table = {
        "base": name,
        "caption": f"Retrieval on {task} (nDCG@10, %).",
        "benchmark": f"{name}-{task}",
    }
    return {
        "benchmark": f"  {name}-{task}: {_flow(suite)} # your own queries\n",
        "table": f"  {name}-{task}: {_flow(table)}\n",
    }


def _flow(value: Any) -> str:
    """Return a value as YAML in one line, texts with quotes if they need them."""
    options: dict[str, Any] = {"width": 10**6, "allow_unicode": True, "sort_keys": False}
    return yaml.safe_dump([value], default_flow_style=True, **options)[1:-2]


def entry_name(stem: str) -> str:
    """Return the nearest name that an entry of a config may have."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.-]+", "-", plain).strip("-._") or "texts"


def _of_checkout(name: str) -> str:
    """Return the path of a model that comes with the repository."""
    folder = Path(revela.__file__).parents[1] / name
    if not folder.is_dir():
        raise RevelaError(f"no GPU found, and no folder {folder}: run `make`, or give --encoder")
    return name if folder == Path(name).resolve() else str(folder)
