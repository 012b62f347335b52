"""Fonts for the texts of a figure, and replacements of characters that no font has."""

import contextlib
import unicodedata
from collections.abc import Sequence

from matplotlib import rcParams
from matplotlib.font_manager import findfont, fontManager, get_font


def legible(texts: Sequence[str], origin: str) -> list[str]:
    """Return texts as the installed fonts can show them, and add fonts that they need to rcParams.

    A symbol that no font has, such as an emoji, is replaced by its name, other characters by `?`,
    which is told with the texts' origin.
    """
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    missing = [c for c in sorted(set("".join(texts))) if ord(c) not in glyphs]
    for name, file in sorted({(font.name, font.fname) for font in fontManager.ttflist}):
        # The last-resort font has a box for every character.
        if missing and not name.startswith("Last Resort"):
            with contextlib.suppress(RuntimeError):  # a bitmap font
                glyphs = get_font(file).get_charmap()
                if any(ord(c) in glyphs for c in missing):
                    rcParams["font.family"] = [*rcParams["font.family"], name]
                    missing = [c for c in missing if ord(c) not in glyphs]
    symbols = {c for c in missing if unicodedata.category(c) == "So"}
    if unclear := "".join(c for c in missing if c not in symbols):
        print(f"{origin}: no installed font has {unclear[:20]!r}: replaced by ?")
    instead = {ord(c): f":{unicodedata.name(c).lower()}:" if c in symbols else "?" for c in missing}
    return [text.translate(instead) for text in texts]
