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
    return write_texts(tmp_path / "texts")


def write_texts(folder: Path) -> Path:
    """Write six documents, with a space in their names, or with markup that must not run."""
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"text {number}.md").write_text(text, encoding="utf-8")
    hostile = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    (folder / "script.md").write_text(f"A hostile page: {hostile}.", encoding="utf-8")
    return folder


def corpus_of(folder: Path, **settings: object) -> FilesCorpus:
    return FilesCorpus.model_validate({"source": "files", "path": str(folder)} | settings)


@pytest.fixture(scope="session")
def built(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with two models; the second is the first one with another name."""
    folder = tmp_path_factory.mktemp("built")
    trained = folder / "trained" / "retriever"
    shutil.copytree(backbone, trained)
    texts = write_texts(folder / "texts")
    build(corpus_of(texts), [str(backbone), str(trained)], folder / "index", 64, "english", 1)
    return folder / "index"


@pytest.fixture
def index(built: Path) -> Index:
    return Index(built)
