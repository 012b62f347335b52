"""Miniatures of the corpora and of the batches that the authors published."""

from collections.abc import Callable
from pathlib import Path

from tests.rehearsal.material import articles, functions, write_card, write_jsonl, write_parquet


def _wikipedia(folder: Path) -> None:
    """Passages of 100 words, the consecutive ones of a title being one article."""
    rows = []
    for title, text in articles():
        words = text.split()
        passages = [" ".join(words[n : n + 100]) for n in range(0, len(words), 100)]
        rows += [{"title": title.capitalize(), "text": passage} for passage in passages]
    numbered = ({"docid": str(number), **row} for number, row in enumerate(rows))
    write_jsonl(folder / "corpus.jsonl.gz", numbered)
    (folder / "README.md").write_text("A miniature.\n")


def _library_documentation(folder: Path) -> None:
    rows = [
        {"doc_id": function.name, "doc_content": f"{function.summary}\n\n{function.description}"}
        for function in functions()[:200]
    ]
    write_parquet(folder / "data" / "train-00000-of-00001.parquet", rows)
    write_card(folder, {"default": {"train": "data/train-*"}})


def _online_tutorials(folder: Path) -> None:
    rows = [
        {"title": title, "text": text, "parsed": [{"type": "text", "content": text[:80]}]}
        for title, text in articles()[:30]
    ]
    write_jsonl(folder / "online_tutorials.json", rows)
    (folder / "README.md").write_text("A miniature.\n")


def _stackoverflow(folder: Path) -> None:
    for shard in range(3):
        rows = [
            {"text": f"{function.summary}\n{function.source}", "meta": {"score": shard}}
            for function in functions()[shard * 80 : (shard + 1) * 80]
        ]
        write_jsonl(folder / f"stackoverflow_{shard:04}.jsonl", rows)
    (folder / "README.md").write_text("A miniature.\n")


def _fineweb(folder: Path) -> None:
    rows = [
        {
            "text": text,
            "id": f"<urn:uuid:{number}>",
            "dump": "CC-MAIN-2024-10",
            "url": f"https://example.org/{title}",
            "file_path": "s3://example",
            "language": "en",
            "language_score": 0.9,
            "token_count": len(text) // 4,
            "score": 3.1,
            "int_score": 3,
        }
        for number, (title, text) in enumerate(articles())
    ]
    write_parquet(folder / "data" / "CC-MAIN-2024-10" / "000_00000.parquet", rows)
    write_parquet(folder / "sample" / "10BT" / "000_00000.parquet", rows[:40])
    write_parquet(folder / "sample" / "10BT" / "001_00000.parquet", rows[40:])
    write_card(
        folder,
        {"default": {"train": "data/*/*"}, "sample-10BT": {"train": "sample/10BT/*"}},
    )


def _published_batches(folder: Path) -> None:
    """Batches as lists of 16 texts."""
    write_jsonl(folder / "train.jsonl", _sixteens())


def _published_code_batches(folder: Path) -> None:
    """Batches with the name of their corpus."""
    write_jsonl(folder / "train.jsonl", ({"src": "stackoverflow", "text": b} for b in _sixteens()))


def _sixteens() -> list[list[str]]:
    texts = [function.description for function in functions()]
    return [texts[first : first + 16] for first in range(0, 160, 16)]


WRITERS: dict[str, Callable[[Path], None]] = {
    "Tevatron/wikipedia-nq-corpus": _wikipedia,
    "code-rag-bench/library-documentation": _library_documentation,
    "code-rag-bench/online-tutorials": _online_tutorials,
    "code-rag-bench/stackoverflow-posts": _stackoverflow,
    "HuggingFaceFW/fineweb-edu": _fineweb,
    "trumancai/revela_training_corpus": _published_batches,
    "trumancai/revela_code_training_corpus": _published_code_batches,
}
