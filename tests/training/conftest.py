"""Shared by the trainings of these tests."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from revela.text import batching, pairs
from tests.conftest import TEXTS
from tests.training.common import LORA, REPLUG


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Eighty batches of four chunks."""
    path = tmp_path_factory.mktemp("data") / "batches.parquet"
    rows = [
        {
            "source": "code" if n % 2 else "wiki",
            "texts": [f"{n} {TEXTS[(n + k) % 5]}" for k in range(4)],
            "documents": [f"{n}.{k // 2}" for k in range(4)],
        }
        for n in range(80)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=batching.SCHEMA), path)
    return path


@pytest.fixture(scope="module")
def pair_data(tmp_path_factory) -> Path:
    """Sixty pairs with two negatives."""
    path = tmp_path_factory.mktemp("data") / "pairs.parquet"
    rows = [
        {
            "source": "code",
            "query": TEXTS[n % 5][:30],
            "positive": TEXTS[n % 5][30:],
            "negatives": [TEXTS[(n + 1) % 5], TEXTS[(n + 2) % 5]],
        }
        for n in range(60)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pairs.SCHEMA), path)
    return path


@pytest.fixture(params=["revela", "replug", "contriever"])
def objective(request, data, pair_data) -> tuple[dict, Path]:
    """The settings of an objective with few steps, and its training data."""
    settings: dict = {"lora": LORA, "batches_per_step": 2, "steps": 4}
    if request.param == "contriever":
        settings |= {"batches_per_device": 2, "language_model": None}
        settings["objective"] = {
            "name": "contriever",
            "temperature": 0.1,
            "encode_batch_size": 4,
        }
        return settings, pair_data
    return settings | ({"objective": REPLUG} if request.param == "replug" else {}), data


@pytest.fixture(scope="session", autouse=True)
def unchecked() -> Iterator[None]:
    """Skip the check of the folder after trainings: its imports take longer than the trainings."""
    with mock.patch("revela.training.trainer.check_folder"):
        yield
