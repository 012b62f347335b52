"""Speed and memory of chunking, against nltk's plain `sent_tokenize` on the same text.

Measures MB/s on one core of both, the ratio, the speed with all cores, and the peak memory of a
whole `revela chunk` at two sizes of corpus, which must not grow with it.

    python -m bench.text.chunking
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from revela.config.steps import PackagesCorpus
from revela.text.chunking import chunk_text, train_punkt
from revela.text.corpora import Document, Skipped, read_documents

PACKAGES = ["numpy", "pandas", "scipy", "sklearn", "torch", "transformers"]
REPEATS = 3


def main() -> None:
    """Print the measurements."""
    # Memory first: a child's peak counts what its parent holds when it starts.
    for megabytes in (10, 100):
        measure_memory(megabytes)
    code = []
    for document in documents():
        code.append(document.text)
        if sum(map(len, code)) > 4_000_000:
            break
    # The docstrings alone: prose, where sentence ends are dense.
    prose = ["\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL)) for text in code]
    for name, texts in (("code", code), ("prose", [text for text in prose if text])):
        measure_speed(name, texts)


def documents() -> Iterator[Document]:
    """Stream the embedded corpus again and again."""
    corpus = PackagesCorpus(source="python-packages", packages=PACKAGES)
    while True:
        yield from read_documents(corpus, Skipped())


def measure_speed(name: str, texts: list[str]) -> None:
    """Time both in turn, so that a noisy machine disturbs both alike."""
    splitter = train_punkt(texts)
    size = sum(map(len, texts)) / 1e6
    plain, ours = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for text in texts:
            splitter.tokenize(text)  # all that sent_tokenize does once its model is loaded
        middle = time.perf_counter()
        for text in texts:
            chunk_text(text, splitter, 120)
        plain.append(middle - start)
        ours.append(time.perf_counter() - middle)
    a, b = statistics.median(plain), statistics.median(ours)
    print(
        f"{name}: {size:.1f} MB, one core: sent_tokenize {size / a:.2f} MB/s, "
        f"chunking {size / b:.2f} MB/s, ratio {a / b:.2f}"
    )


def measure_memory(megabytes: int) -> None:
    """Run `revela chunk` on a file of so many megabytes and watch it and its workers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        written = 0
        with path.open("w") as stream:
            for document in documents():
                written += stream.write(json.dumps({"text": document.text}) + "\n")
                if written >= megabytes * 1e6:
                    break
        settings = json.dumps({"source": "files", "path": str(path)})
        output = Path(folder) / "chunks.parquet"
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "revela", "chunk", "--settings", settings, "--output", output],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_of(psutil.Process(process.pid)))
            time.sleep(0.05)
        seconds = time.perf_counter() - start
        print(
            f"{written / 1e6:.0f} MB with {os.cpu_count()} workers: "
            f"{written / 1e6 / seconds:.2f} MB/s with start-up, "
            f"peak memory of all processes {peak / 1e9:.2f} GB"
        )


def memory_of(process: psutil.Process) -> int:
    """Return the memory of a process and its children in bytes, shared pages counted once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_full_info().pss
    return total


if __name__ == "__main__":
    main()
