"""The tables of results, as Markdown."""

import datetime
from pathlib import Path
from typing import Any

RESULTS = Path("bench/RESULTS-life-size.md")
SAME = 0.9999  # cosine of embeddings that count as the same

Found = dict[str, dict[str, Any]]

_TRAININGS = [
    "experiment",
    "retriever + language model",
    "B",
    "precision",
    "GB",
    "estimated GB",
    "seconds",
    "modelled TFLOP",
    "of matmul rate",
    "loss",
    "all finite",
    "64 passages, s",
    "GB",
    "estimated GB",
    "reloaded as by hand",
    "cosines",
    "machine",
]
_TEXTS = [
    "corpus",
    "text, MB",
    "MB/s",
    "GB at a tenth",
    "GB",
    "flat",
    "chunks",
    "hours: reader",
    "hours: workers, 1 core",
    "hours: {cores} cores",
    "profile's hours",
    "machine",
]


def write(found: Found, path: Path = RESULTS) -> str:
    """Write both tables, and a line for each part without a row; return them."""
    trainings = {n: r for n, r in found.items() if "training" in r.get("result", {})}
    texts = {n: r for n, r in found.items() if "large" in r.get("result", {})}
    versions = {r["machine"].partition(", ")[2] for r in (trainings | texts).values()}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = ", ".join(["`make life-size`", today, *sorted(versions)])
    sections = [f"# The paper's steps at their real sizes\n\n{made}."]
    if trainings:
        sections.append(_TRAINING_NOTE)
        sections.append(_table(_TRAININGS, [_training(*one) for one in trainings.items()]))
    if texts:
        cores = next(iter(texts.values()))["result"]["profile_cores"]
        heading = [name.format(cores=cores) for name in _TEXTS]
        sections.append(_TEXT_NOTE)
        sections.append(_table(heading, [_text(*one) for one in texts.items()]))
    missing = [
        f"- {n}: {why}" for n, r in found.items() if (why := r.get("skipped", r.get("failed")))
    ]
    if missing:
        sections += ["## Not measured", "\n".join(missing)]
    text = "\n\n".join(sections) + "\n"
    path.write_text(text, encoding="utf-8")
    return text


_TRAINING_NOTE = """\
## One micro-step of each experiment

Random weights in the published shapes; the settings of `config.yaml`, with one step of one batch
(Contriever: eight pairs of 17 texts), no warm-up, and a learning rate that lets one step be seen.
Memory is the process's peak, with the libraries and the check of the saved retriever in float32;
estimates are those of `revela.plan.estimates`. Seconds are the step's, of the whole process for the
64 passages. Cosines are the lowest between embeddings of W + α/r·BA in float32 and those of the
saved and reloaded retriever in float32 and in bfloat16, and the highest with the backbone's own:
what an adapter that is not loaded gives."""

_TEXT_NOTE = """\
## Chunking

Generated text in each corpus's row format, streamed from a hub on this machine by the settings of
`config.yaml`; samples keep their share. Hours are for the whole corpus, without its download:
additional processor time per row, times the published rows. One process reads and writes, twice if
a sample is drawn; more cores reduce only the hours of its workers. The sum assumes no overlap of
the two. Memory is flat except for Parquet: pyarrow keeps what it has read of a file until its end,
about 2 GB in FineWeb-edu's."""


def _table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _training(name: str, record: dict[str, Any]) -> list[str]:
    found = record["result"]
    expected, step = found["step"], found["training"]
    encoded, same = found["evaluation"], found["embeddings"]
    share = expected["flops"] / step["seconds"] / step["matmul_rate"]
    finite = step["finite"] and encoded["finite"]
    told_apart = same["backbone"] < SAME <= same["float32"]
    return [
        name,
        " + ".join(model.rpartition("/")[2] for model in expected["models"]),
        str(expected["row"]),
        step["precision"],
        f"{step['gb']:.1f}",
        f"{expected['training_gb']:.1f}",
        f"{step['seconds']:.0f}",
        f"{expected['flops'] / 1e12:.1f}",
        f"{share:.0%}",
        f"{step['loss']:.3f}",
        "yes" if finite else "NO",
        f"{encoded['seconds']:.0f}",
        f"{encoded['gb']:.1f}",
        f"{expected['encoding_gb']:.1f}",
        "yes" if told_apart else "NO",
        f"{same['float32']:.5f}, {same['bfloat16']:.5f}, {same['backbone']:.3f}",
        record["machine"].partition(", ")[0],
    ]


def _text(name: str, record: dict[str, Any]) -> list[str]:
    found = record["result"]
    small, large = found["small"], found["large"]
    enough = found["hours"] <= found["profile_hours"]
    return [
        name.removeprefix("chunk-"),
        f"{large['characters'] / 1e6:.0f}",
        f"{large['characters'] / 1e6 / large['seconds']:.1f}",
        f"{small['peak_gb']:.2f}",
        f"{large['peak_gb']:.2f}",
        "yes" if found["flat"] else "NO",
        f"{large['chunks']:,}",
        f"{found['reading_hours']:.2f}",
        f"{found['workers_hours']:.2f}",
        f"{found['hours']:.2f}",
        f"{found['profile_hours']:g}{'' if enough else ': TOO FEW'}",
        record["machine"].partition(", ")[0],
    ]
