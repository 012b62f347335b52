"""Writes a configuration for the user's texts, adapted to their size and to this machine."""

import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import jinja2
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
    adapted, *_ = [read_encoder(Source(encoder), EncodingKeys()) for encoder in encoders]
    small = sum(weight.numel() for weight in adapted.parameters()) < _SMALL
    steps = min(_STEPS, _MAX_EPOCHS * epoch)
    name = entry_name(output.stem)
    language = guess_language(document.text for document in sample)
    schema = Path("workflow/schema.json")  # in a checkout, where an editor finds it
    suite: dict[str, Any] | None = None
    if collection:
        path = str(collection.resolve().parent)
        suite = {"source": "folder", "path": path, "tasks": [collection.name]}
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["yaml"] = _flow
    template = Path(__file__).with_name("config.yaml.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        schema=schema.exists() and os.path.relpath(schema, output.parent),
        file=output,
        name=name,
        texts=texts,
        corpus=corpus,
        documents=documents,
        words=words,
        kept=kept,
        chunks=chunks,
        gpus=gpus,
        encoders=encoders,
        untouched=[f"{name}-untouched{f'-{n}' if n else ''}" for n in range(len(encoders))],
        labels=labels(encoders),
        language_model=language_model,
        small=small,
        pairs=at_once,
        steps=steps,
        epoch=epoch,
        batches=batches,
        batch_size=_BATCH,
        language=language,
        tasks={f"{name}-{kind}": kind for kind in kinds},
        tuning={f"{name}-tune-{kind}": kind for kind in kinds},
        suite=suite,
    )
    config = parse_config(yaml.safe_load(text), str(output))
    seconds, each_step = run_time(
        config, name, chunks_of((1 - kept) * documents, words, corpus.max_words)
    )
    write_text(output, text)
    made_of = f"{texts}: about {documents:,.0f} documents, {documents * words:,.0f} words"
    made_of += "" if is_plain(files[0]) else f" in field {fields.text!r}"
    made_of += f"; language of BM25: {language}"
    if bad_rows := skipped.summary():
        made_of += f"; {bad_rows}"
    made_of += f"\nheld out: about {documents * (1 - kept):,.0f} documents"
    made_of += f", for {' and '.join(kinds)}"
    for kind in counts.keys() - {*kinds}:
        made_of += f"; not for {kind}, of which only {counts[kind]} occur just once"
    return (
        f"{made_of}\n{steps} steps from {encoders[0]}; about {duration(seconds)} on this machine "
        f"(a step: {each_step})"
    )


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
