"""A configuration for texts of one's own: what they are decides what is written."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml

import revela
from revela.common.errors import RevelaError
from revela.common.outputs import write_text
from revela.config.file import parse_config
from revela.config.local import collection_files, text_files
from revela.config.steps import FieldNames, FilesCorpus
from revela.plan.counts import CHUNK_FILL
from revela.plan.machine import this_machine
from revela.text.corpora import Skipped, field_names, read_documents

_SAMPLE = 1_000  # documents that are looked at
_HELD_OUT = 0.1
_MIN_STEPS, _MAX_EPOCHS = 100, 10
_CPU_STEPS = 300  # at most: hours of a processor are not spent unasked
_SMALL_BACKBONE = "data/backbone"  # of this repository
_BACKBONE = "HuggingFaceTB/SmolLM2-135M"  # the paper's smallest

_TEMPLATE = """\
# {texts}: {documents} documents, about {words} words, {language}.
#
#   revela run {file}      trains a retriever on them and prints the table

corpora:
  {name}: &texts
    source: files
    path: {path}{fields}
    max_words: {max_words} # of a chunk
    share: [0, {kept}] # the other documents are kept aside for the benchmark
  {name}-aside: {{<<: *texts, share: [{kept}, 1]}}

batches: # chunks that attend to each other: about {chunks} chunks are {batches} batches
  {name}: {{corpora: [{name}], batch_size: 16{run_length}}}

experiments:
  {name}-revela:
    objective: {{name: revela{temperature}}}
    data: {name}
    retriever: {backbone}
    language_model: {backbone}{small}
    batches_per_step: {batches_per_step}
    steps: {steps} # {epochs} passes over the batches
    warmup_steps: 0.1 # of all steps

models:
  bm25: {{kind: bm25s}}
  {name}-untouched: {{kind: encoder, retriever: {backbone}{encoding}}}

benchmarks:
  {name}: # cut from the documents kept aside: half a chunk, or a title, finds the rest
    source: texts
    corpus: {name}-aside
    tasks: [{tasks}]
    max_length: {max_length}
{collection}
tables:
  {name}:
    caption: Retrieval on {name} (nDCG@10, %).
    columns: {columns}
    rows:
      - {{label: BM25, model: bm25}}
      - {{label: Backbone untouched, model: {name}-untouched}}
      - {{label: Revela, model: {name}-revela}}
"""
_SMALL = """
    encoding: {pooling: mean}
    lora: null # all weights: the backbone is small
    max_length: 128
    learning_rate: 5.0e-4"""


@dataclass(frozen=True)
class Look:
    """What texts are like, by their first documents."""

    documents: float
    words: float
    language: str
    titled: bool  # whether most begin with a title


def write_config(texts: Path, output: Path, backbone: str | None, collection: Path | None) -> str:
    """Write a configuration that trains on texts; return in a line what they are.

    Args:
        texts: a folder or file.
        output: the file to write; its name is that of the entries.
        backbone: a folder or hub name, by default one that this machine can train.
        collection: a folder in BEIR layout to measure on besides.

    Raises:
        RevelaError: the texts cannot be read or are too few for a batch, or the file is there.
    """
    if output.exists():
        raise RevelaError(f"{output}: is there already; give another --output")
    files = text_files(texts)
    fields = field_names(files)
    corpus = FilesCorpus(source="files", path=str(texts), fields=fields, on_bad_row="skip")
    look = _look(corpus, files)
    small = not backbone and not this_machine().gpus
    backbone = backbone or (_small_backbone() if small else _BACKBONE)
    max_words = 40 if small else 120
    kept = 1 - _HELD_OUT
    chunks = kept * (look.words / (CHUNK_FILL * max_words) + 0.5 * look.documents)
    batches = int(chunks / 16)
    if not batches:
        raise RevelaError(
            f"{texts}: {look.words:.0f} words make about {chunks:.0f} chunks; a batch has 16"
        )
    batches_per_step = max(1, min(4 if small else 32, batches // _MIN_STEPS))
    epoch = batches // batches_per_step
    steps = max(epoch, min(_MIN_STEPS, _MAX_EPOCHS * epoch))
    steps = min(steps, _CPU_STEPS) if small else steps
    tasks = ["halves", "titles"] if look.titled or fields.title else ["halves"]
    columns = f"{{{', '.join(f'{task}: {task}' for task in tasks)}}}"
    brought = ""
    if collection:
        collection_files(collection)
        folder, name = collection.resolve().parent, collection.name
        brought = f"  brought: {{source: folder, path: {folder}, tasks: [{name}]}}\n"
        columns = f"{columns[:-1]}, {name}: {name}}}"
    name = output.stem
    text = _TEMPLATE.format_map(
        dict(
            file=output,
            name=name,
            texts=texts,
            path=texts,
            documents=f"{look.documents:,.0f}",
            words=f"{look.words:,.0f}",
            language=look.language,
            fields=_yaml(fields),
            max_words=max_words,
            kept=kept,
            chunks=f"{chunks:,.0f}",
            batches=f"{batches:,}",
            # Long documents: a batch of one place alone is too easy.
            run_length=", run_length: 4" if chunks > 8 * kept * look.documents else "",
            temperature=", temperature: 0.05" if small else "",
            backbone=backbone,
            small=_SMALL if small else "",
            encoding=", encoding: {pooling: mean}" if small else "",
            batches_per_step=batches_per_step,
            steps=steps,
            epochs=f"{steps / epoch:.1f}",
            tasks=", ".join(tasks),
            max_length=256 if small else 512,
            collection=brought,
            columns=columns,
        )
    )
    parse_config(yaml.safe_load(text), str(output))
    write_text(output, text)
    return (
        f"{texts}: {look.documents:,.0f} documents, {look.words:,.0f} words, {look.language}; "
        f"{steps} steps from {backbone}"
    )


def _small_backbone() -> str:
    folder = Path(revela.__file__).parents[1] / _SMALL_BACKBONE
    if not folder.is_dir():
        raise RevelaError("there is no GPU here; give a --backbone that the processor can train")
    return _SMALL_BACKBONE if folder == Path(_SMALL_BACKBONE).resolve() else str(folder)


def _look(corpus: FilesCorpus, files: list[Path]) -> Look:
    skipped = Skipped()
    sample = list(islice(read_documents(corpus, skipped), _SAMPLE))
    if not sample:
        raise RevelaError(f"{corpus.path}: holds no document")
    sizes = sum(len(document.text.encode()) for document in sample)
    whole = sum(file.stat().st_size for file in files)
    packed = {".gz": 3.0, ".xz": 4.0, ".parquet": 2.0}.get(files[0].suffix, 1.0)
    factor = max(1.0, whole * packed / sizes) if len(sample) == _SAMPLE else 1.0
    words = [document.text.split() for document in sample]
    first_lines = [document.text.strip().partition("\n") for document in sample]
    titled = sum(0 < len(line.split()) <= 12 and bool(rest) for line, _, rest in first_lines)
    return Look(
        factor * len(sample),
        factor * sum(map(len, words)),
        _language(word.lower() for some in words for word in some[:1000]),
        titled > len(sample) / 2,
    )


def _language(words: Iterable[str]) -> str:
    """Name the language whose function words are the most of some words."""
    from bm25s import stopwords

    known = {
        name.removeprefix("STOPWORDS_").capitalize(): set(getattr(stopwords, name))
        for name in dir(stopwords)
        if name.startswith("STOPWORDS_") and not name.endswith(("EN", "PLUS"))
    } | {"English": set(stopwords.STOPWORDS_EN_PLUS)}
    counts = Counter(words)
    seen = {name: sum(counts[word] for word in few) for name, few in known.items()}
    best = max(seen, key=lambda name: seen[name])
    return best if seen[best] > 0.1 * counts.total() else "language unknown"


def _yaml(fields: FieldNames) -> str:
    given = fields.model_dump(exclude_defaults=True)
    inner = ", ".join(f"{key}: {value}" for key, value in given.items())
    return f"\n    fields: {{{inner}}}" if given else ""
