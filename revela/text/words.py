"""Words and ends of sentences, in scripts with and without spaces between words."""

import re
from collections.abc import Sequence

# Han, kana and full-width forms; then Thai, Lao, Tibetan, Burmese and Khmer, whose words have about
# four characters.
_IDEOGRAPHS = (
    r"\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
_SYLLABLES = r"\u0e00-\u109f\u1780-\u17ff"
_OF_SCRIPT = re.compile(f"[{_IDEOGRAPHS}{_SYLLABLES}]+")
_SHARE = 0.2  # of these scripts in a text without spaces between words
_UNSPACED = re.compile(
    rf"[{_IDEOGRAPHS}]|[{_SYLLABLES}]{{1,4}}|[^\s{_IDEOGRAPHS}{_SYLLABLES}]{{1,500}}"
)
_SPACED = re.compile(r"\S{1,500}")  # inlined data must not become one word

_OTHER = rf"[^\W{_IDEOGRAPHS}{_SYLLABLES}]"
_TERM = rf"(?=((?=\w)[{_IDEOGRAPHS}]|[{_SYLLABLES}]{{3}}|(?<!{_OTHER}){_OTHER}{{2,}}))"

SENTENCE_END = r"(?<=[\w\x80-\U0010ffff])[。！？।؟۔]+[」』）]*"
"""Marks that need no space after them, or that Punkt does not know."""


def word_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of a text's words: runs of non-space characters.

    In a script without spaces between words, such as Chinese, an ideograph counts as a word.
    """
    if text.isascii():
        return _SPACED
    of_script = sum(run.end() - run.start() for run in _OF_SCRIPT.finditer(text))
    return _SPACED if of_script < _SHARE * len(text) else _UNSPACED


def term_pattern(texts: Sequence[str]) -> str:
    """Return the pattern of BM25's terms: words of two letters or more, as in bm25s.

    In scripts without spaces between words they are ideographs, and trigrams of other characters.
    """
    # Both patterns give the same terms where there are no such scripts; this one is slower.
    return _TERM if any(map(_OF_SCRIPT.search, texts)) else r"(?u)\b\w\w+\b"


def unspaced(texts: Sequence[str]) -> bool:
    """Return whether most texts are in a script without spaces between words."""
    return 2 * sum(word_pattern(text) is _UNSPACED for text in texts) > len(texts)
