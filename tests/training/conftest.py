"""What all trainings of these tests share."""

from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="session", autouse=True)
def unchecked() -> Iterator[None]:
    """End trainings without a check of the folder: its imports take longer than they do."""
    with mock.patch("revela.training.trainer.check_folder"):
        yield
