"""mteb's BM25 by bm25s, restricted to the documents that a query may find."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from revela.common.errors import RevelaError
from revela.text.words import term_pattern, unspaced

_STOPWORDS, _STEMMER = "en", "english"


class Bm25s:
    """mteb's BM25, whose own search would apply the restriction only to its top documents."""

    def __init__(self) -> None:
        self.searcher = _searcher()
        self.terms: Callable[[str], Any] = _words
        self.mteb_model_meta = self.searcher.mteb_model_meta

    def index(self, corpus: Any, **rest: Any) -> None:
        """Index a corpus in memory.

        Raises:
            RevelaError: it has no words.
        """
        if unspaced(corpus[:1_000]["text"]):  # of each subset anew: their languages may differ
            self.searcher, self.terms = _searcher(tokenizer=_characters), lambda t: [_characters(t)]
        else:
            self.searcher, self.terms = _searcher(), _words
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
        ids = self.searcher.corpus_idx_to_id
        number = {document: number for number, document in ids.items()}
        found = {}
        for query, text in zip(queries["id"], queries["text"], strict=True):
            permitted = np.zeros(len(ids), dtype=np.float32)
            permitted[[number[document] for document in top_ranked.get(query, number)]] = 1
            (numbers,), (scores,) = self.searcher.retriever.retrieve(
                self.terms(text), k=min(top_k, len(ids)), weight_mask=permitted, show_progress=False
            )
            best = zip(numbers.tolist(), scores.tolist(), strict=True)
            found[query] = {ids[number]: score for number, score in best if permitted[number]}
        return found


def _searcher(**options: Any) -> Any:
    import mteb

    # Otherwise mteb uses the task's language and has none for `go-Code` or `python-Code`; the
    # paper's figures all use English.
    return mteb.get_model(
        "mteb/baseline-bm25s", stopwords=_STOPWORDS, stemmer_language=_STEMMER, **options
    )


def _words(text: str) -> Any:
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer(_STEMMER)
    return bm25s.tokenize(text, stopwords=_STOPWORDS, stemmer=stemmer, show_progress=False)


def _characters(text: str) -> list[str]:
    """Return the terms of a text in a script without spaces between words."""
    return re.findall(term_pattern([text]), text.lower())
