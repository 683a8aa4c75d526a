"""FTS5's ``snippet()``, which looks at all matches of a text once for each of them.

A text of 400,000 words that all match holds SQLite's own for minutes, in one step that cannot be cut. This
one gives the same snippet and goes through the matches once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import apsw

T = TypeVar("T")

MOST_TOKENS = 64  # of a snippet: as FTS5 has it
LOOK = 4096  # tokens or matches between two looks at the clock
# What a phrase's first match in the snippet counts, and each further one; what beginning with a sentence is
# worth, and beginning with the whole text.
_FIRST, _AGAIN = 1000, 1
_SENTENCE, _START = 100, 120


class _Match(NamedTuple):
    start: int  # in tokens
    phrase: int
    length: int  # tokens


class _Best(NamedTuple):
    score: int
    column: int
    start: int
    tokens: int  # of the whole text


class _Document:
    """The text that is searched, column by column, and what matches in it."""

    def __init__(self, api: apsw.FTS5ExtensionApi, check: Callable[[], None]) -> None:
        self._api = api
        self._check = check
        self._lengths = [len(phrase) for phrase in api.phrases]
        self._matches: dict[int, list[_Match]] = {}
        self._tokens: dict[int, tuple[bytes, list[tuple[int, int]]]] = {}

    @property
    def columns(self) -> int:
        return self._api.column_count

    def size(self, column: int) -> int:
        return self._api.column_size(column)

    def matches(self, column: int) -> list[_Match]:
        if column not in self._matches:
            self._matches[column] = sorted(
                _Match(start, phrase, length)
                for phrase, length in enumerate(self._lengths)
                for start in self._api.phrase_column_offsets(phrase, column)
            )
        return self._matches[column]

    def tokens(self, column: int) -> tuple[bytes, list[tuple[int, int]]]:
        """The text, and where in it (bytes) its tokens are."""
        if column not in self._tokens:
            self._check()
            text, locale = self._api.column_text(column), self._api.column_locale(column)
            found = self._api.tokenize(text, locale, include_offsets=True, include_colocated=False)
            self._tokens[column] = text, [(token[0], token[1]) for token in found]
        return self._tokens[column]

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with a look at the clock now and then."""
        for count, item in enumerate(items):
            if not count % LOOK:
                self._check()
            yield item


def define(connection: apsw.Connection, interrupts: Callable[[], bool]) -> None:
    """Puts it in the place of SQLite's own, for one connection. It ends when ``interrupts()`` says so."""

    def check() -> None:
        if interrupts():
            raise apsw.InterruptError

    connection.register_fts5_function(
        "snippet", lambda api, *arguments: snippet(_Document(api, check), *arguments)
    )


def snippet(document: _Document, *arguments: Any) -> str:
    """``snippet(table, column, opening, closing, ellipsis, tokens)``, as FTS5 describes it."""
    if len(arguments) != 5:
        raise apsw.SQLError("wrong number of arguments to function snippet()")
    wanted, size = _integer(arguments[0]), min(_integer(arguments[4]), MOST_TOKENS)
    opening, closing, ellipsis = ("" if text is None else str(text) for text in arguments[1:4])
    best = _Best(0, max(wanted, 0), 0, 0)
    for column in range(document.columns):
        if wanted < 0 or column == wanted:
            best = _best(document, column, size, best)
    return _rendered(document, best, size, (opening, closing, ellipsis))


def _integer(value: Any) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return 0


def _best(document: _Document, column: int, size: int, best: _Best) -> _Best:
    """The best window of ``size`` tokens among ``best`` and those of this column."""
    matches = document.matches(column)
    if not matches:
        return best
    tokens = document.size(column)
    sentences = _sentences(document, column) if tokens > size else []
    begins = [sentences[bisect_right(sentences, m.start) - 1] if sentences else m.start for m in matches]
    windows = _windows(document, matches, {*begins, *(match.start for match in matches)}, size)
    for match, begin in document.each(zip(matches, begins, strict=True)):
        score, last = windows[match.start]
        if score > best.score:
            # In the middle, as far as the text allows.
            start = match.start - int((size - (last - match.start)) / 2)
            best = _Best(score, column, max(0, min(start, tokens - size)), tokens)
        if begin < match.start:
            score = windows[begin][0] + (_START if begin == 0 else _SENTENCE)
            if score > best.score:
                best = _Best(score, column, begin, tokens)
    return best


def _windows(
    document: _Document, matches: Sequence[_Match], starts: Iterable[int], size: int
) -> dict[int, tuple[int, int]]:
    """For each first token of a window its score, and the token after its last match."""
    found = {}
    counts: Counter[int] = Counter()
    distinct = begin = end = 0
    for start in document.each(sorted(starts)):
        while end < len(matches) and matches[end].start < start + size:
            phrase = matches[end].phrase
            distinct += not counts[phrase]
            counts[phrase] += 1
            end += 1
        while begin < end and matches[begin].start < start:
            phrase = matches[begin].phrase
            counts[phrase] -= 1
            distinct -= not counts[phrase]
            begin += 1
        last = matches[end - 1]
        score = distinct * _FIRST + (end - begin - distinct) * _AGAIN
        found[start] = (score, last.start + last.length)
    return found


def _sentences(document: _Document, column: int) -> list[int]:
    """The tokens with which sentences begin: the first, and those behind a full stop or colon and a space."""
    text, tokens = document.tokens(column)
    starts, at, solid = [], 0, -1  # the last byte before a token that is no white space
    for number, (start, _) in enumerate(document.each(tokens)):
        while at < start:
            if text[at] not in b" \t\n\r":
                solid = at
            at += 1
        if number == 0 or (solid != start - 1 and solid >= 0 and text[solid] in b".:"):
            starts.append(number)
    return starts


def _rendered(document: _Document, best: _Best, size: int, marks: tuple[str, str, str]) -> str:
    """The text of a window, with its matches between the marks."""
    opening, closing, ellipsis = (mark.encode() for mark in marks)
    text, tokens = document.tokens(best.column)
    first, last = best.start, best.start + size - 1
    spans = iter([span for span in _joined(document.matches(best.column)) if span[0] >= first])
    span = next(spans, None)
    out, at, is_open = [ellipsis] if first else [], 0, False
    shown = range(first, min(last + 1, len(tokens))) if last >= 0 else range(len(tokens))
    for number in document.each(shown):
        start, end = tokens[number]
        if first and number == first:
            at = start
        if is_open and (span is None or number <= span[0]) and start > at:
            out.append(closing)
            is_open = False
        if span is not None and number == span[0] and not is_open:
            out += [text[at:start], opening]
            at, is_open = start, True
        if span is not None and number == span[1]:
            out.append(text[at:end])
            at, span = end, next(spans, None)
        if number == last:
            if is_open:
                if span is not None and number >= span[0]:
                    out.append(text[at:end])
                    at = end
                out.append(closing)
                is_open = False
            out.append(text[at:end])
            at = end
    if is_open:
        out.append(closing)
    length = best.tokens or document.size(best.column)
    out.append(text[at:] if last >= length - 1 else ellipsis)
    return b"".join(out).decode(errors="replace")


def _joined(matches: Sequence[_Match]) -> list[tuple[int, int]]:
    """First and last tokens of what is marked: matches that overlap are one."""
    spans: list[tuple[int, int]] = []
    for match in matches:
        end = match.start + match.length - 1
        if spans and match.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((match.start, end))
    return spans
