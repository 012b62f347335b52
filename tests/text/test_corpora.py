"""Corpora: every source and every bad row."""

import gzip
import json
import lzma
import os
from pathlib import Path
from unittest import mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from revela.common.errors import RevelaError
from revela.config.settings import parse_settings
from revela.config.text import AnyCorpus, FilesCorpus, HubFiles
from revela.evaluation.benchmarks import read_rows
from revela.evaluation.embeddings import passage
from revela.start.look import look
from revela.text.chunking import chunk_corpus
from revela.text.corpora import Skipped, place, read_documents
from revela.text.downloads import download
from revela.text.fields import field_names
from revela.text.files import text_files, unread_files


def documents(skipped=None, source="files", **settings):
    corpus = parse_settings(AnyCorpus, json.dumps(settings | {"source": source}, default=str))
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
        far = pa.array([10**16] * 5, pa.timestamp("us"))  # no Python date: not to be read
        pq.write_table(pa.Table.from_pylist(ROWS).append_column("when", far), path)
    else:
        rows_file(path, ROWS)
    found = [(d.id, d.title, d.text) for d in documents(path=path, fields=FIELDS)]
    assert found == [(str(row["key"]), row["head"], row["body"]) for row in ROWS]


def test_a_text_that_cannot_be_read_and_a_name_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("A")
    with monkeypatch.context() as denied:
        denied.setattr(Path, "read_bytes", mock.Mock(side_effect=PermissionError(13, "denied")))
        with pytest.raises(RevelaError, match=r"a\.txt: denied"):
            documents(path=tmp_path, on_bad_row="skip")
    Path(os.fsdecode(b"%s/caf\xe9.txt" % bytes(tmp_path))).write_text("B")
    with pytest.raises(RevelaError, match=r"caf\\udce9\.txt': rename it: its name is not UTF-8"):
        documents(path=tmp_path)


def test_rows_without_an_id_or_title_stay_apart(tmp_path):
    rows = [{"id": "a", "title": "A", "text": "one"}]
    rows += [{"id": None, "title": None, "text": text} for text in ("two", "three")]
    path = rows_file(tmp_path / "rows.jsonl", rows)
    for joined in (False, True):
        found = documents(path=path, fields={"id": "id", "title": "title"}, join_title=joined)
        expected = [("a", "one"), ("rows.jsonl:2", "two"), ("rows.jsonl:3", "three")]
        assert [(d.id, d.text) for d in found] == expected


def test_ids_do_not_depend_on_where_the_texts_are(tmp_path, monkeypatch):
    for home in ("a", "b"):
        texts = tmp_path / home / "texts"
        (texts / "sub").mkdir(parents=True)
        rows_file(texts / "sub" / "rows.jsonl", [{"text": "one"}])
        rows_file(texts / "rows.jsonl", [{"text": "two"}])
        monkeypatch.chdir(tmp_path / home)
        for path in (str(texts), "texts", "./texts/", "../" + home + "/texts"):
            found = documents(path=path)
            assert [d.id for d in found] == ["rows.jsonl:1", "sub/rows.jsonl:1"], path
        (found,) = documents(path=str(texts / "sub" / "rows.jsonl"))
        assert found.id == "rows.jsonl:1"


def test_consecutive_passages_of_a_title_are_joined(tmp_path):
    passages = zip("0123", "AABA", ("one", "two", "three", "four"), strict=True)
    rows = [{"docid": name, "title": title, "text": text} for name, title, text in passages]
    path = rows_file(tmp_path / "corpus.jsonl.gz", rows)
    found = documents(path=path, fields={"id": "docid", "title": "title"}, join_title=True)
    assert [(d.id, d.text) for d in found] == [("0", "one two"), ("2", "three"), ("3", "four")]


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({"max_documents": 3}, "034"),
        ({"max_documents": 3, "seed": 1}, "014"),
        ({"exclude": ["3", "none"], "max_documents": 9}, "0124"),
        ({"max_documents": {"first": 3}}, "012"),
        ({"max_documents": {"first": 30}}, "01234"),
    ],
)
def test_documents_are_chosen(tmp_path, chosen, ids):
    path = rows_file(tmp_path / "rows.jsonl", ROWS)
    found = documents(path=path, fields=FIELDS, **chosen)
    assert [d.id for d in found] == list(ids)


def test_shares_of_a_corpus_are_disjoint_and_complete(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows_file(path, [{"key": n, "head": "", "body": f"text {n}"} for n in range(500)])

    def ids(**settings):
        found = documents(path=path, fields=FIELDS, **settings)
        return [document.id for document in found]

    train, test = ids(share=(0, 0.9)), ids(share=(0.9, 1))
    assert 20 < len(test) < 80
    assert not set(train) & set(test)
    assert sorted(train + test, key=int) == ids() == [str(n) for n in range(500)]
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert ids(share=(0.9, 1)) == test[::-1]  # whatever the other documents are


def test_installed_packages():
    ids = [d.id for d in documents(source="python-packages", packages=["nltk"])]
    assert ids[0] == "nltk/README"
    assert "nltk/tokenize/punkt.py" in ids
    assert ids[1:] == sorted(ids[1:])
    assert not [i for i in ids if "/test/" in i]


@pytest.mark.parametrize(  # the messages of others are those of tests/bad_input/cases.yaml
    "line", [b'{"text": "broken', b'{"text": "\xff\xfe"}', b'{"txt": "x"}', b'{"text": "\\ud800"}']
)
def test_a_bad_row_is_an_error_or_skipped(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "also good"}\n')
    with pytest.raises(RevelaError, match=r"rows\.jsonl:2: "):
        documents(path=path)
    found = documents(skipped := Skipped(), path=path, on_bad_row="skip")
    assert [d.text for d in found] == ["good", "also good"]
    assert skipped.count == len(skipped.examples) == 1


def test_a_file_that_was_cut(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 9999)[:60])
    with pytest.raises(RevelaError, match="cannot be read"):
        documents(path=str(tmp_path / "cut.jsonl.gz"))


def test_a_hub_set_that_cannot_be_reached(tmp_path, monkeypatch):
    for file in (None, "corpus.jsonl.gz"):
        with pytest.raises(RevelaError, match="hub cannot be reached"):
            download(HubFiles(dataset="somebody/something", file=file), tmp_path / "listing.json")

    error = datasets.exceptions.DatasetNotFoundError("'x' is a gated dataset on the Hub.")
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", mock.Mock(side_effect=error))
    with pytest.raises(RevelaError, match=r"is gated: accept its terms .* HF_TOKEN"):
        download(HubFiles(dataset="somebody/something"), tmp_path / "listing.json")


WORDS = [f"w{n}" for n in range(1000)]


@pytest.mark.parametrize("count", [40, 137, 250, 300, 397])
def test_the_copied_beginning_of_an_article_is_removed(tmp_path, count):
    """The last passage of an article is filled from its beginning."""
    words = WORDS[:count]
    filled = words + words[: -count % 100]
    passages = [" ".join(filled[n : n + 100]) for n in range(0, len(filled), 100)]
    rows = [{"title": "A", "text": text} for text in passages] + [{"title": "B", "text": "b c d"}]
    path = rows_file(tmp_path / "corpus.jsonl", rows)
    found = documents(skipped := Skipped(), path=path, fields={"title": "title"}, join_title=True)
    assert found[0].text.split() == words
    assert skipped.copied_beginnings == (count % 100 > 0)
    assert found[1].text == "b c d"


def test_too_many_bad_rows_are_an_error(tmp_path):
    def read(rows):
        return documents(path=rows_file(tmp_path / "rows.jsonl", rows), on_bad_row="skip")

    bad, good = [{"text": ""}], [{"text": "good"}]
    with pytest.raises(RevelaError, match=r"180 of 9000 rows are bad, .*rows\.jsonl:1: .* empty"):
        read((bad + good * 49) * 180)
    # However they are distributed, and however few there are.
    assert len(read(bad * 150 + good * 20_000)) == 20_000
    with pytest.raises(RevelaError, match="60 of 100 rows"):
        read(bad * 60 + good * 40)


def test_texts_are_cleaned_and_what_is_odd_is_counted(tmp_path):
    texts = ("\ufeffA river.", "Nulls\0 in it.", "… --- !?", "Another river.")
    rows = [{"key": key, "text": text} for key, text in zip("abca", texts, strict=True)]
    path = Path(rows_file(tmp_path / "x.jsonl", rows))
    path.write_text("\ufeff" + path.read_text())
    found = documents(skipped := Skipped(), path=path, fields={"id": "key"})
    assert [document.text for document in found] == ["A river.", "Nulls in it.", "Another river."]
    assert (skipped.cleaned, skipped.wordless, skipped.repeated_ids) == (2, 1, 1)


def test_a_folder_is_read_whole_or_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "B.TXT", ".hidden/c.md", "sub/d.md", "results/tables/e.md", "f.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("One sentence.")
    (tmp_path / "linked").symlink_to(tmp_path / "sub")
    assert text_files(Path()) == [Path("B.TXT"), Path("a.md"), Path("sub/d.md")]
    assert unread_files(Path()) == ["f.csv", "linked (a link)"]
    assert text_files(Path("results/tables")) == [Path("results/tables/e.md")]
    with monkeypatch.context() as denied:
        denied.setattr("os.scandir", mock.Mock(side_effect=PermissionError(13, "Denied", "sub")))
        with pytest.raises(RevelaError, match=r"^sub: Denied$"):
            text_files(Path())
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(RevelaError, match=r"both files of rows and plain texts, such as B\.TXT"):
        text_files(Path())


NEWS = [{"id": n, "text": f"Naïve “text” number {n},\tof rain."} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in NEWS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wiki_00", LINES),
        ("rows.json", LINES),
        ("rows.json", json.dumps(NEWS, indent=1)),
        ("rows.ndjson", LINES),
        ("rows.csv", "id;text\n" + "".join(f'{n["id"]};"{n["text"]}"\n' for n in NEWS)),
        ("rows.csv", "id,text\n" + "".join(f'{n["id"]},"{n["text"]}"\n' for n in NEWS)),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_rows_are_told_by_content_whatever_the_name_and_encoding(tmp_path, name, text, encoding):
    (tmp_path / name).write_text(text, encoding)
    (tmp_path / "README.md").write_text("# About these rows")
    for other in ("picture", "broken.gz"):
        (tmp_path / other).write_bytes(bytes(range(256)))
    for path in (tmp_path, tmp_path / name):
        found = documents(path=path, fields={"id": "id"})
        assert [(d.id, d.text) for d in found] == [(str(n["id"]), n["text"]) for n in NEWS]


def test_tables_of_tabs(tmp_path):
    """Quotes are text, a cell may hold a book, and a row of another width is bad."""
    book = "A book. " * 50_000
    path = tmp_path / "rows.tsv"
    path.write_text(f'id\ttext\n1\t"To be\n2\t{book}\n\n3\n4\tMore of it.\n')
    found = documents(skipped := Skipped(), path=path, on_bad_row="skip")
    assert [d.text for d in found] == ['"To be', book, "More of it."]
    assert skipped.examples == [f"{path}:5: 1 cells below 2 names"]
    path.write_text('id\ttitle\ttext\n1\tT\t"To be\n or ""not"""\n2\tT\tto be\n\n')
    assert [d.text for d in documents(path=path)] == ['To be\n or "not"', "to be"]
    path.write_text("1\tTo be\n2\tor not\n")
    with pytest.raises(RevelaError, match=r"rows\.tsv: unknown format; allowed: .*with a header"):
        documents(path=path)
    path.write_bytes(b"text\nGr\xfc\xdfe\n")
    with pytest.raises(RevelaError, match=r"rows\.tsv: not UTF-8: .* give the corpus `encoding:`"):
        documents(path=path)
    (found,) = documents(path=path, encoding="latin-1")
    assert found.text == "Grüße"


def test_a_snapshot_of_the_hub(tmp_path):
    """What lies beside its rows is no text; in a folder without rows a README is one."""
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(NEWS), tmp_path / "data" / "train-00000-of-00001.parquet")
    for name in ("README.md", "LICENSE.txt", "dataset_infos.json", ".gitattributes"):
        (tmp_path / name).write_text("{'about': 1}\n")
    assert len(documents(path=tmp_path)) == 3
    (tmp_path / "notes.md").write_text("Some notes.")
    with pytest.raises(RevelaError, match=r"both files of rows and plain texts, such as notes\.md"):
        documents(path=tmp_path)
    (tmp_path / "data/train-00000-of-00001.parquet").unlink()
    names = [Path(d.id).name for d in documents(path=tmp_path)]
    assert names == ["LICENSE.txt", "README.md", "notes.md"]


def test_texts_of_other_encodings_are_read_or_told(tmp_path):
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text(f"Grüße {n}", "utf-16" if n % 2 else "utf-8")
    settings = {"path": tmp_path, "on_bad_row": "skip"}
    assert [d.text for d in documents(**settings)] == [f"Grüße {n}" for n in range(5)]
    for name in ("5.txt", "6.txt"):
        (tmp_path / name).write_bytes(b"Gr\xfc\xdfe")
    assert len(documents(skipped := Skipped(), **settings)) == 5
    assert f"{tmp_path}/5.txt: not utf-8: invalid start byte; if it is in" in skipped.summary()
    (tmp_path / "7.txt").write_bytes(b"%PDF-1.4")
    with pytest.raises(RevelaError, match=r"3 of 8 files are bad, .*5\.txt: not utf-8: .*encoding"):
        documents(**settings)
    (tmp_path / "7.txt").unlink()
    assert documents(**settings, encoding="cp1252")[5].text == "Grüße"


def test_a_file_of_which_most_rows_are_bad_is_an_error(tmp_path):
    for name, field in (("a", "text"), ("b", "body")):
        rows_file(tmp_path / f"{name}.jsonl", [{field: f"Rain {n}."} for n in range(3)])
    settings = {"path": tmp_path, "on_bad_row": "skip"}
    with pytest.raises(RevelaError, match=r"3 of 3 rows of .*b\.jsonl are bad, .*b\.jsonl:1: unkn"):
        documents(**settings)
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "broken\n{"text": "two"}\n')
    assert len(documents(skipped := Skipped(), **settings)) == 5
    assert "skipped 1 bad rows, first: " in skipped.summary()
    assert "b.jsonl:2: broken JSON" in skipped.summary()


def test_a_title_without_a_text_is_a_document_everywhere(tmp_path):
    """Corpus, index, `revela new` and evaluation say the same of what rows contain."""
    rows = [
        {"_id": f"d{n}", "title": f"Of rain {n}", "text": [f"Rain {n} falls.", "", None][n % 3]}
        for n in range(9)
    ]
    path = Path(rows_file(tmp_path / "corpus.jsonl", rows))
    said = {row["_id"]: f"{row['title']} {row['text'] or ''}".strip() for row in rows}
    fields = field_names([path])
    assert fields.model_dump() == {"id": "_id", "title": "title", "text": "text"}
    corpus = FilesCorpus(source="files", path=str(path), fields=fields)
    chunk_corpus(corpus, tmp_path / "chunks.parquet", 1)
    chunks = pq.read_table(tmp_path / "chunks.parquet").to_pylist()
    assert all(chunk["text"] for chunk in chunks)  # nothing to train on is no chunk
    as_indexed = {one["document"]: passage(one["title"], one["text"]) for one in chunks}
    count, _, sample = look(corpus, Skipped())
    as_evaluated = {row["id"]: f"{row['title']} {row['text']}".strip() for row in read_rows([path])}
    assert as_indexed == as_evaluated == said
    assert {one.id: f"{one.title} {one.text}".strip() for one in sample} == said
    assert count == 9


def test_held_out_documents_stay_held_out():
    """In every process and version: a retriever of an earlier one has not read them."""
    assert [round(place(name), 3) for name in ("0", "a/b.md", "é")] == [0.516, 0.57, 0.793]


@pytest.mark.parametrize(
    ("text", "title", "body"),
    [
        ("---\ntitle: A note\ntags: [a]\n---\n\n# Head\nText.", "A note", "# Head\nText."),
        ("\ufeff---\ntitle: Rest: API\nms.date: 1\n---\nText.", "Rest: API", "Text."),
        ('+++\ntitle = "T"\n+++\nText.', "T", "Text."),
        ("---\nauthor: me\n...\nText.", "", "Text."),
        ("---\ntitle: Alone\n---\n", "", "Alone"),
        ("---\nA rule above.\n\n---\nText.", "", "---\nA rule above.\n\n---\nText."),
        ("Text.\n---\ntitle: x\n---\n", "", "Text.\n---\ntitle: x\n---\n"),
    ],
)
def test_front_matter_is_not_text(tmp_path, text, title, body):
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    (document,) = documents(path=tmp_path)
    assert (document.id, document.title, document.text) == ("a.md", title, body)


def test_a_repeated_text_is_on_one_side_of_a_share(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"Text {number % 20}.")
    sides = []
    for share in ((0, 0.5), (0.5, 1)):
        found = documents(skipped := Skipped(), path=tmp_path, share=share, skip_repeated=True)
        sides.append({document.text for document in found})
        assert "20 repeated texts" in skipped.summary()
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 20
