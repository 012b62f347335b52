"""Test collections of ir_datasets, read from disk."""

import ir_datasets
import pytest

from revela.common.errors import RevelaError
from revela.config.evaluation import IrDatasetsBenchmark
from revela.evaluation.benchmarks import local_task
from revela.evaluation.irdatasets import write_task
from tests.conftest import TEXTS


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Two data sets of ir_datasets: documents only, and a complete collection."""
    for name, rows in {
        "docs": [(f"d{n}", text) for n, text in enumerate(TEXTS)],
        "queries": [("q0", "rivers and mud"), ("q1", "jobs"), ("q2", "nobody judged it")],
    }.items():
        lines = ["\t".join(row) for row in rows]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "qrels").write_text("q0 0 d2 1\nq0 0 d1 -2\nq1 0 d3 2\n")
    own = {"docs_tsv": f"{tmp_path}/docs.tsv"}
    whole = own | {"queries_tsv": f"{tmp_path}/queries.tsv", "qrels_trec": f"{tmp_path}/qrels"}
    for name, files in {"revela/tiny": own, "revela/tiny/test": whole}.items():
        made = ir_datasets.create_dataset(**files)
        monkeypatch.setitem(ir_datasets.registry._registered, name, made)
    return tmp_path


def of(name):
    return IrDatasetsBenchmark(source="ir_datasets", tasks={"tiny": name})


def test_a_collection_of_ir_datasets(home):
    sizes = write_task(of("revela/tiny/test"), "tiny", home / "out")
    assert sizes == {"documents": 5, "queries": 3}
    found = local_task("tiny", home / "out", home).dataset["default"]["test"]
    assert {row["id"]: row["text"] for row in found["corpus"]}["d2"] == TEXTS[2]
    assert next(row["text"] for row in found["queries"]) == "rivers and mud"
    # As in trec_eval, a negative relevance means irrelevant.
    assert found["relevant_docs"] == {"q0": {"d2": 1, "d1": 0}, "q1": {"d3": 2}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("revela/none", "ir_datasets 'revela/none': no such data set; https://ir-datasets.com"),
        ("revela/tiny", "ir_datasets 'revela/tiny': has no queries"),
    ],
)
def test_what_ir_datasets_lacks_is_one_line(home, name, message):
    with pytest.raises(RevelaError, match=message):
        write_task(of(name), "tiny", home / "out")
    assert not (home / "out").exists()
