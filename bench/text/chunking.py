"""Speed of chunking on one core, compared with nltk's plain `sent_tokenize` on the same text.

Both are given a Punkt that was trained on it.

    python -m bench.text.chunking
"""

import re
from itertools import islice

from bench.common import medians, report
from revela.config.text import PackagesCorpus
from revela.text.chunking import chunk_text, train_punkt
from revela.text.corpora import Skipped, read_documents

PACKAGES = ["numpy", "pandas", "scipy", "sklearn", "torch", "transformers"]
DOCUMENTS = 300


def main() -> None:
    """Measure code, and docstrings, which have many sentence ends."""
    corpus = PackagesCorpus(source="python-packages", packages=PACKAGES)
    documents = read_documents(corpus, Skipped())
    code = [document.text for document in islice(documents, DOCUMENTS)]
    prose = ["\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL)) for text in code]
    rows = []
    for name, texts in (("code", code), ("prose", [text for text in prose if text])):
        punkt = train_punkt(texts)
        runs = {
            # What sent_tokenize does once its model is loaded.
            "sent_tokenize": lambda punkt=punkt, texts=texts: list(map(punkt.tokenize, texts)),
            "ours": lambda punkt=punkt, texts=texts: [chunk_text(t, punkt, 120) for t in texts],
        }
        found, size = medians(runs, 3), sum(map(len, texts)) / 1e6
        row = {f"{way}, MB/s": f"{size / seconds:.2f}" for way, seconds in found.items()}
        rows.append({"": name} | row | {"ratio": f"{found['sent_tokenize'] / found['ours']:.2f}"})
    report("Chunking", "python -m bench.text.chunking", rows)


if __name__ == "__main__":
    main()
