"""Indexing and querying, compared with the usual sentence-transformers and numpy.

Both encode the same texts with the same small backbone in float32, and search exactly.
"""

import argparse
import functools
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.common import medians, real_chunks, report
from revela.config.text import FilesCorpus
from revela.search import Ranking
from revela.search.build import build
from revela.search.index import Index

_BACKBONE = Path(__file__).parents[2] / "data/backbones/1m"
_WORDS, _QUERIES, _DEPTH = 24, 50, 10


def main() -> None:
    """Measure each size, and write a table."""
    parser = argparse.ArgumentParser(prog="bench.search.indexing", description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[2_000, 100_000])
    sizes = parser.parse_args().documents
    words = " ".join(real_chunks(20_000)).split()
    rows = [_measured(size, words) for size in sizes]
    report("Search", "python -m bench.search.indexing", rows)


def _measured(size: int, words: list[str]) -> dict[str, str]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    draw = random.Random(size)
    texts = [" ".join(draw.choices(words, k=_WORDS)) for _ in range(size)]
    queries = [" ".join(draw.choices(words, k=6)) for _ in range(_QUERIES)]
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "texts.jsonl")
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        start = time.perf_counter()
        corpus = FilesCorpus(source="files", path=str(source))
        build(corpus, [str(_BACKBONE)], Path(place, "index"), 64, "english", 2)
        own = time.perf_counter() - start
        transformer = Transformer(str(_BACKBONE), max_seq_length=64)
        pooling = Pooling(transformer.get_embedding_dimension(), "lasttoken")
        model = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
        start = time.perf_counter()
        embeddings = model.encode(texts, batch_size=64)
        other = time.perf_counter() - start

        def numpy_search() -> None:
            for query in queries:
                scores = embeddings @ model.encode(query)
                best = np.argpartition(-scores, _DEPTH)[:_DEPTH]
                best[np.argsort(-scores[best])]

        index = Index(Path(place, "index"))

        def search(ranking: Ranking) -> None:
            for query in queries:
                index.search([query], _DEPTH, ranking)

        runs = {by: functools.partial(search, by) for by in ("dense", "bm25", "hybrid")}
        times = medians({"numpy": numpy_search, **runs}, repeats=3)
    return {
        "documents": f"{size:,}",
        "index, BM25 included, s": f"{own:.0f}",
        "sentence-transformers, s": f"{other:.0f}",
        **{f"{name}, ms a query": f"{1000 * s / _QUERIES:.1f}" for name, s in times.items()},
    }


if __name__ == "__main__":
    main()
