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
from revela.config.names import ModelRef
from revela.config.read import parse_config
from revela.config.text import FilesCorpus
from revela.evaluation.benchmarks import check_collection
from revela.evaluation.bm25 import guess_language
from revela.evaluation.texts import split_title
from revela.retriever.source import Source
from revela.start.look import chunks_of, look
from revela.start.machine import visible_gpus
from revela.text.corpora import Skipped, place
from revela.text.fields import field_names
from revela.text.files import text_files
from revela.text.formats import is_plain

_HELD_OUT = 0.1
_MIN_STEPS, _MAX_EPOCHS = 100, 10
_CPU_STEPS = 300  # maximum; more would take hours on a CPU
_SMALL_BACKBONE = "data/backbones/5m"  # in this repository
_BACKBONE = "HuggingFaceTB/SmolLM2-135M"  # the paper's smallest

_TEMPLATE = """\
{schema}# {texts}: {documents:,.0f} documents, about {words:,.0f} words.
#
#   revela run {file}      trains a retriever on them and prints the table

corpora:
  {key}: &texts
    source: files
    path: {path}
    fields: {fields}
    on_bad_row: skip # such as empty files, up to 100 or one in a hundred
    max_words: {max_words} # of a chunk
    share: [0, {kept}] # the other documents are held out for the benchmark
  {name}-aside: {{<<: *texts, share: [{kept}, 1]}}

batches: # chunks that attend to each other: about {chunks:,.0f} chunks are {batches:,} batches
  {key}: {{corpora: [{key}], batch_size: 16{run_length}}}

experiments:
  {name}-revela:
    objective: {{name: revela{temperature}}}
    data: {key}
    retriever: {backbone}
    language_model: {backbone}{experiment}
    batches_per_step: {batches_per_step}
    steps: {steps} # {epochs:.1f} passes over the batches
    warmup_steps: 0.1 # of all steps

models:
  bm25: {{kind: bm25s, language: {language}}}
  {name}-untouched: {{kind: encoder, retriever: {backbone}{encoding}}}

benchmarks:
  {key}: # from the held-out documents: half a chunk, or a title, must retrieve the rest
    source: texts
    corpus: {name}-aside
    tasks: {tasks}
    max_length: {max_length}
{collection}
tables:
  {key}:
    caption: Retrieval on {name} (nDCG@10, %).
    columns: {columns}
    rows:
      - {{label: BM25, model: bm25}}
      - {{label: Backbone untouched, model: {name}-untouched}}
      - {{label: Revela, model: {name}-revela}}
"""
_ON_GPU = {"max_words": 120, "max_length": 512, "temperature": "", "encoding": "", "experiment": ""}
_ON_CPU = {
    "max_words": 40,
    "max_length": 256,
    "temperature": ", temperature: 0.05",
    "encoding": ", encoding: {pooling: mean}",
    "experiment": """
    encoding: {pooling: mean}
    lora: null # all weights: the backbone is small
    max_length: 128
    learning_rate: 5.0e-4""",
}


def write_config(
    texts: Path,
    output: Path,
    backbone: str | None,
    collection: Path | None,
    field: str | None = None,
) -> str:
    """Write a configuration that trains on texts, with entries named after its file.

    The arguments are the options of `revela new`; return a line of summary.

    Raises:
        RevelaError: the texts or the collection cannot be read, the texts are too few for a batch
            or to hold some out, or the file exists.
    """
    if output.exists():
        raise RevelaError(f"{output}: already exists; give another --output")
    if collection:
        check_collection(collection)
    files = text_files(texts)
    fields = field_names(files, field)
    corpus = FilesCorpus(source="files", path=str(texts), fields=fields)
    documents, each, sample = look(corpus, skipped := Skipped())
    words = documents * each
    gpus = visible_gpus()
    small = not backbone and not gpus
    backbone = backbone or (_small_backbone() if small else _BACKBONE)
    machine: dict[str, Any] = _ON_CPU if small else _ON_GPU
    if ModelRef(backbone).is_folder:
        Source(backbone).check_is_language_model()
    kept = 1 - _HELD_OUT
    chunks = chunks_of(kept * documents, each, machine["max_words"])
    batches = int(chunks / 16)
    devices = max(1, gpus)  # each takes the same number of batches in a step
    if batches < devices:
        at_once = f", and a step has a batch for each of {gpus} GPUs" if gpus > 1 else ""
        raise RevelaError(
            f"{texts}: {words:.0f} words give about {chunks:.0f} chunks; a batch has 16{at_once}"
        )
    if len({place(document.id) < kept for document in sample}) < 2:
        raise RevelaError(
            f"{texts}: too few documents to hold out a tenth ({len(sample)}); split them into more "
            "files"
        )
    batches_per_step = max(1, min(4 if small else 32, batches // _MIN_STEPS) // devices) * devices
    epoch = batches // batches_per_step
    steps = max(epoch, min(_MIN_STEPS, _MAX_EPOCHS * epoch))
    steps = min(steps, _CPU_STEPS) if small else steps
    language = guess_language(document.text for document in sample)
    titled = sum(bool(doc.title or all(split_title(doc.text))) for doc in sample)
    tasks = columns = ["halves", "titles"] if titled > len(sample) / 2 else ["halves"]
    brought = ""
    if collection:
        folder, columns = str(collection.resolve().parent), [*tasks, collection.name]
        benchmark = {"source": "folder", "path": folder, "tasks": [collection.name]}
        brought = f"  brought: {_flow(benchmark)}\n"
    schema = Path("workflow/schema.json")
    name = _entry_name(output.stem)
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
        words=words,
        language=language,
        fields=_flow(fields.model_dump(exclude_none=True)),
        kept=kept,
        chunks=chunks,
        batches=batches,
        # Long documents: a batch from a single place would be too easy.
        run_length=", run_length: 4" if chunks > 8 * kept * documents else "",
        backbone=_flow(backbone),
        batches_per_step=batches_per_step,
        steps=steps,
        epochs=steps / epoch,
        tasks=_flow(tasks),
        columns=_flow({column: column for column in columns}),
        collection=brought,
        **machine,
    )
    parse_config(yaml.safe_load(text), str(output))
    write_text(output, text)
    made_of = f"{documents:,.0f} documents, {words:,.0f} words"
    if not is_plain(files[0]):
        made_of += f" in field {fields.text!r}"
    made_of += f"; language of BM25: {language}"
    if bad_rows := skipped.summary():
        made_of += f"; {bad_rows}"
    return f"{texts}: {made_of}; {steps} steps from {backbone}"


def _flow(value: Any) -> str:
    """Return a value as YAML in one line, texts with quotes if they need them."""
    options: dict[str, Any] = {"width": 10**6, "allow_unicode": True, "sort_keys": False}
    return yaml.safe_dump([value], default_flow_style=True, **options)[1:-2]


def _entry_name(stem: str) -> str:
    """Return the nearest name that an entry of a config may have."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.-]+", "-", plain).strip("-._") or "texts"


def _small_backbone() -> str:
    folder = Path(revela.__file__).parents[1] / _SMALL_BACKBONE
    if not folder.is_dir():
        raise RevelaError("no GPU found; give a --backbone that can be trained on the CPU")
    return _SMALL_BACKBONE if folder == Path(_SMALL_BACKBONE).resolve() else str(folder)
