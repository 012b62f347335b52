"""Words and ends of sentences, in scripts with and without spaces between words."""

import re

# Han, kana and full-width forms; then Thai, Lao, Tibetan, Burmese and Khmer, whose words have about
# four characters.
_IDEOGRAPHS = (
    r"\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
_SYLLABLES = r"\u0e00-\u109f\u1780-\u17ff"
_OF_SCRIPT = re.compile(f"[{_IDEOGRAPHS}{_SYLLABLES}]")
_SHARE = 0.2  # of these scripts in a text without spaces between words
_UNSPACED = re.compile(
    rf"[{_IDEOGRAPHS}]|[{_SYLLABLES}]{{1,4}}|[^\s{_IDEOGRAPHS}{_SYLLABLES}]{{1,500}}"
)
_SPACED = re.compile(r"\S{1,500}")  # inlined data must not become one word

SENTENCE_END = r"(?<=[\w\x80-\U0010ffff])[。！？।؟۔]+[」』）]*"
"""Marks that need no space after them, or that Punkt does not know."""


def word_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of a text's words: runs of non-space characters.

    In a script without spaces between words, such as Chinese, an ideograph counts as a word.
    """
    if text.isascii() or len(_OF_SCRIPT.findall(text)) < _SHARE * len(text):
        return _SPACED
    return _UNSPACED
