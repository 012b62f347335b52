"""Shared by the trainings of these tests."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.training.common import LORA, REPLUG, write_batches, write_pairs


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Eighty batches of four chunks."""
    return write_batches(tmp_path_factory.mktemp("data") / "batches.parquet", 80)


@pytest.fixture(scope="module")
def pair_data(tmp_path_factory) -> Path:
    """Sixty pairs with two negatives."""
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.parquet", 60)


@pytest.fixture(params=["revela", "replug", "contriever"])
def objective(request, data, pair_data) -> tuple[dict, Path]:
    """The settings of an objective with few steps, and its training data."""
    settings: dict = {"lora": LORA, "batches_per_step": 2, "steps": 4}
    if request.param == "contriever":
        settings |= {"batches_per_device": 2, "language_model": None}
        settings["objective"] = {"name": "contriever", "temperature": 0.1, "encode_batch_size": 4}
        return settings, pair_data
    return settings | ({"objective": REPLUG} if request.param == "replug" else {}), data


@pytest.fixture(scope="session", autouse=True)
def unchecked() -> Iterator[None]:
    """Skip the check of the folder after trainings: its imports take longer than the trainings."""
    with mock.patch("revela.training.trainer.check_folder"):
        yield
