"""The paper's tables, as config.yaml has them."""

from pathlib import Path

import pytest

from revela.config import load_config
from tests.report.common import ROOT


@pytest.fixture(scope="module")
def paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(Path("config.yaml"))
        yield {name: config.table(name) for name in config.tables}
