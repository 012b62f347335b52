"""Chunking of generated text in each corpus's row format: rate, memory, hours per corpus.

A corpus is read from a hub on this machine with the settings of `config.yaml`. A sample keeps its
share of the rows. The cost of a row is its additional processor time: that of the process that
reads and writes, and that of its workers, which is divided among cores. One-time costs (imports,
sentence ends) cancel out between two sizes.
"""

import csv
import gzip
import itertools
import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from bench.life_size.processes import GB, require_disk, revela
from tests.rehearsal.hub import serving
from tests.rehearsal.material import functions

PROFILE = Path("workflow/profiles/slurm/config.yaml")
COUNTS = Path("data/paper/corpora.csv")
_FLAT = 1.25  # maximum growth of memory at ten times the text
_SPREAD = 0.8  # standard deviation of the logarithm of a document's words
Row = dict[str, Any]


class Prose:
    """Text composed of sentences and functions of installed packages."""

    def __init__(self) -> None:
        self.choose = random.Random(0)
        described = (package.metadata["Description"] for package in metadata.distributions())
        whole = " ".join(sorted({text for text in described if text}))
        sentences = (part.split() for part in re.split(r"(?<=[.!?])\s+", whole))
        self.sentences = [words for words in sentences if 4 <= len(words) <= 40]
        self.functions = [function.source for function in functions()]

    def words(self, mean: int) -> list[str]:
        """Return the words of a text, on average about `mean`."""
        count = self.choose.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD)
        found: list[str] = []
        while len(found) < count:
            found += self.choose.choice(self.sentences)
        return found

    def text(self, mean: int) -> str:
        """Return a text with a paragraph per 80 words."""
        words = self.words(mean)
        return "\n\n".join(" ".join(words[n : n + 80]) for n in range(0, len(words), 80))

    def code(self) -> str:
        """Return the source of a function."""
        return self.choose.choice(self.functions)


# ---------------------------------------------------------------------------- rows


def _wikipedia(prose: Prose) -> Iterator[Row]:
    """Yield passages of 100 words; the last one of an article is filled up from its beginning.

    Articles are as long as those at the beginning of the file (`data/paper/corpora.csv`).
    """
    numbers = itertools.count(1)
    for article in itertools.count(1):
        words = prose.words(1540)
        words += words[: -len(words) % 100]
        for start in range(0, len(words), 100):
            text = " ".join(words[start : start + 100])
            yield {"docid": str(next(numbers)), "title": f"Article {article}", "text": text}


def _library_documentation(prose: Prose) -> Iterator[Row]:
    for number in itertools.count(1):
        yield {"doc_id": f"library.module.function_{number}", "doc_content": prose.text(270)}


def _online_tutorials(prose: Prose) -> Iterator[Row]:
    for number in itertools.count(1):
        text = prose.text(925)
        parsed = [{"type": "text", "content": part} for part in text.split("\n\n")]
        yield {"title": f"Tutorial {number}", "text": text, "parsed": parsed}


def _stackoverflow(prose: Prose) -> Iterator[Row]:
    for number in itertools.count(1):
        text = f"Q: {prose.text(120)}\n\nA: {prose.text(120)}\n\n{prose.code()}"
        yield {"text": text, "meta": {"post_id": number, "score": number % 9}}


def _fineweb(prose: Prose) -> Iterator[Row]:
    for number in itertools.count(1):
        text = prose.text(780)
        yield {
            "text": text,
            "id": f"<urn:uuid:{number:032x}>",
            "dump": "CC-MAIN-2024-10",
            "url": f"https://example.org/{number}",
            "file_path": f"s3://commoncrawl/crawl-data/CC-MAIN-2024-10/{number % 80000:05}.warc.gz",
            "language": "en",
            "language_score": 0.97,
            "token_count": len(text) // 4,
            "score": 3.1,
            "int_score": 3,
        }


# ---------------------------------------------------------------------------- files


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    with gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as stream:
        for row in rows:
            stream.write(json.dumps(row).encode() + b"\n")


def _write_parquet(path: Path, rows: Iterable[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = iter(rows)
    writer = None
    while some := list(itertools.islice(stream, 1000)):
        table = pa.Table.from_pylist(some)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


@dataclass(frozen=True)
class Format:
    """The format of a corpus in its repository."""

    rows: Callable[[Prose], Iterator[Row]]
    file: str
    card: str = ""  # front matter of its README, if file names do not determine its configurations


_FINEWEB_CARD = """\
configs:
- config_name: sample-10BT
  data_files: [{split: train, path: sample/10BT/*}]
"""
CORPORA = {
    "wikipedia": Format(_wikipedia, "corpus.jsonl.gz"),
    "library-documentation": Format(_library_documentation, "library_docs.json"),
    "online-tutorials": Format(_online_tutorials, "online_tutorials.json"),
    "stackoverflow": Format(_stackoverflow, "stackoverflow_0000.jsonl"),
    "fineweb-edu": Format(_fineweb, "sample/10BT/000_00000.parquet", _FINEWEB_CARD),
}


def write_corpus(corpus: str, folder: Path, field: str, characters: float) -> tuple[int, int]:
    """Write a repository with this many characters of text, without keeping it in memory.

    Returns:
        Its rows and characters.
    """
    form = CORPORA[corpus]
    path = folder / form.file
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\n{form.card}---\n" if form.card else "", "utf-8")
    written = [0, 0]

    def counted() -> Iterator[Row]:
        for row in form.rows(Prose()):
            yield row
            written[0] += 1
            written[1] += len(row[field])
            if written[1] >= characters:
                return

    (_write_parquet if path.suffix == ".parquet" else _write_lines)(path, counted())
    return written[0], written[1]


# ---------------------------------------------------------------------------- measuring


class Chunking:
    """The chunking of one corpus at two sizes."""

    def __init__(
        self, corpus: str, settings: dict[str, Any], folder: Path, gigabytes: float
    ) -> None:
        self.name, self.corpus, self.settings = f"chunk-{corpus}", corpus, settings
        self.folder, self.gigabytes = folder, gigabytes

    @property
    def key(self) -> str:
        """The inputs that the result depends on."""
        return json.dumps([self.settings, self.gigabytes], sort_keys=True)

    @property
    def tflop(self) -> float:
        """The amount of work, in units of a training's."""
        return 2 + 20 * self.gigabytes

    def run(self) -> dict[str, Any]:
        """Chunk a tenth of the text and all of it; return both results and their interpretation.

        Raises:
            Skipped: the disk is too small.
            Failed: a command failed.
        """
        require_disk(self.folder, 4 * self.gigabytes + 1, self.name)
        small, large = (self._measure(self.gigabytes * share) for share in (0.1, 1))
        added = large["rows"] - small["rows"]
        reading, workers = (
            max(0.0, large[key] - small[key]) / added * self._all_rows() / 3600
            for key in ("own_cpu", "workers_cpu")
        )
        cores, hours = profile()
        return {
            "small": small,
            "large": large,
            "flat": large["peak_gb"] <= _FLAT * small["peak_gb"],
            "reading_hours": reading,
            "workers_hours": workers,
            "hours": reading + workers / cores,
            "profile_cores": cores,
            "profile_hours": hours,
        }

    def _all_rows(self) -> int:
        """Return the published number of rows of the whole corpus."""
        wanted = self.settings["dataset"], self.settings.get("subset", "")
        with COUNTS.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if (row["dataset"], row["subset"]) == wanted:
                    return int(row["rows"])
        raise KeyError(f"{COUNTS} has no row of {wanted}")

    def _measure(self, gigabytes: float) -> dict[str, Any]:
        work = self.folder / "text"
        shutil.rmtree(work, ignore_errors=True)
        try:
            print(f"    {gigabytes:g} GB of text", flush=True)
            repository = work / "datasets" / self.settings["dataset"]
            field = self.settings.get("fields", {}).get("text", "text")
            rows, characters = write_corpus(self.corpus, repository, field, gigabytes * 1e9)
            settings = dict(self.settings)
            if "max_documents" in settings:
                share = rows / self._all_rows()
                settings["max_documents"] = _scaled(settings["max_documents"], share)
            output = work / "chunks.parquet"
            with serving(work) as address:
                spent = revela(
                    self.folder / "logs" / f"{self.name}-{gigabytes:g}.log",
                    _surroundings(address, work),
                    "chunk",
                    *("--settings", json.dumps(settings), "--output", str(output)),
                )
            made = json.loads(output.with_suffix(".manifest.json").read_text(encoding="utf-8"))
            return {
                "rows": rows,
                "characters": characters,
                "file_gb": (repository / CORPORA[self.corpus].file).stat().st_size / GB,
                "documents": made["documents"],
                "chunks": made["chunks"],
                **vars(spent),
            }
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _scaled(count: int | dict[str, int], share: float) -> int | dict[str, int]:
    """Return a share of a sample, or of `{first: N}`; at least one document."""
    if isinstance(count, dict):
        return {key: max(1, round(value * share)) for key, value in count.items()}
    return max(1, round(count * share))


def profile() -> tuple[int, float]:
    """Return the cores and hours for chunking a corpus in the profile of a cluster."""
    read = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    runtime = str(read["set-resources"]["chunk"]["runtime"])
    return read["set-threads"]["chunk"], float(runtime.removesuffix("h"))


def _surroundings(address: str, work: Path) -> dict[str, str]:
    """Return an environment with the local hub only."""
    return {
        "HF_ENDPOINT": address,
        "HF_HOME": str(work / "cache"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NLTK_DATA": str(work / "cache" / "nltk"),
        "http_proxy": address,
        "https_proxy": address,
        "no_proxy": "127.0.0.1",
    }
