"""Chunking: whole sentences, a maximum length, nothing lost, reproducible."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer

from revela.common.errors import RevelaError
from revela.config.text import FilesCorpus
from revela.text import chunking, files
from revela.text.chunking import chunk_corpus, chunk_text, train_punkt
from tests.conftest import TEXTS
from tests.text.test_corpora import rows_file

PUNKT = train_punkt(TEXTS * 20)


CODE = "def f(x):\n    return x\n\n# The end.  Nearly."


@pytest.mark.parametrize(
    ("text", "max_words", "chunks", "cut"),
    [
        ("One two three. Four.\n\nFive six.", 4, ["One two three. Four.", "Five six."], 0),
        (CODE, 100, [CODE], 0),
        ("One. w0 w1 w2 w3 w4 w5 w6. Last.", 3, ["One.", "w0 w1 w2", "w3 w4 w5", "w6. Last."], 1),
        # An abbreviation, even if it is not in the texts that Punkt was trained on.
        ("It rained. He met Dr. Smith.", 5, ["It rained.", "He met Dr. Smith."], 0),
    ],
)
def test_chunks_are_whole_sentences_unless_one_is_too_long(text, max_words, chunks, cut):
    assert chunk_text(text, PUNKT, max_words) == (chunks, cut)


def test_scripts_without_spaces_are_cut_at_sentences_and_characters():
    chunks = ["我喜欢河。我喜欢山！", "你呢？我喜欢河。", "我喜欢山！你呢？"]
    assert chunk_text("".join(chunks), PUNKT, 10)[0] == chunks
    chunks, cut = chunk_text("แม่น้ำไหลผ่านเมือง" * 30, PUNKT, 20)
    assert cut == 1
    assert max(map(len, chunks)) <= 80
    # A quotation does not change how English is cut.
    english = "The word 友達 means friend, like 友人."
    assert chunk_text(english, PUNKT, 7)[0] == [english]
    blob = "A file: " + "QUJD" * 5000
    assert max(map(len, chunk_text(blob, PUNKT, 10)[0])) <= 5000
    assert chunk_text("वह आया। वह गया।", PUNKT, 3)[0] == ["वह आया।", "वह गया।"]


@given(st.text(alphabet="ab .!?\n", max_size=200), st.integers(1, 7))
def test_no_word_is_lost_and_no_chunk_too_long(text, max_words):
    chunks, _ = chunk_text(text, PUNKT, max_words)
    # Punkt may end a sentence within a run such as "??", so words are compared without spaces.
    assert "".join("".join(chunks).split()) == "".join(text.split())
    assert all(0 < len(chunk.split()) <= max_words for chunk in chunks)
    assert all(chunk in text for chunk in chunks)


@given(st.text(alphabet="ab .!?\n'A", max_size=120), st.integers(40, 60))
def test_a_text_longer_than_a_window_is_cut_as_a_whole_one(text, window):
    text = "".join(f"{text[n : n + 20]}. " for n in range(0, len(text), 20))
    with mock.patch.object(chunking, "_WINDOW", len(text) + 1):
        whole = chunk_text(text, PUNKT, 3)
    with mock.patch.object(chunking, "_WINDOW", window):
        assert chunk_text(text, PUNKT, 3) == whole


def test_punkt_sees_texts_of_any_size_in_bounded_pieces(monkeypatch):
    """nltk gives up after five seconds of CPU time."""
    seen = []

    def spy(kind, name):
        plain = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, x: seen.append(len(x)) or plain(self, x))

    spy(PunktSentenceTokenizer, "span_tokenize")
    spy(PunktLanguageVars, "word_tokenize")
    assert len(chunk_text("a. " * 200_000, PUNKT, 7)[0]) > 28_000
    train_punkt(["Rain falls. " * 10_000])
    assert max(seen) <= chunking._WINDOW


def test_any_number_of_workers_gives_the_same_chunks(tmp_path):
    rows = [{"text": " ".join(TEXTS) * (20 + n)} for n in range(30)]
    path = rows_file(tmp_path / "corpus.jsonl", rows)
    corpus = FilesCorpus(source="files", path=path, max_words=20)
    tables = []
    for workers in (1, 3):
        counts = chunk_corpus(corpus, tmp_path / "c.parquet", workers)
        tables.append(pq.read_table(tmp_path / "c.parquet"))
        assert (counts.documents, counts.chunks) == (30, tables[-1].num_rows)
    assert tables[0].equals(tables[1])
    of_ten = tables[0]["document"].to_pylist().index("corpus.jsonl:11")
    for most, documents in ((of_ten, 10), (of_ten - 1, 10), (of_ten + 1, 11), (10**6, 30)):
        cut = corpus.model_copy(update={"max_chunks": most})
        counts = chunk_corpus(cut, tmp_path / "cut.parquet", 2)
        assert counts.documents == documents
        assert pq.read_table(tmp_path / "cut.parquet").equals(tables[0][: counts.chunks])


def test_workers_end_with_a_killed_process(tmp_path):
    """They would keep its output open, so that a job would wait for its log forever."""
    os.mkfifo(tmp_path / "corpus.jsonl")
    settings = json.dumps({"source": "files", "path": str(tmp_path / "corpus.jsonl")})
    command = [sys.executable, "-m", "revela", "chunk", "--settings", settings, "--workers", "2"]
    command += ["--output", str(tmp_path / "c")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        with (tmp_path / "corpus.jsonl").open("w") as stream:
            while not workers.read_text():
                stream.write(json.dumps({"text": " ".join(TEXTS) * 1000}) + "\n")
            process.kill()
            process.communicate(timeout=30)
    finally:
        process.kill()


def test_a_worker_that_is_killed_is_one_line(tmp_path, monkeypatch):
    path = rows_file(tmp_path / "corpus.jsonl", [{"text": "A river."}])
    monkeypatch.setattr(chunking, "_initialize", lambda _: os._exit(9))
    with pytest.raises(RevelaError, match="a worker was killed, probably for lack of memory"):
        chunk_corpus(FilesCorpus(source="files", path=path), tmp_path / "c.parquet", 1)


def test_the_punkt_model_is_given_by_path_or_the_screen_says_which_it_is(tmp_path, capsys):
    rows, model = [{"text": "It rained on Xyz. Hills were wet. All day."}], tmp_path / "english"
    path = rows_file(tmp_path / "corpus.jsonl", rows)
    settings = {"source": "files", "path": path, "max_words": 5}
    chunk_corpus(FilesCorpus(**settings), tmp_path / "a.parquet", 1)
    said = capsys.readouterr().out
    assert said.startswith("sentences are split by punkt trained on the first 1 documents: nltk's")
    assert said.count("\n") == 1
    model.mkdir()
    for name, line in zip(files.PUNKT, ("xyz", "on\txyz", "wet\t32", "all"), strict=True):
        (model / name).write_text(f"{line}\n")
    corpus = FilesCorpus(**settings, punkt=str(model))
    counts = chunk_corpus(corpus, tmp_path / "b.parquet", 1)
    assert counts.sentence_splitter == f"punkt of {model}"
    assert capsys.readouterr().out == ""
    found = [pq.read_table(tmp_path / f"{name}.parquet")["text"].to_pylist() for name in "ab"]
    assert found[0] == ["It rained on Xyz.", "Hills were wet. All day."]
    assert found[1] == ["It rained on Xyz. Hills", "were wet. All day."]  # `xyz.` abbreviates
    assert files.corpus_files(corpus) == [Path(path), *(model / name for name in files.PUNKT)]
    (model / files.PUNKT[0]).unlink()
    with pytest.raises(RevelaError, match=r"english: no Punkt model: no abbrev_types\.txt in it"):
        files.corpus_files(corpus)
