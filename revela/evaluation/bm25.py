"""mteb's BM25 by bm25s, restricted to the documents that a query may find."""

import re
from typing import Any

import numpy as np

from revela.common.errors import RevelaError
from revela.text.words import term_pattern, unspaced


class Bm25s:
    """mteb's BM25, whose own search would apply the restriction only to its top documents."""

    def __init__(self) -> None:
        self.searcher = _searcher()
        self.mteb_model_meta = self.searcher.mteb_model_meta

    def index(self, corpus: Any, **rest: Any) -> None:
        """Index a corpus in memory.

        Raises:
            RevelaError: it has no words.
        """
        characters = unspaced(corpus[:1_000]["text"])
        # Of each subset anew: their languages may differ.
        self.searcher = _searcher(tokenizer=_characters if characters else None)
        try:
            self.searcher.index(corpus, **rest)
        except ValueError as error:
            raise RevelaError(f"BM25 finds no words in the {len(corpus)} documents") from error

    def search(
        self, queries: Any, *, top_k: int, top_ranked: dict[str, list[str]] | None, **rest: Any
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores, only those of `top_ranked` if given."""
        if top_ranked is None:
            return self.searcher.search(queries, top_k=top_k, **rest)
        from bm25s.tokenization import convert_tokenized_to_string_list

        terms = self.searcher._tokenizer.transform(list(queries["text"]))
        ids = self.searcher.corpus_idx_to_id
        number = {document: number for number, document in ids.items()}
        found = {}
        by_query = zip(queries["id"], convert_tokenized_to_string_list(terms), strict=True)
        for query, asked in by_query:
            permitted = np.zeros(len(ids), dtype=np.float32)
            permitted[[number[document] for document in top_ranked.get(query, number)]] = 1
            (numbers,), (scores,) = self.searcher.retriever.retrieve(
                [asked], k=min(top_k, len(ids)), weight_mask=permitted, show_progress=False
            )
            best = zip(numbers.tolist(), scores.tolist(), strict=True)
            found[query] = {ids[number]: score for number, score in best if permitted[number]}
        return found


def _searcher(**options: Any) -> Any:
    import mteb

    # Otherwise mteb uses the task's language and has none for `go-Code` or `python-Code`; the
    # paper's figures all use English.
    return mteb.get_model(
        "mteb/baseline-bm25s", stopwords="en", stemmer_language="english", **options
    )


def _characters(text: str) -> list[str]:
    """Return the terms of a text in a script without spaces between words."""
    return re.findall(term_pattern([text]), text.lower())
