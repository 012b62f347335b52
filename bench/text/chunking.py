"""Speed of chunking, compared with nltk's plain `sent_tokenize` on the same text.

Measures MB/s on one core of both, and the ratio, and MB/s for one row of growing size.

    python -m bench.text.chunking
"""

import re
import statistics
import time
from collections.abc import Iterator

from revela.config.text import PackagesCorpus
from revela.text.chunking import chunk_text, train_punkt
from revela.text.corpora import Document, Skipped, read_documents

PACKAGES = ["numpy", "pandas", "scipy", "sklearn", "torch", "transformers"]
REPEATS = 3


def main() -> None:
    """Print the measurements."""
    code = []
    for document in documents():
        code.append(document.text)
        if sum(map(len, code)) > 4_000_000:
            break
    # Docstrings only: prose with many sentence ends.
    prose = ["\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL)) for text in code]
    for name, texts in (("code", code), ("prose", [text for text in prose if text])):
        measure_speed(name, texts)
    measure_one_row("\n".join(code))


def documents() -> Iterator[Document]:
    """Stream the embedded corpus repeatedly."""
    corpus = PackagesCorpus(source="python-packages", packages=PACKAGES)
    while True:
        yield from read_documents(corpus, Skipped())


def measure_speed(name: str, texts: list[str]) -> None:
    """Time both alternately, so that noise of the machine affects both equally."""
    splitter = train_punkt(texts)
    size = sum(map(len, texts)) / 1e6
    plain, ours = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for text in texts:
            splitter.tokenize(text)  # what sent_tokenize does once its model is loaded
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


def measure_one_row(text: str) -> None:
    """Time rows of 5 and 20 MB: the seconds per MB must not grow."""
    splitter = train_punkt([text])
    for size in (5_000_000, 20_000_000):
        row = (text * (size // len(text) + 1))[:size]
        start = time.process_time()
        chunk_text(row, splitter, 120)
        seconds = time.process_time() - start
        print(f"one row of {size / 1e6:.0f} MB: {size / 1e6 / seconds:.2f} MB/s")


if __name__ == "__main__":
    main()
