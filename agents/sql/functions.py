"""SQLite's functions whose time grows with the product of two arguments, in other ways that give the same.

SQLite looks at the clock between its steps, and one call of a function is one step: two values of 2 MiB hold
``instr`` for twenty seconds and ``trim`` for hours, in a thread that nothing can stop. So these are ours.
(``LIKE`` and ``GLOB`` are bounded by the length of a pattern, see ``guard.py``.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

Value = None | int | float | str | bytes

_FEW = 64  # characters: so many are trimmed by Python's own strip


def instr(text: Value, part: Value) -> Value:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def replace(text: Value, part: Value, new: Value) -> Value:
    if text is None or part is None:
        return None
    part = _text(part)
    if not part or part[0] == "\0":  # as SQLite has it
        return _text(text)
    if new is None:
        return None
    text, new = _text(text), _text(new)
    if len(new) > len(part):
        growth = text.count(part) * (len(new) - len(part))
        if len(text) + growth > _LARGEST:
            raise apsw.TooBigError("string or blob too big")
    return text.replace(part, new)


def trim(text: Value, characters: Value) -> Value:
    return _trimmed(text, characters, left=True, right=True)


def ltrim(text: Value, characters: Value) -> Value:
    return _trimmed(text, characters, left=True, right=False)


def rtrim(text: Value, characters: Value) -> Value:
    return _trimmed(text, characters, left=False, right=True)


def define(connection: apsw.Connection) -> None:
    """Puts them in the place of SQLite's own, for one connection."""
    ours: list[tuple[Callable[..., Value], int]] = [
        (instr, 2), (replace, 3), (trim, 2), (ltrim, 2), (rtrim, 2)
    ]  # fmt: skip
    for function, arguments in ours:
        connection.create_scalar_function(
            function.__name__, function, arguments, deterministic=True, flags=apsw.SQLITE_INNOCUOUS
        )


_LARGEST = 1_000_000_000  # characters; the connection's own limit is smaller, and is applied to the result


def _trimmed(text: Value, characters: Value, *, left: bool, right: bool) -> Value:
    if text is None or characters is None:
        return None
    text = _text(text)
    these = set(_text(characters).split("\0", 1)[0])  # as SQLite has it
    if len(these) <= _FEW:
        few = "".join(these)
        if not few:
            return text
        return text.strip(few) if left and right else text.lstrip(few) if left else text.rstrip(few)
    start, end = 0, len(text)
    while left and start < end and text[start] in these:
        start += 1
    while right and end > start and text[end - 1] in these:
        end -= 1
    return text[start:end]


def _text(value: Value) -> str:
    """A value as SQLite's own functions read it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, int):
        return str(value)
    with _casting:
        ((text,),) = _plain.execute("SELECT CAST(? AS TEXT)", (value,))
    return text


# Only SQLite knows how it writes a float.
_casting = threading.Lock()
_plain = apsw.Connection(":memory:")
