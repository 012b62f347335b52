"""Corpora: every source and every bad row."""

import gzip
import json
import lzma

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from revela.common.errors import RevelaError
from revela.config.steps import AnyCorpus, parse_settings
from revela.text.corpora import Skipped, read_documents


def documents(skipped=None, **settings):
    corpus = parse_settings(AnyCorpus, json.dumps(settings))
    return list(read_documents(corpus, skipped or Skipped()))


def rows_file(path, rows):
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


ROWS = [{"key": n, "head": f"t{n}", "body": f"text {n}\n  indented"} for n in range(5)]
FIELDS = {"id": "key", "title": "head", "text": "body"}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.xz", "rows.parquet"])
def test_local_rows(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        rows_file(path, ROWS)
    found = documents(source="files", path=str(path), fields=FIELDS)
    assert [(d.id, d.title, d.text) for d in found] == [
        (str(row["key"]), row["head"], row["body"]) for row in ROWS
    ]


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "b.md").write_text("# B")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("A\n\nline")
    (tmp_path / "picture.png").write_bytes(b"\x89")
    assert [d.text for d in documents(source="files", path=str(tmp_path))] == ["# B", "A\n\nline"]


def test_consecutive_passages_of_a_title_are_joined(tmp_path):
    passages = [("A", "one"), ("A", "two"), ("B", "three"), ("A", "four")]
    rows = [{"docid": str(n), "title": t, "text": x} for n, (t, x) in enumerate(passages)]
    path = rows_file(tmp_path / "corpus.jsonl.gz", rows)
    fields = {"id": "docid", "title": "title", "text": "text"}
    found = documents(source="files", path=path, fields=fields, join_title=True)
    assert [(d.id, d.text) for d in found] == [("0", "one two"), ("2", "three"), ("3", "four")]


def test_documents_are_left_out_by_their_id(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", ROWS)
    found = documents(
        source="files", path=path, fields=FIELDS, exclude=["3", "none"], max_documents=9
    )
    assert [d.id for d in found] == ["0", "1", "2", "4"]


def test_a_sample_is_seeded_and_in_order(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [{"text": f"{n:03}"} for n in range(100)])
    samples = [
        [d.text for d in documents(source="files", path=path, max_documents=10, seed=seed)]
        for seed in (0, 0, 1)
    ]
    assert samples[0] == samples[1] != samples[2]
    assert samples[0] == sorted(samples[0])
    assert len(samples[0]) == 10


def test_installed_packages():
    found = documents(source="python-packages", packages=["nltk"])
    ids = [d.id for d in found]
    assert ids[0] == "nltk/README"
    assert "nltk/tokenize/punkt.py" in ids
    assert ids[1:] == sorted(ids[1:])
    assert not [i for i in ids if "/test/" in i]
    with pytest.raises(RevelaError, match="package 'nltkk' is not installed"):
        documents(source="python-packages", packages=["nltkk"])


def test_a_hub_set_from_a_folder(tmp_path):
    rows_file(tmp_path / "train.jsonl", [{"text": "one"}, {"text": "two"}])
    found = documents(source="hub", dataset=str(tmp_path))
    assert [d.text for d in found] == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "broken', r"rows\.jsonl:2: broken JSON"),
        (b'{"text": "\xff\xfe"}', r"rows\.jsonl:2: invalid UTF-8"),
        (b'{"txt": "x"}', r"rows\.jsonl:2: unknown field 'text'; did you mean 'txt'"),
        (b'{"text": "  "}', r"rows\.jsonl:2: field 'text' is empty"),
        (b'{"text": 7}', r"rows\.jsonl:2: field 'text' is not a string but int"),
        (b'{"text": "\\ud800"}', r"rows\.jsonl:2: field 'text': invalid UTF-8"),
        (b"[1, 2]", r"rows\.jsonl:2: expected an object with fields, got list"),
    ],
)
def test_a_bad_row_is_an_error_or_skipped(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "also good"}\n')
    with pytest.raises(RevelaError, match=message):
        documents(source="files", path=str(path))
    skipped = Skipped()
    found = documents(skipped, source="files", path=str(path), on_bad_row="skip")
    assert [d.text for d in found] == ["good", "also good"]
    assert skipped.count == len(skipped.examples) == 1


def test_sources_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 9999)[:60])
    (tmp_path / "rows.csv").write_text("text")
    (tmp_path / "bad.parquet").write_text("no parquet")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "none.jsonl": "no such file",
        "rows.csv": "unknown format",
        "cut.jsonl.gz": "cannot be read",
        "bad.parquet": "not a readable Parquet file",
        "empty": "no .txt",
    }.items():
        with pytest.raises(RevelaError, match=message):
            documents(source="files", path=str(tmp_path / name))


def test_a_hub_set_that_cannot_be_reached(monkeypatch):
    with pytest.raises(RevelaError, match="hub cannot be reached"):
        documents(source="hub", dataset="somebody/something")
    with pytest.raises(RevelaError, match="hub cannot be reached"):
        documents(source="hub", dataset="somebody/something", file="corpus.jsonl.gz")

    class GatedRepoError(Exception):
        pass

    def gated(*_, **__):
        raise GatedRepoError("Access to this dataset is restricted")

    monkeypatch.setattr(datasets, "load_dataset", gated)
    with pytest.raises(RevelaError, match=r"is gated: accept its terms .* HF_TOKEN"):
        documents(source="hub", dataset="somebody/something")
