"""Which fields of rows hold what, judged by their values."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from revela.common.errors import RevelaError
from revela.text.fields import field_names
from tests.text.test_corpora import documents, rows_file

PROSE = "Rain falls on the hills, and the rivers carry it to the sea."
URL, DATE, HASH = "https://a.b/c-d", "Mon, 03 Mar 2024 10:00:00 GMT", "9f86d081884c7d659a2feaa0c55a"


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"id": 1, "url": URL * 9, "title": "Rain", "text": ["Rain falls."]}, "id title text"),
        ({"text": "label", "content": PROSE}, "content"),
        ({"document": PROSE, "summary": PROSE[:40]}, "document"),
        ({"html": f"<p>{PROSE}</p>", "text": PROSE}, "text"),
        ({"abstract": PROSE, "name": "Of Rain", "at": DATE * 9}, "name abstract"),
        ({"_id": "a", "story": PROSE, "people": "Ann Lee, Bo Xi, Cy Day"}, "_id story"),
        ({"title": PROSE, "hash": HASH * 9}, "title"),
        ({"key": 7, "code": "def rain(hills):\n    return hills.of(rivers)"}, "key code"),
        ({"ID": 1, "Title": "R12", "note": PROSE, "Body": PROSE * 2}, "ID Title Body"),
        ({"satz": "河流把雨水带到海里。"}, "satz"),
    ],
)
def test_the_text_is_told_by_what_stands_in_it(tmp_path, row, fields):
    """The fields are id, title and text, where rows have them."""
    path = Path(rows_file(tmp_path / "rows.jsonl", [row] * 3))
    assert [*field_names([path]).model_dump(exclude_none=True).values()] == fields.split()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"at": DATE, "messages": [{"role": "me"}]}, r"no field of the rows is a text: at \('Mon,"),
        ({"url": URL, "n": 3, "sha": HASH}, r"no field .*: url \('https://a\.b/c-d'\), n, sha \("),
        ({"text": [URL, URL]}, r"no field of the rows is a text: text \("),
        ({"text": 3.5, "city": "Paris"}, r"no field .*: text, city \('Paris'\); name it with --f"),
        ({"question": PROSE[:40], "answer": PROSE}, r"more than one .*: answer \('Rain .*`fields"),
        ({"text": "Rain.", "story": PROSE}, r"more than one .*: text \('Rain\.'\), story \('Rain"),
    ],
)
def test_none_or_two_texts_are_shown(tmp_path, row, message):
    path = Path(rows_file(tmp_path / "rows.jsonl", [row] * 3))
    with pytest.raises(RevelaError, match=message):
        field_names([path])
    assert field_names([path], text=next(iter(row))).text == next(iter(row))
    with pytest.raises(RevelaError, match="has no field 'bdy'"):
        field_names([path], text="bdy")


def test_fields_are_judged_by_rows_from_all_over_and_from_each_file(tmp_path):
    late = [{"label": "a", "body": None}] * 5000 + [{"label": "b", "body": PROSE}] * 5000
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    rows_file(paths[0], late)
    assert field_names(paths[:1]).text == "body"
    rows_file(paths[1], [{"label": "c", "contents": PROSE}] * 3)
    with pytest.raises(RevelaError, match=r"b\.jsonl: has no field 'body' .*: label, contents"):
        field_names(paths)
    paths[0].write_text("{\n" + json.dumps({"body": PROSE}))
    assert field_names(paths[:1]).text == "body"
    paths[0].write_text("{\n")
    with pytest.raises(RevelaError, match=r"a\.jsonl:1: broken JSON"):
        field_names(paths[:1])


def test_lists_of_texts_are_joined(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [{"text": ["Rain falls.", None, "It is wet."]}])
    assert [one.text for one in documents(source="files", path=path)] == ["Rain falls.\nIt is wet."]


def test_columns_of_parquet_are_judged_alike(tmp_path):
    far = pa.array([10**16], pa.timestamp("us"))  # no Python date
    columns = {"when": far, "id": [7], "body": [[PROSE, "It is wet."]], "note": ["Rain"]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    found = field_names([tmp_path / "rows.parquet"])
    assert found.model_dump() == {"id": "id", "title": None, "text": "body"}
