"""BM25 by bm25s with mteb's settings, which searches among a query's permitted documents only."""

from typing import Any

import numpy as np


class Bm25s:
    """mteb's BM25; its own search would drop what is not permitted from its first documents."""

    def __init__(self) -> None:
        import mteb

        self.searcher = mteb.get_model("mteb/baseline-bm25s")
        self.mteb_model_meta = self.searcher.mteb_model_meta

    def index(self, corpus: Any, **rest: Any) -> None:
        """Index a corpus in memory."""
        self.searcher.index(corpus, **rest)

    def search(
        self,
        queries: Any,
        *,
        top_k: int,
        top_ranked: dict[str, list[str]] | None = None,
        **rest: Any,
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores, only those of `top_ranked` where given."""
        if top_ranked is None:
            return self.searcher.search(queries, top_k=top_k, **rest)
        ids = self.searcher.corpus_idx_to_id
        place = {document: number for number, document in ids.items()}
        found = {}
        for query, text in zip(queries["id"], queries["text"], strict=True):
            permitted = np.zeros(len(ids), dtype=np.float32)
            permitted[[place[d] for d in top_ranked.get(query, place)]] = 1
            (numbers,), (scores,) = self.searcher.retriever.retrieve(
                self.searcher._tokenizer.transform([text]),
                k=min(top_k, len(ids)),
                weight_mask=permitted,
                show_progress=False,
            )
            found[query] = {
                ids[number]: float(score)
                for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
                if permitted[number]
            }
        return found
