"""One SQLite connection over a turn's pages. Synchronous: used in threads, by one at a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import apsw

from agents import conf
from agents.exceptions import (
    LimitError,
    ReadOnlyTurnError,
    SqlConstraintError,
    SqlCorruptError,
    SqlError,
    SqlForbiddenError,
    SqlLimitError,
    SqlTimeoutError,
    SqlTransactionError,
    SqlValueError,
)
from agents.sql import vfs
from agents.sql.cursor import SqlCursor
from agents.sql.guard import (
    MAX_PATCHED_BYTES,
    ROW_VALUES,
    Guard,
    Mode,
    bound,
    confine,
    is_blank,
    is_vacuum,
    limit_heap,
)
from agents.sql.pages import PAGE_SIZE, Pages
from agents.sql.values import MAX_BINDS, Value

# What one connection keeps of its database beside the process's cache.
CONNECTION_CACHE = 1024  # KiB

_SETUP = f"""
    PRAGMA locking_mode = EXCLUSIVE;  -- nobody else has the file: no look at its header for each statement
    PRAGMA journal_mode = MEMORY;
    PRAGMA synchronous = OFF;         -- the turn's commit is what lasts
    PRAGMA temp_store = FILE;         -- and such a file is memory of ours, which has a limit (vfs.py)
    PRAGMA cache_size = -{CONNECTION_CACHE};
"""
_RETURNING = "agents_returning"  # a savepoint's name


@cache
def _prepare_process() -> str:
    limit_heap()
    return vfs.registered()


class Connection:
    """Runs texts of SQL. Each call ends what it began: no statement stays open between two of them."""

    def __init__(self, pages: Pages, *, read_only: bool, may_write: Callable[[], None]) -> None:
        """``may_write()`` raises where a statement that writes is not allowed; called before it runs."""
        self._pages = pages
        self._read_only = read_only
        self._may_write = may_write
        self._guard = Guard()
        self._scratch = vfs.Scratch(conf.get("MAX_SQL_TEMP_BYTES"))
        self._connection: apsw.Connection | None = None
        pages.cuts = self._guard.cuts_at_page

    @property
    def in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def cancel(self, cancelled: bool = True) -> None:
        """Cuts the statement that runs in another thread, and those that would come after it."""
        self._guard.cancelled = cancelled

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Statements

    def execute(self, text: str, values: tuple[Value, ...], now: dt.datetime, mode: Mode) -> SqlCursor:
        """Runs a text of statements; the result of the last. Raises SqlError and its kin."""

        def run() -> SqlCursor:
            if mode is not Mode.READING:
                return self._script(text, mode).run(values)
            self.own("PRAGMA query_only = ON")
            try:
                return self._script(text, mode).run(values)
            finally:
                self.own("PRAGMA query_only = OFF")

        return self._run(run, now, mode)

    def execute_many(self, text: str, rows: Iterable[tuple[Value, ...]], now: dt.datetime) -> int:
        """Runs one statement for each of the rows, all or none; how many rows they wrote."""

        def run() -> int:
            self.own("SAVEPOINT many")
            try:
                written = self._script(text, Mode.FULL).run_many(rows)
                self.own("RELEASE many")
            except BaseException:
                self.undo("many")
                raise
            return written

        return self._run(run, now, Mode.FULL)

    def savepoint(self, name: str, now: dt.datetime) -> None:
        self._run(lambda: self.own(f"SAVEPOINT {name}"), now, Mode.FULL)

    def release(self, name: str, now: dt.datetime) -> None:
        self._run(lambda: self.own(f"RELEASE {name}"), now, Mode.FULL)

    def rollback(self, name: str, now: dt.datetime) -> None:
        self._run(lambda: self.undo(name), now, Mode.FULL)

    # Inside

    def own(self, text: str) -> None:
        """Runs a statement of ours. It isn't kept compiled: the agent's own would find it there, allowed."""
        mode, self._guard.mode = self._guard.mode, Mode.OWN
        try:
            self._sqlite.execute(text, can_cache=False)
        finally:
            self._guard.mode = mode

    def undo(self, savepoint: str) -> None:
        """Back to a savepoint, unless SQLite has undone the whole transaction already."""
        if self._sqlite.in_transaction:
            self.own(f"ROLLBACK TO {savepoint}")
            self.own(f"RELEASE {savepoint}")

    def may_keep(self, mode: Mode) -> bool:
        """Whether compiled statements may be kept, and kept ones used."""
        return mode is Mode.FULL and not self._guard.schema_changed and not self._guard.has_patched

    def bound(self) -> None:
        """Called before each statement."""
        bound(self._sqlite, self._guard)

    def check_write(self) -> None:
        if self._guard.mode is Mode.READING:
            raise SqlForbiddenError("only reading is allowed here")
        self._may_write()

    def check_vacuum(self, alone: bool) -> None:
        """VACUUM rewrites the database: all that is in use counts as changed."""
        if not alone:
            raise SqlForbiddenError("VACUUM runs alone")
        header = self._pages.read(1) if self._pages.size else bytes(PAGE_SIZE)
        used = (self._pages.size - int.from_bytes(header[36:40])) * PAGE_SIZE
        for limit in ("MAX_SQL_COMMIT_BYTES", "MAX_SQL_TEMP_BYTES"):
            if used > (maximum := conf.get(limit)):
                raise SqlLimitError(
                    f"VACUUM would rewrite {used} bytes, over the limit of {maximum} ({limit})",
                    limit=limit, maximum=maximum, actual=used,
                )  # fmt: skip
        self._guard.vacuuming = True

    def _script(self, text: str, mode: Mode) -> _Script:
        return _Script(self._sqlite, self, text, mode)

    @property
    def _sqlite(self) -> apsw.Connection:
        assert self._connection is not None
        return self._connection

    def _run(self, work: Callable[[], Any], now: dt.datetime, mode: Mode) -> Any:
        guard = self._guard
        if guard.cancelled:
            raise SqlError("the statement was cancelled")
        guard.begin(Mode.OWN, conf.get("SQL_BUDGET"))
        try:
            with self._opened(now):
                guard.mode = mode
                result = work()
        except BaseException as error:
            self._recover()
            if (meaning := self._meaning(error)) is error:
                raise
            raise meaning from error
        finally:
            guard.end()
            guard.patches = False
            if self._connection is not None:
                bound(self._connection, guard)
        if not self.in_transaction:
            self._pages.revert()  # what is not finished now was rolled back
        return result

    def _opened(self, now: dt.datetime) -> AbstractContextManager[None]:
        if self._connection is None:
            self._pages.look()
            with vfs.working(self._scratch, now, self._pages):
                self._connection = self._open()
        return vfs.working(self._scratch, now)

    def _open(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY
        if not self._read_only:
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection("database", flags=flags, vfs=_prepare_process())
        try:
            confine(connection, self._guard)
            most = conf.get("MAX_SQL_BYTES") // PAGE_SIZE
            connection.execute(f"{_SETUP} PRAGMA max_page_count = {most}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _recover(self) -> None:
        """After a failure: SQLite has undone the statement, or the whole transaction."""
        if self.in_transaction:
            return
        if self._pages.half_written:
            # It has written back what it had given. Rather than rest on that, both sides forget it.
            self.close()
        self._pages.revert()

    def _meaning(self, error: BaseException) -> BaseException:
        """An error of SQLite's as one of ours; any other is what it is."""
        guard = self._guard
        text = str(error)
        match error:
            case apsw.Error() if guard.refused_transaction:
                return SqlTransactionError(guard.refused)
            case apsw.Error() if guard.refused:
                return SqlForbiddenError(guard.refused)
            case apsw.Error() if guard.timed_out:
                return SqlTimeoutError(f"the statement ran past {conf.get('SQL_BUDGET'):g} s and was undone")
            case apsw.ConstraintError():
                return SqlConstraintError(text, constraint=_constraint(error))
            case apsw.ReadOnlyError() if self._read_only:
                return ReadOnlyTurnError()
            case apsw.ReadOnlyError():
                return SqlForbiddenError("only reading is allowed here")
            case apsw.FullError():
                return _limit("MAX_SQL_BYTES", "the database has at most {} bytes")
            case apsw.TooBigError() if guard.patching:
                return SqlLimitError(
                    f"in a statement with json_patch a value has at most {MAX_PATCHED_BYTES} bytes",
                    limit="MAX_PATCHED_BYTES", maximum=MAX_PATCHED_BYTES, actual=MAX_PATCHED_BYTES + 1,
                )  # fmt: skip
            case apsw.TooBigError():
                factor = conf.get("MAX_SQL_VALUE_BYTES") * ROW_VALUES
                return _limit(
                    "MAX_SQL_VALUE_BYTES", f"a row, and a value that SQL makes, has at most {factor} bytes"
                )
            case apsw.NoMemError() | MemoryError():
                return _limit("SQL_HEAP_BYTES", "SQLite has at most {} bytes of memory in this process")
            case apsw.CorruptError() | apsw.NotADBError() if _extended(error) != apsw.SQLITE_CORRUPT_VTAB:
                return SqlCorruptError(text)
            case apsw.BindingsError():
                return SqlValueError(text)
            case apsw.SQLError() if "SQL variables" in text or "variable number" in text:
                return SqlLimitError(text, limit="MAX_BINDS", maximum=MAX_BINDS, actual=MAX_BINDS + 1)
            case UnicodeError():
                return SqlValueError("a text in the result is not UTF-8: CAST it AS BLOB")
            case apsw.Error():
                return SqlError(text)
        return error


class _Script:
    """One run of a text of statements: they run in order, and only the last one's result stays."""

    def __init__(self, sqlite: apsw.Connection, connection: Connection, text: str, mode: Mode) -> None:
        self._sqlite = sqlite
        self._connection = connection
        self._text = text
        self._mode = mode
        self._read = 0  # characters of the text that statements so far have taken
        self._statements = 0
        self._columns: list[str] = []
        self._rows: list[tuple[Value, ...]] = []
        self._size = 0  # bytes in the rows
        self._changes = 0
        self._returning = False

    def run(self, values: tuple[Value, ...]) -> SqlCursor:
        cursor = self._sqlite.cursor()
        cursor.exec_trace = self._begin
        try:
            for row in cursor.execute(self._text, values, can_cache=self._connection.may_keep(self._mode)):
                self._add(row)
            self._release()
        except BaseException:
            cursor.close(True)
            if self._returning:
                self._connection.undo(_RETURNING)
            raise
        changed = self._sqlite.total_changes() != self._changes
        return SqlCursor(self._columns, self._rows, self._sqlite.changes() if changed else 0)

    def run_many(self, rows: Iterable[tuple[Value, ...]]) -> int:
        """One statement, once for each of the rows; how many rows of tables they wrote."""
        sqlite = self._sqlite
        written, changes = 0, sqlite.total_changes()

        def count() -> None:
            nonlocal written, changes
            if (now := sqlite.total_changes()) != changes:
                written += sqlite.changes()
                changes = now

        def begin(cursor: apsw.Cursor, statement: str, values: Any) -> bool:
            if not cursor.has_vdbe:
                return True
            self._connection.bound()
            if self._statements:
                count()
                return True
            self._statements = 1
            if not is_blank(self._text[len(statement) :]):
                raise SqlValueError("exec_many takes one statement")
            if not cursor.is_readonly:
                self._connection.check_write()
            return True

        cursor = sqlite.cursor()
        cursor.exec_trace = begin
        try:
            for _ in cursor.executemany(self._text, rows):
                pass
        except BaseException:
            cursor.close(True)
            raise
        count()
        return written

    def _begin(self, cursor: apsw.Cursor, statement: str, values: Any) -> bool:
        """SQLite has compiled a statement and is about to run it."""
        self._read += len(statement)
        if not cursor.has_vdbe:
            return True  # a comment
        self._statements += 1
        self._connection.bound()
        last = is_blank(self._text[self._read :])
        if values and not last:
            raise SqlValueError("the values belong to the last statement")
        if self._mode is Mode.READING and (self._statements > 1 or not last):
            raise SqlForbiddenError("one statement at a time")
        self._release()
        self._columns = [column[0] for column in cursor.get_description()]
        self._rows, self._size = [], 0
        if not cursor.is_readonly:
            self._connection.check_write()
            if is_vacuum(statement):
                self._connection.check_vacuum(alone=last and self._statements == 1)
            elif self._columns:
                # RETURNING: a result that is too large must undo what made it.
                self._connection.own(f"SAVEPOINT {_RETURNING}")
                self._returning = True
        self._changes = self._sqlite.total_changes()
        return True

    def _release(self) -> None:
        if self._returning:
            self._returning = False
            self._connection.own(f"RELEASE {_RETURNING}")

    def _add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) > conf.get("MAX_SQL_ROWS"):
            raise _limit("MAX_SQL_ROWS", "a result has at most {} rows")
        self._size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if self._size > conf.get("MAX_SQL_RESULT_BYTES"):
            raise _limit("MAX_SQL_RESULT_BYTES", "a result has at most {} bytes")


def _limit(name: str, message: str) -> LimitError:
    maximum = conf.get(name)
    return SqlLimitError(message.format(maximum), limit=name, maximum=maximum, actual=maximum + 1)


_CONSTRAINTS = {
    apsw.SQLITE_CONSTRAINT_CHECK: "check",
    apsw.SQLITE_CONSTRAINT_DATATYPE: "datatype",
    apsw.SQLITE_CONSTRAINT_FOREIGNKEY: "foreign_key",
    apsw.SQLITE_CONSTRAINT_NOTNULL: "not_null",
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY: "primary_key",
    apsw.SQLITE_CONSTRAINT_ROWID: "primary_key",
    apsw.SQLITE_CONSTRAINT_TRIGGER: "trigger",
    apsw.SQLITE_CONSTRAINT_UNIQUE: "unique",
    apsw.SQLITE_CONSTRAINT_VTAB: "virtual_table",
}


def _constraint(error: apsw.Error) -> str:
    return _CONSTRAINTS.get(_extended(error), "constraint")


def _extended(error: apsw.Error) -> int:
    code: int = getattr(error, "extendedresult", 0)
    return code
