"""A small collection in BEIR layout."""

import gzip
import json

import pytest

from tests.conftest import TEXTS


@pytest.fixture
def collection(tmp_path):
    """Five documents and three queries in BEIR layout, the corpus gzipped."""
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as stream:
        for n, text in enumerate(TEXTS):
            stream.write(json.dumps({"_id": f"d{n}", "title": f"Title {n}", "text": text}) + "\n")
    queries = ["rivers and mud", "jobs and workers", "transpose of a matrix"]
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": q}) + "\n" for n, q in enumerate(queries))
    )
    (tmp_path / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td2\t1\nq1\td3\t2\nq1\td0\t1\nq2\td4\t1\n"
    )
    return tmp_path
