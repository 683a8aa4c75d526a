"""The result of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents.exceptions import SqlRowsError
from agents.sql.values import Value

Row = dict[str, Any]


class SqlCursor:
    """The rows of the last statement of an ``exec``, to be gone through once.

    Rows are dicts by column name. They are all here: nothing that is written later changes them, and going
    through them asks no database. Of two columns with one name the later stays: give them names of their
    own (``AS``), or take ``raw()``.
    """

    def __init__(self, column_names: list[str], rows: list[tuple[Value, ...]], rows_written: int) -> None:
        self.column_names = column_names
        #: Rows that the last statement inserted, updated or deleted (without what triggers and cascades did).
        self.rows_written = rows_written
        self._rows = rows
        self._next = 0

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return dict(zip(self.column_names, self._take(), strict=True))

    def to_array(self) -> list[Row]:
        """All rows that are left; [] the second time."""
        return list(self)

    def one(self) -> Row:
        """The row of a result that has exactly one. Raises SqlRowsError for none, and for several."""
        left = len(self._rows) - self._next
        if left != 1:
            raise SqlRowsError(f"expected one row, got {left}", rows=left)
        return next(self)

    def raw(self) -> Iterator[tuple[Value, ...]]:
        """The rows that are left as tuples in the order of ``column_names``."""
        while self._next < len(self._rows):
            yield self._take()

    def _take(self) -> tuple[Value, ...]:
        if self._next >= len(self._rows):
            raise StopIteration
        row = self._rows[self._next]
        self._next += 1
        return row
