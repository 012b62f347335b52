"""Batches: consecutive chunks, sampling, mixing, the authors' format; and Contriever's pairs."""

import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from revela.common.errors import RevelaError
from revela.config.text import Batches, Pairs
from revela.text import chunking, pairs
from revela.text.batching import make_batches, read_batches, read_jsonl
from revela.text.commands import export_batches
from revela.text.rows import write_parquet
from tests.conftest import TEXTS


def test_one_corpus_alone_is_sampled(tmp_path):
    counts = {"small": 8, "large": 80, "tiny": 5}
    inputs = {name: chunk_file(tmp_path / name, count, name) for name, count in counts.items()}
    settings = {"corpora": [*counts], "batch_size": 4, "sampled": "large"}
    batches, said = made(tmp_path, inputs, **settings, num_batches=10)
    assert said["drawn"] == {"small": 2, "large": 7, "tiny": 1}
    assert said["batches_before_sampling"] == 23
    assert Counter(batch["source"] for batch in batches) == said["drawn"]
    with pytest.raises(RevelaError, match="num_batches 3: the corpora other than 'large' have 3"):
        made(tmp_path, inputs, **settings, num_batches=3)
    with pytest.raises(RevelaError, match="cannot sample 21 rows: only 20 are available"):
        made(tmp_path, inputs, **settings, num_batches=24)


def chunk_file(path, count, prefix="c"):
    rows = [
        {"document": str(n // 5), "position": n % 5, "text": f"{prefix}{n} {TEXTS[n % 5]}"}
        for n in range(count)
    ]
    write_parquet(path, chunking.SCHEMA, rows)
    return path


def made(tmp_path, inputs, **settings):
    output = tmp_path / "batches.parquet"
    counts = make_batches(Batches(**settings), inputs, output)
    return list(read_batches(output)), counts


def test_batches_span_documents_in_order(tmp_path):
    chunks = chunk_file(tmp_path / "c.parquet", 35)
    batches, counts = made(tmp_path, {"c": chunks}, corpora=["c"], batch_size=16)
    assert [len(batch["texts"]) for batch in batches] == [16, 16]
    for key in ("text", "document"):
        expected = pq.read_table(chunks)[key].to_pylist()[:32]
        assert [one for batch in batches for one in batch[f"{key}s"]] == expected
    assert {b["source"] for b in batches} == {"c"}
    assert (counts["batches"], counts["chunks_dropped"]) == (2, 3)


@pytest.mark.parametrize("kind", ["sample", "runs", "batches of a set"])
def test_a_seed_chooses(tmp_path, kind):
    inputs = {"c": chunk_file(tmp_path / "c.chunks", 400)}
    settings = {"corpora": ["c"], "batch_size": 4}
    if kind == "batches of a set":
        make_batches(Batches(**settings), inputs, tmp_path / "whole.parquet")
        inputs = {"whole": tmp_path / "whole.parquet"}
        settings = {"sample_from": {"whole": 9}, "batch_size": 4}
    settings |= {"sample": {"num_batches": 30}, "runs": {"run_length": 2}}.get(kind, {})
    first, same, other = (made(tmp_path, inputs, **settings, seed=s)[0] for s in (1, 1, 2))
    assert first == same != other
    if kind == "sample":
        (numbers,) = zip(*numbers_of(first, 1), strict=True)
        assert numbers == (*sorted(set(numbers)),)
        assert len(numbers) == 30


def numbers_of(batches, count):
    """Return the numbers of the first chunks of each batch."""
    return [[int(text.split()[0][1:]) for text in batch["texts"][:count]] for batch in batches]


def test_runs_come_from_several_places(tmp_path):
    chunks = {"c": chunk_file(tmp_path / "c.parquet", 200)}
    settings = {"corpora": ["c"], "batch_size": 8, "run_length": 2, "seed": 1}
    batches, _ = made(tmp_path, chunks, **settings)
    numbers = numbers_of(batches, 8)
    for batch in numbers:
        assert all(batch[n + 1] == batch[n] + 1 for n in range(0, 8, 2))
    assert sorted(n for batch in numbers for n in batch) == list(range(200))
    per_document = pq.read_table(chunks["c"])["document"].to_pylist()
    documents = [document for batch in batches for document in batch["documents"]]
    assert documents == [per_document[n] for batch in numbers for n in batch]
    assert any(batch[2] != batch[1] + 1 for batch in numbers)


def test_a_mixture_takes_so_many_of_each(tmp_path):
    sets = {}
    for name in ("a", "b"):
        chunks = chunk_file(tmp_path / f"{name}.chunks", 80, name)
        sets[name] = tmp_path / f"{name}.parquet"
        make_batches(Batches(corpora=[name], batch_size=4), {name: chunks}, sets[name])
    batches, _ = made(tmp_path, sets, sample_from={"a": 3, "b": 5}, batch_size=4)
    assert [b["source"] for b in batches] == ["a"] * 3 + ["b"] * 5
    with pytest.raises(
        RevelaError, match="batch set 'a' has batches of 4, not a multiple of batch"
    ):
        made(tmp_path, sets, sample_from={"a": 3}, batch_size=8)


def test_batches_of_a_set_are_split_or_truncated(tmp_path):
    """As the authors truncate: the same number of batches, and so of steps."""
    chunks, whole = {"c": chunk_file(tmp_path / "c.chunks", 80)}, tmp_path / "whole.parquet"
    make_batches(Batches(corpora=["c"], batch_size=8, num_batches=6), chunks, whole)
    inputs, settings = {"whole": whole}, {"sample_from": {"whole": 6}, "batch_size": 4}
    originals = list(read_batches(whole))
    halves, counts = made(tmp_path, inputs, **settings)
    assert counts["batches"] == counts["batches_before_sampling"] == 12
    first, counts = made(tmp_path, inputs, **settings, oversized="truncate")
    assert counts["batches"] == counts["batches_before_sampling"] == 6
    for key in ("texts", "documents"):
        assert [one for b in halves for one in b[key]] == [one for b in originals for one in b[key]]
        assert [b[key] for b in first] == [b[key][:4] for b in originals]
    assert len(made(tmp_path, inputs, **settings, num_batches=11)[0]) == 11


def test_the_first_batches(tmp_path):
    chunks = {"c": chunk_file(tmp_path / "c.parquet", 48)}
    settings = {"corpora": ["c"], "batch_size": 4}
    every, _ = made(tmp_path, chunks, **settings)
    first, _ = made(tmp_path, chunks, **settings, num_batches={"first": 5})
    assert first == every[:5]
    with pytest.raises(RevelaError, match="cannot take the first 13 rows: only 12 are available"):
        made(tmp_path, chunks, **settings, num_batches={"first": 13})


def test_the_authors_format_is_read_and_written(tmp_path):
    path = tmp_path / "authors.jsonl"
    lines = [["a", "b"], {"src": "stackoverflow", "text": ["c\n  d", "é"]}]
    lines += [{"src": src, "text": ["e", "f"]} for src in (None, "")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = {"source": "wiki", "sources": {"stackoverflow": "code"}}
    batches, _ = made(tmp_path, {}, file=str(path), batch_size=2, **known)
    assert [batch["source"] for batch in batches] == ["wiki", "code", "wiki", "wiki"]
    assert batches[1] == {"source": "code", "texts": ["c\n  d", "é"], "documents": None}
    export_batches(tmp_path / "batches.parquet", tmp_path / "again.jsonl")
    settings = Batches(file="again.jsonl", batch_size=2, source="wiki", sources={"s": "code"})
    assert list(read_jsonl(tmp_path / "again.jsonl", settings)) == batches


def test_pairs_and_their_negatives(tmp_path):
    sentence = "{0}alpha {0}beta {0}gamma."  # every word identifies its document
    documents = [(f"d{n}", " ".join([sentence.format(f"d{n}-")] * 3)) for n in range(15)] * 4
    settings = {"num_pairs": 40, "negatives": 15, "seed": 3}
    first, again = (paired(tmp_path, sorted(documents), **settings) for _ in range(2))
    assert first == again
    assert len(first) == 40
    assert 5 < sum(len(row["query"].split()) == 3 for row in first) < 35  # a whole sentence
    for row in first:
        assert len(row["negatives"]) == 15
        (own,) = {word.split("-")[0] for word in (row["query"] + " " + row["positive"]).split()}
        for negative in row["negatives"]:
            assert own not in {word.split("-")[0] for word in negative.split()}


def paired(tmp_path, documents, **settings):
    """Return pairs of the chunks of some documents: (id, text) each."""
    path, output = tmp_path / "c.parquet", tmp_path / "pairs.parquet"
    rows = [{"document": name, "position": n, "text": t} for n, (name, t) in enumerate(documents)]
    write_parquet(path, chunking.SCHEMA, rows)
    pairs.make_pairs(Pairs(corpora=["c"], **settings), {"c": path}, output)
    return pq.read_table(output).to_pylist()


def chunk_of(text: str, whole: str = "") -> pairs.Chunk:
    return pairs.Chunk("c", "d", text, whole or text)


def test_the_sentence_of_an_inverse_cloze_is_whole():
    sentences = ['"Is it 3.5 m?"', "she said.", "(Nobody.)", "self.x = np.sum(x)", '"Yes … it is!"']
    text = "{} {} {}\n{}\n)\n\n{} End".format(*sentences)
    drawn = {pairs.inverse_cloze(chunk_of(text), random.Random(n))[0] for n in range(100)}
    assert drawn == {*sentences, "End"}
    query, positive = pairs.inverse_cloze(chunk_of("我喜欢河。你呢？"), random.Random(0))
    assert {query, positive} == {"我喜欢河。", "你呢？"}
    assert pairs.inverse_cloze(chunk_of("Only one here."), random.Random(0)) is None


@given(st.text(alphabet='ab.!") \n', max_size=80), st.integers(0, 99))
def test_inverse_cloze_loses_no_word(text, seed):
    if pair := pairs.inverse_cloze(chunk_of(text), random.Random(seed)):
        assert sorted(" ".join(pair).split()) == sorted(text.split())


@given(st.text(alphabet="ab \n", min_size=1, max_size=80), st.integers(0, 99))
def test_crops_are_spans_of_whole_words(text, seed):
    crops = pairs.independent_crops(chunk_of(text), random.Random(seed))
    words = text.split()
    if len(words) < 2:
        assert crops is None
        return
    for crop in crops:
        assert crop in text
        assert 0 < len(crop.split()) <= max(1, round(0.6 * len(words)))


def test_crops_come_from_the_whole_document(tmp_path):
    documents = [(f"d{n // 20}", f"c{n % 20} " * 30) for n in range(100)]
    rows = paired(tmp_path, documents, negatives=1, inverse_cloze=0)
    apart = [not set(row["query"].split()) & set(row["positive"].split()) for row in rows]
    assert sum(apart) > 70


@pytest.mark.parametrize("inverse_cloze", [0, 1])
def test_the_length_of_a_positive_does_not_identify_it(tmp_path, inverse_cloze):
    choose = random.Random(0)
    documents = [
        (f"d{n // 4}", "".join(f"{'word ' * choose.randint(2, 12)}end. " for _ in range(6)))
        for n in range(400)
    ]
    rows = paired(tmp_path, documents, negatives=5, inverse_cloze=inverse_cloze)
    longer = [
        len(row["positive"].split()) - len(negative.split())
        for row in rows
        for negative in row["negatives"]
    ]
    assert abs(np.sign(longer).mean()) < 0.1


def test_negatives_of_a_document_that_is_nearly_the_whole_corpus(tmp_path):
    documents = [(name, f"{name} {name}. {name}.") for name in ["book"] * 3000 + ["note"]]
    rows = paired(tmp_path, documents, num_pairs=20)
    negatives = [negative for row in rows for negative in row["negatives"]]
    assert len(negatives) == 20 * 15
    assert all("note" in negative for negative in negatives)


@pytest.mark.parametrize("seed", range(3))
def test_negatives_where_one_chunk_has_two_sentences(tmp_path, seed):
    texts = ["just one sentence here"] * 200 + ["A first one. A second one. A third one."]
    assert len(paired(tmp_path, [(str(n), text) for n, text in enumerate(texts)], seed=seed)) == 201


def test_negatives_need_two_documents(tmp_path):
    documents = [("d", "A first one. A second one.")] * 20
    rows = paired(tmp_path, documents, negatives=0)
    assert [row["negatives"] for row in rows] == [[]] * 20
    with pytest.raises(RevelaError, match="at least two documents"):
        paired(tmp_path, documents)


def test_documents_of_two_corpora_may_have_the_same_id(tmp_path):
    inputs = {n: chunk_file(tmp_path / f"{n}.parquet", 5, n) for n in ("x", "y")}
    settings = Pairs(corpora=["x", "y"], negatives=3)
    assert pairs.make_pairs(settings, inputs, tmp_path / "pairs.parquet")["pairs"] == 10


@pytest.mark.parametrize("run_length", [None, 2])
def test_nulls_are_found_without_the_statistics_that_tell_of_them(tmp_path, run_length):
    rows = [{"document": "d", "text": text} for text in ("a", None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", write_statistics=False)
    chunks = {"c": tmp_path / "c.parquet"}
    with pytest.raises(RevelaError, match="column 'text' has null"):
        made(tmp_path, chunks, corpora=["c"], batch_size=2, run_length=run_length)
