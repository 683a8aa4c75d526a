"""Values as SQLite binds them: null, 64-bit integers, floats, text, bytes. Others by one rule:

- bool: 1 or 0;
- datetime: text in UTC, ``2026-11-30 18:04:05.123456+00:00``, which sorts by time and which SQLite's date
  functions read; one without a zone is refused;
- date: text, ``2026-11-30``;
- Decimal: text with all its digits (a TEXT column keeps it, others make a float of it);
- UUID: text.

They come back as SQLite holds them: nothing is guessed from a column's type.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from agents import conf
from agents.codec import clean_text
from agents.exceptions import SqlLimitError, SqlValueError
from agents.sql.functions import Value

#: Most values that one statement binds: SQLite's own limit.
MAX_BINDS = 32_766

_LARGEST = 2**63


def bound(values: Sequence[Any]) -> tuple[Value, ...]:
    """Raises SqlValueError for what cannot be bound, SqlLimitError for too much."""
    if len(values) > MAX_BINDS:
        raise SqlLimitError(
            f"a statement binds at most {MAX_BINDS} values, got {len(values)}",
            limit="MAX_BINDS",
            maximum=MAX_BINDS,
            actual=len(values),
        )
    return tuple(_bound(value) for value in values)


def _bound(value: Any) -> Value:
    match value:
        case None:
            return None
        case bool():
            return int(value)
        case int():
            if not -_LARGEST <= value < _LARGEST:
                raise SqlValueError(f"an integer has at most 64 bits, got one of {value.bit_length()}")
            return int(value)
        case float():
            if math.isnan(value):
                raise SqlValueError("SQLite has no NaN: it would store NULL")
            return float(value)
        case str():
            return _text(value)
        case bytes() | bytearray() | memoryview():
            data = bytes(value)
            _check_size(len(data))
            return data
        case dt.datetime():
            if value.utcoffset() is None:
                raise SqlValueError("a datetime needs a zone: which moment is it?")
            return value.astimezone(dt.UTC).isoformat(" ", "microseconds")
        case dt.date():
            return value.isoformat()
        case Decimal():
            if not value.is_finite():
                raise SqlValueError(f"a decimal must be finite, got {value}")
            return str(value)
        case uuid.UUID():
            return str(value)
    raise SqlValueError(f"a value of type {type(value).__name__} cannot be bound")


def _text(value: str) -> str:
    text = clean_text(str.__str__(value))
    # Four bytes a character at most: only long ones need to be counted.
    if len(text) * 4 > conf.get("MAX_SQL_VALUE_BYTES"):
        _check_size(len(text.encode()))
    return text


def _check_size(actual: int) -> None:
    maximum = conf.get("MAX_SQL_VALUE_BYTES")
    if actual > maximum:
        raise SqlLimitError(
            f"a bound value has at most {maximum} bytes, this one has {actual}",
            limit="MAX_SQL_VALUE_BYTES",
            maximum=maximum,
            actual=actual,
        )
