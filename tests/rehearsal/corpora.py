"""Miniatures of the corpora and of the authors' published batches.

Each has 1/`DATA` of the real one's rows, which have the real average length.
"""

import csv
import random
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

from tests.rehearsal.material import articles, functions, write_card, write_jsonl, write_parquet
from tests.rehearsal.miniature import DATA

COUNTS = Path(__file__).parents[2] / "data" / "paper" / "corpora.csv"
_LEAST = 8  # documents of a corpus, which are more chunks than a batch


@cache
def counted(dataset: str) -> dict[str, float]:
    """Return known counts of a data set: rows, words per row, titles."""
    with COUNTS.open(encoding="utf-8", newline="") as stream:
        (row,) = (row for row in csv.DictReader(stream) if row["dataset"] == dataset)
    known = ("rows", "words_per_row", "titles")
    return {key: float(row[key]) for key in known if row[key]}


def _texts(dataset: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for all rows of the miniature, of about the right length."""
    of_all = counted(dataset)
    count = max(_LEAST, round(of_all["rows"] / DATA))
    return _documents(dataset, count, of_all["words_per_row"])


def _documents(seed: str, count: int, words_each: float) -> Iterator[tuple[str, str]]:
    """Yield documents of whole sentences, half to one and a half times the requested length."""
    rng = random.Random(seed)
    titles = [title for title, _ in articles()]
    for number in range(count):
        length = words_each * rng.uniform(0.5, 1.5)
        sentences, words = [], 0
        while words < length:
            sentence = rng.choice(_sentences())
            sentences.append(sentence)
            words += len(sentence.split())
        yield f"{titles[number % len(titles)].capitalize()} {number}", " ".join(sentences)


@cache
def _sentences() -> list[str]:
    found = (line.strip() for _, text in articles() for line in text.split(". "))
    return [f"{' '.join(line.split())}." for line in found if 4 < len(line.split()) < 40]


def _wikipedia(folder: Path) -> None:
    """Write passages of 100 words; the last one of an article is filled up from its beginning."""
    of_all = counted("Tevatron/wikipedia-nq-corpus")
    titles = round(of_all["titles"] / DATA)
    length = of_all["rows"] * of_all["words_per_row"] / of_all["titles"]
    rows = []
    for title, text in _documents("wikipedia", titles, length):
        words = text.split()
        words += words[: -len(words) % 100]
        passages = [" ".join(words[n : n + 100]) for n in range(0, len(words), 100)]
        rows += [{"title": title, "text": passage} for passage in passages]
    numbered = ({"docid": str(number), **row} for number, row in enumerate(rows))
    write_jsonl(folder / "corpus.jsonl.gz", numbered)


def _library_documentation(folder: Path) -> None:
    texts = _texts("code-rag-bench/library-documentation")
    rows = [{"doc_id": title, "doc_content": text} for title, text in texts]
    write_parquet(folder / "data" / "train-00000-of-00001.parquet", rows)
    write_card(folder, {"default": {"train": "data/train-*"}})


def _online_tutorials(folder: Path) -> None:
    rows = [
        {"title": title, "text": text, "parsed": [{"type": "text", "content": text[:80]}]}
        for title, text in _texts("code-rag-bench/online-tutorials")
    ]
    write_jsonl(folder / "online_tutorials.json", rows)


def _stackoverflow(folder: Path) -> None:
    """Question and answer, with code, in ten shards."""
    code = cycle(functions())
    rows = [
        {"text": f"{title}?\n{text}\n{next(code).source[:200]}", "meta": {"score": number % 7}}
        for number, (title, text) in enumerate(_texts("code-rag-bench/stackoverflow-posts"))
    ]
    for shard in range(10):
        write_jsonl(folder / f"stackoverflow_{shard:04}.jsonl", rows[shard::10])


def _fineweb(folder: Path) -> None:
    same = {"dump": "CC-MAIN-2024-10", "file_path": "s3://example", "language": "en"}
    same |= {"language_score": 0.9, "score": 3.1, "int_score": 3}
    rows = [
        {"text": text, "id": f"<urn:uuid:{number}>", "url": f"https://example.org/{number}"}
        | {"token_count": len(text) // 4, **same}
        for number, (_, text) in enumerate(_texts("HuggingFaceFW/fineweb-edu"))
    ]
    half = len(rows) // 2
    write_parquet(folder / "data" / "CC-MAIN-2024-10" / "000_00000.parquet", rows[:40])
    write_parquet(folder / "sample" / "10BT" / "000_00000.parquet", rows[:half])
    write_parquet(folder / "sample" / "10BT" / "001_00000.parquet", rows[half:])
    sample = {"train": "sample/10BT/*"}
    write_card(folder, {"default": {"train": "data/*/*"}, "sample-10BT": sample})


def _published_batches(folder: Path) -> None:
    """Batches as lists of 16 texts."""
    write_jsonl(folder / "train.jsonl", _sixteens("trumancai/revela_training_corpus"))


def _published_code_batches(folder: Path) -> None:
    """Batches with the name of their corpus."""
    batches = _sixteens("trumancai/revela_code_training_corpus")
    write_jsonl(folder / "train.jsonl", ({"src": "stackoverflow", "text": t} for t in batches))


def _sixteens(dataset: str) -> Iterator[list[str]]:
    count = round(counted(dataset)["rows"] / DATA)
    texts = (text for _, text in _documents(dataset, 16 * count, 70))
    return (list(batch) for batch in zip(*[texts] * 16, strict=True))


WRITERS: dict[str, Callable[[Path], None]] = {
    "Tevatron/wikipedia-nq-corpus": _wikipedia,
    "code-rag-bench/library-documentation": _library_documentation,
    "code-rag-bench/online-tutorials": _online_tutorials,
    "code-rag-bench/stackoverflow-posts": _stackoverflow,
    "HuggingFaceFW/fineweb-edu": _fineweb,
    "trumancai/revela_training_corpus": _published_batches,
    "trumancai/revela_code_training_corpus": _published_code_batches,
}
