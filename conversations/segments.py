"""How many segments a text costs; making it cheaper, cutting it and splitting it.

A text in the GSM 7-bit alphabet (3GPP TS 23.038, 6.2.1) has 160 units, or 153 in each of several segments;
characters of the extension table count two. One character beyond that alphabet turns the whole text into
UCS-2: 70 units, or 67 each; characters beyond the Basic Multilingual Plane count two. No character is
split between segments.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

#: What Telnyx accepts; its error is 40302.
MAX_SEGMENTS = 10

# The default alphabet in the order of its table, without the escape at 0x1B.
_GSM7 = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_GSM7_EXTENSION = frozenset("^{}\\[~]|€\f")

GSM7 = "GSM-7"
UCS2 = "UCS-2"


@dataclass(frozen=True)
class Segments:
    encoding: str  # GSM7 or UCS2
    units: int
    count: int


def segments(text: str) -> Segments:
    """The encoding, the units and the number of segments of ``text``; an empty text has none."""
    if all(c in _GSM7 or c in _GSM7_EXTENSION for c in text):
        encoding, alone, each = GSM7, 160, 153
        sizes = [2 if c in _GSM7_EXTENSION else 1 for c in text]
    else:
        encoding, alone, each = UCS2, 70, 67
        sizes = [2 if ord(c) > 0xFFFF else 1 for c in text]
    units = sum(sizes)
    if units <= alone:
        return Segments(encoding, units, 1 if units else 0)
    count, free = 1, each
    for size in sizes:
        if size > free:
            count, free = count + 1, each
        free -= size
    return Segments(encoding, units, count)


def fit(text: str, maximum: int = MAX_SEGMENTS) -> str:
    """``text``, cut to at most ``maximum`` segments; what was cut ends in "..."."""
    if segments(text).count <= maximum:
        return text
    low, high = 0, len(text)  # the longest beginning that fits lies between
    while low < high:
        middle = (low + high + 1) // 2
        if segments(text[:middle].rstrip() + "...").count <= maximum:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "..."


# Look-alikes of the GSM alphabet for what keyboards, word processors and models put in their place.
_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u2035\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u2036\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys(
            "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t",
            " ",
        ),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f\u00ad", ""),
        **dict.fromkeys("\u2022\u2023\u25cf\u00b7", "*"),
        **dict.fromkeys("\u2028\u2029", "\n"),
        "\u2026": "...",
        "\u2039": "<",
        "\u203a": ">",
        "\u2044": "/",
        "\u2260": "!=",
        "\u2264": "<=",
        "\u2265": ">=",
        "\u2192": "->",
        "\u00d7": "x",
    }
)

# Where a text is best parted: between paragraphs, lines, sentences, words.
_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?;:])\s+"), re.compile(r"\s+"))


def smart(text: str) -> str:
    """``text`` with look-alikes for typographic characters, where that makes it cheaper; else as it is.

    Curly quotes, dashes and their kin turn a whole text into UCS-2, at more than double the price. Letters
    and emoji are never replaced: a text that holds one stays as it is, down to its quotes.
    """
    before = segments(text)
    if before.encoding == GSM7:
        return text
    # Composed first: an e with an accent of its own is beyond the alphabet, the letter with it is not.
    replaced = unicodedata.normalize("NFC", text).translate(_LOOK_ALIKES)
    return replaced if segments(replaced).encoding == GSM7 else text


def split(text: str, maximum: int = MAX_SEGMENTS) -> list[str]:
    """``text`` in as few parts as needed of ``maximum`` segments each, without blanks at their ends.

    Parted between paragraphs, else lines, sentences, words, whichever leaves the part at least half full;
    a word that is too long alone is cut. An empty text has no parts.
    """
    parts = []
    rest = text.strip()
    while rest and segments(rest).count > maximum:
        most = _fitting(rest, maximum)
        at = _best_break(rest, most)
        parts.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*parts, rest] if rest else parts


def _fitting(text: str, maximum: int) -> int:
    """How many characters of the beginning fit into ``maximum`` segments; 1 at least."""
    low, high = 1, min(len(text), maximum * 160)
    while low < high:
        middle = (low + high + 1) // 2
        if segments(text[:middle]).count <= maximum:
            low = middle
        else:
            high = middle - 1
    return low


def _best_break(text: str, most: int) -> int:
    # A blank that the cut would fall on counts too: the part then ends right before it.
    for pattern in _BREAKS:
        places = [match.start() for match in pattern.finditer(text, 0, most + 1) if match.start() <= most]
        if places and places[-1] >= most // 2:
            return places[-1]
    return most
