"""A folder of texts and its index."""

import shutil
from pathlib import Path

import pytest

from revela.config.text import FilesCorpus
from revela.search.build import build
from revela.search.index import Index
from tests.conftest import TEXTS


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Five documents, one with a space in its name and one with markup that must not run."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"text {number}.md").write_text(text, encoding="utf-8")
    (folder / "script.md").write_text(
        "A hostile page: <script>document.title = 'taken'</script><img src=x onerror=alert(1)>.",
        encoding="utf-8",
    )
    return folder


def corpus_of(folder: Path, **settings: object) -> FilesCorpus:
    return FilesCorpus.model_validate({"source": "files", "path": str(folder)} | settings)


@pytest.fixture
def index(texts: Path, backbone: Path, tmp_path: Path) -> Index:
    """An index with two models; the second is the first one with another name."""
    trained = tmp_path / "trained" / "retriever"
    shutil.copytree(backbone, trained)
    build(corpus_of(texts), [str(backbone), str(trained)], tmp_path / "index", 64, "english", 1)
    return Index(tmp_path / "index")
