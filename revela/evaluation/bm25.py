"""mteb's BM25 by bm25s, restricted to the documents that a query may find; languages of BM25."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, get_args

import bm25s
import bm25s.stopwords
import numpy as np
import Stemmer

from revela.common.errors import RevelaError
from revela.config.evaluation import Language
from revela.text.words import term_pattern, unspaced

_WORD = re.compile(r"[^\W\d_]{2,}")
_SAMPLE_CHARACTERS = 2_000  # of each text
_STOP_WORD_SHARE = 0.1  # of words, at least; 0.11 to 0.40 in short texts of twelve languages


class Bm25s:
    """mteb's BM25, whose own search would apply the restriction only to its top documents."""

    def __init__(self, language: Language = "english") -> None:
        self.language = language
        self.searcher = _searcher()
        self.mteb_model_meta = self.searcher.mteb_model_meta

    def index(self, corpus: Any, **rest: Any) -> None:
        """Index a corpus in memory; one without words is an error."""
        # Of each subset anew: their scripts may differ.
        if self.language != "english":
            words = tokenizer(self.language, return_ids=False)
            self.searcher = _searcher(tokenizer=lambda text: words([text])[0], freq_threshold=0)
        elif unspaced(corpus[:1_000]["text"]):
            self.searcher = _searcher(tokenizer=_characters, **_ENGLISH)
        else:
            self.searcher = _searcher(**_ENGLISH)
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
        scored = {}
        by_query = zip(queries["id"], convert_tokenized_to_string_list(terms), strict=True)
        for query, asked in by_query:
            permitted = np.zeros(len(ids), dtype=np.float32)
            permitted[[number[document] for document in top_ranked.get(query, number)]] = 1
            (numbers,), (scores,) = self.searcher.retriever.retrieve(
                [asked], k=min(top_k, len(ids)), weight_mask=permitted, show_progress=False
            )
            best = zip(numbers.tolist(), scores.tolist(), strict=True)
            scored[query] = {ids[number]: score for number, score in best if permitted[number]}
        return scored


def tokenizer(language: Language, **options: Any) -> Callable[[list[str]], Any]:
    """Return `bm25s.tokenize` for a language, with its stemmer and, if known, its stop words."""
    options |= {"stopwords": _stop_words(language), "stemmer": Stemmer.Stemmer(language)}

    def tokenize(texts: list[str]) -> Any:
        # macOS and PDF files have letters and accents apart, a keyboard has them in one.
        texts = [unicodedata.normalize("NFC", text) for text in texts]
        pattern = term_pattern(texts)
        return bm25s.tokenize(texts, token_pattern=pattern, show_progress=False, **options)

    return tokenize


def guess_language(texts: Iterable[str]) -> Language:
    """Return the language whose stop words are the most frequent ones; English if none are.

    A word of several languages counts less. A language without stop words in bm25s is not found.
    """
    words: Counter[str] = Counter()
    for text in texts:
        start = unicodedata.normalize("NFC", text[:_SAMPLE_CHARACTERS]).lower()
        words.update(_WORD.findall(start))
    lists = {language: _stop_words(language) for language in get_args(Language)}
    shared = Counter(word for words in lists.values() for word in words)
    counts = {
        language: sum(words[word] / shared[word] for word in lists[language]) for language in lists
    }
    best = max(lists, key=lambda language: counts[language])
    return best if counts[best] > _STOP_WORD_SHARE * words.total() else "english"


def _stop_words(language: Language) -> list[str]:
    name = "EN" if language == "english" else language.upper()
    return list(getattr(bm25s.stopwords, f"STOPWORDS_{name}", []))


# Otherwise mteb uses the task's language and has none for `go-Code` or `python-Code`; the paper's
# figures all use English.
_ENGLISH = {"stopwords": "en", "stemmer_language": "english"}


def _searcher(**options: Any) -> Any:
    import mteb

    return mteb.get_model("mteb/baseline-bm25s", **options)


def _characters(text: str) -> list[str]:
    """Return the terms of a text in a script without spaces between words."""
    return re.findall(term_pattern([text]), text.lower())
