"""Speed and memory of chunking, against nltk's plain `sent_tokenize` on the same text.

Measures MB/s on one core of both, the ratio, the speed with all cores, and the peak memory of a
whole `revela chunk` at two sizes of corpus, which must not grow with it.

    python bench/chunking.py
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from revela.chunking import chunk_text, train_punkt
from revela.config import PackagesCorpus
from revela.corpora import read_documents

PACKAGES = ["numpy", "pandas", "scipy", "sklearn", "torch", "transformers"]
REPEATS = 3


def main() -> None:
    """Print the measurements."""
    corpus = PackagesCorpus(source="python-packages", packages=PACKAGES)
    code: list[str] = []
    for document in read_documents(corpus, []):
        code.append(document.text)
        if sum(map(len, code)) > 4_000_000:
            break
    # The docstrings alone: prose, where sentence ends are dense.
    prose = ["\n".join(re.findall(r'"""(.*?)"""', text, re.S)) for text in code]
    for name, texts in (("code", code), ("prose", [text for text in prose if text])):
        measure_speed(name, texts)
    for megabytes in (10, 100):
        measure_memory(code, megabytes)


def measure_speed(name: str, texts: list[str]) -> None:
    """Time both in turn, so that a noisy machine disturbs both alike."""
    splitter = train_punkt(texts)
    size = sum(map(len, texts)) / 1e6
    plain, ours = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for text in texts:
            splitter.tokenize(text)  # what sent_tokenize calls
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


def measure_memory(texts: list[str], megabytes: int) -> None:
    """Run `revela chunk` on a file of so many megabytes and read its manifest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        written = 0
        with path.open("w") as stream:
            while written < megabytes * 1e6:
                for text in texts:
                    written += stream.write(json.dumps({"text": text}) + "\n")
                    if written >= megabytes * 1e6:
                        break
        settings = json.dumps({"source": "files", "path": str(path)})
        output = Path(folder) / "chunks.parquet"
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "revela", "chunk", "--settings", settings, "--output", output],
            check=True,
            capture_output=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        seconds = time.perf_counter() - start
        manifest = json.loads((Path(folder) / "chunks.manifest.json").read_text())
        print(
            f"{megabytes} MB with {os.cpu_count()} workers: {megabytes / seconds:.2f} MB/s, "
            f"peak memory of the main process {manifest['peak_memory_gb']:.2f} GB"
        )


if __name__ == "__main__":
    main()
