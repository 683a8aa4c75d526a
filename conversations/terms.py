"""What somebody typed into a search: words, phrases in quotes, what a minus leaves out, ``or``.

``before:1234`` is how a search goes on where another one stopped: in what is older than that message.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

#: Words of one search; what comes after them is left out.
WORDS = 20
#: Characters from which on a word finds those that begin with it.
PREFIX = 3

_BEFORE = re.compile(r"(?<!\S)before:(\d{1,18})(?!\S)", re.ASCII)
_TOKEN = re.compile(r'(-?)(?:"([^"]*)"?|([^\s"]+))')


@dataclass(frozen=True)
class Term:
    """Words that are looked for together. ``typed``: as they were written."""

    typed: str
    words: tuple[str, ...]
    phrase: bool = False  # one behind the other
    without: bool = False  # where they are is not looked for


@dataclass(frozen=True)
class Search:
    """Alternatives, each with all its terms, none for a text without words; and where it begins."""

    alternatives: list[list[Term]]
    before: int | None = None


def parse(text: str) -> Search:
    """What is looked for. An alternative that only leaves things out is dropped: it would be nearly all."""
    text, before = _split(text)
    alternatives: list[list[Term]] = [[]]
    left = WORDS
    for minus, quoted, word in _TOKEN.findall(text):
        if word.lower() == "or" and not minus:
            alternatives.append([])
            continue
        words = _words(quoted or word)[:left]
        left -= len(words)
        if words:
            term = Term(quoted or word, words, phrase=bool(quoted) and len(words) > 1, without=bool(minus))
            alternatives[-1].append(term)
    return Search([terms for terms in alternatives if not all(t.without for t in terms)], before)


def going_on(text: str, before: int) -> str:
    """The text of the search that goes on in what is older than a message."""
    return f"{_split(text)[0].strip()} before:{before}"


def goes_on(text: str) -> bool:
    """Whether this text is of a search that goes on."""
    return _split(text)[1] is not None


def _split(text: str) -> tuple[str, int | None]:
    found = _BEFORE.findall(text)
    return (_BEFORE.sub(" ", text), min(map(int, found))) if found else (text, None)


def _words(text: str) -> tuple[str, ...]:
    """The text's words without the signs between them. Marks belong to their letters."""
    return tuple("".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text).split())
