"""Shared by the trainings of these tests."""

from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="session", autouse=True)
def unchecked() -> Iterator[None]:
    """Skip the check of the folder after trainings: its imports take longer than the trainings."""
    with mock.patch("revela.training.trainer.check_folder"):
        yield
