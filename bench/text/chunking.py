"""Speed of chunking, compared with nltk's plain `sent_tokenize` on the same text.

Measures MB/s on one core of both, and the ratio, and MB/s for one row of growing size.

    python -m bench.text.chunking
"""

import itertools
import re
import time

from bench.common import medians
from revela.config.text import PackagesCorpus
from revela.text.chunking import chunk_text, train_punkt
from revela.text.corpora import Skipped, read_documents

PACKAGES = ["numpy", "pandas", "scipy", "sklearn", "torch", "transformers"]
REPEATS = 3


def main() -> None:
    """Print the measurements."""
    corpus = PackagesCorpus(source="python-packages", packages=PACKAGES)
    code, size = [], 0
    for document in itertools.cycle(read_documents(corpus, Skipped())):
        code.append(document.text)
        size += len(document.text)
        if size > 4_000_000:
            break
    # Docstrings only: prose with many sentence ends.
    prose = ["\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL)) for text in code]
    for name, texts in (("code", code), ("prose", [text for text in prose if text])):
        measure_speed(name, texts)
    measure_one_row("\n".join(code))


def measure_speed(name: str, texts: list[str]) -> None:
    """Time both alternately, so that noise of the machine affects both equally."""
    splitter = train_punkt(texts)
    size = sum(map(len, texts)) / 1e6
    runs = {
        # What sent_tokenize does once its model is loaded.
        "sent_tokenize": lambda: [splitter.tokenize(text) for text in texts],
        "chunking": lambda: [chunk_text(text, splitter, 120) for text in texts],
    }
    plain, ours = medians(runs, REPEATS).values()
    print(
        f"{name}: {size:.1f} MB, one core: sent_tokenize {size / plain:.2f} MB/s, "
        f"chunking {size / ours:.2f} MB/s, ratio {plain / ours:.2f}"
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
