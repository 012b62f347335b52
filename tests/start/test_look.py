"""Estimated sizes of corpora: compared with actual ones, and with what `config.yaml` asks."""

import gzip
import json
import random
from pathlib import Path

import pandas as pd
import pytest

from revela.config import load_config
from revela.config.text import Batches, FilesCorpus
from revela.start.look import chunks_of, look
from revela.text.batching import make_batches
from revela.text.chunking import chunk_corpus
from revela.text.corpora import Skipped

ROOT = Path(__file__).parents[2]


def test_corpora_of_the_paper_yield_what_is_asked_of_them(monkeypatch):
    """By their published sizes."""
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "config.yaml")
    published = pd.read_csv("data/paper/corpora.csv", index_col="dataset")
    chunks = {}
    for name, corpus in config.corpora.items():
        known = published.loc[corpus.dataset].dropna()
        documents = known["titles"] if corpus.join_title else known["rows"]
        words = known["rows"] * known["words_per_row"] / documents
        documents = min(documents, corpus.max_documents or documents)
        available = chunks_of(documents, words, corpus.max_words)
        chunks[name] = min(available, corpus.max_chunks or available)
    made = {}
    for name, entry in config.batches.items():
        asked = getattr(entry.num_batches, "first", entry.num_batches)
        if entry.corpora:
            made[name] = sum(chunks[corpus] // entry.batch_size for corpus in entry.corpora)
            assert asked <= made[name], name
        elif entry.hub:
            made[name] = published.loc[entry.hub, "rows"]
        made[name] = asked or made.get(name) or sum(entry.sample_from.values())
        assert all(count <= made[other] for other, count in entry.sample_from.items()), name
    assert (made["code"], made["wikipedia"]) == (358_763, 320_000)
    for name, pairs in config.pairs.items():
        assert pairs.num_pairs <= sum(chunks[corpus] for corpus in pairs.corpora), name


def test_size_of_a_corpus_is_estimated_from_its_first_documents(tmp_path):
    draw = random.Random(0)
    vocabulary = ["river", "water", "stone", "field", "winter", "harvest", "bridge", "market"]

    def sentence() -> str:
        return " ".join(draw.choices(vocabulary, k=draw.randint(8, 32))).capitalize() + "."

    texts = [" ".join(sentence() for _ in range(draw.randint(5, 12))) for _ in range(2_500)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = FilesCorpus(source="files", path=str(path))
    documents, words, sample = look(corpus, Skipped())
    assert len(sample) == 1000
    assert documents == pytest.approx(2_500, rel=0.1)
    assert words * documents == pytest.approx(sum(len(text.split()) for text in texts), rel=0.1)
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    documents, *_ = look(corpus.model_copy(update={"path": str(packed)}), Skipped())
    assert documents == pytest.approx(2_500, rel=0.1)
    made = chunk_corpus(corpus, tmp_path / "chunks.parquet", workers=1)
    estimate = chunks_of(documents, words, corpus.max_words)
    assert estimate == pytest.approx(made.chunks, rel=0.15)
    inputs = {"mine": tmp_path / "chunks.parquet"}
    batches = make_batches(Batches(corpora=["mine"]), inputs, tmp_path / "batches.parquet")
    assert estimate // 16 == pytest.approx(batches["batches"], rel=0.15)
