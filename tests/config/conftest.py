"""Tests of configurations run in the root of the repository."""

import pytest

from tests.config.common import ROOT


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    monkeypatch.chdir(ROOT)  # paths in configs are relative to it
