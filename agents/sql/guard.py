"""What statements may not do: leave the database, weaken it, run too long.

SQLite asks ``Guard.authorize`` about everything that a statement would touch while it is compiled, and
``Guard.interrupts`` every so often while it runs. What VACUUM and full-text search compile for themselves
(``ATTACH ''``, ``BEGIN``, ``PRAGMA data_version``) passes the same way, and must be let through.
"""

from __future__ import annotations

import enum
import re
import time

import apsw

from agents import conf
from agents.sql import functions, search
from agents.sql.values import MAX_BINDS

# A row, and what a function makes, may be so many times as large as a bound value.
ROW_VALUES = 4
# ``json_patch`` compares each name of one object with each of the other, in one step that cannot be cut (two
# of 2 MiB: seven minutes): a statement that calls it sees no longer values. LIKE and GLOB are alike.
MAX_PATCHED_BYTES = 64 * 1024
MAX_PATTERN_BYTES = 256
# SQLite's virtual machine runs so many steps between two looks at the clock.
STEPS = 2_000

# Pragmas that only say how things are.
_REPORTS = frozenset(
    {"collation_list", "compile_options", "data_version", "database_list", "foreign_key_check",
     "foreign_key_list", "freelist_count", "function_list", "index_info", "index_list", "index_xinfo",
     "integrity_check", "module_list", "page_count", "pragma_list", "quick_check", "table_info", "table_list",
     "table_xinfo"}
)  # fmt: skip
# And those that would set something if they were given a value.
_READABLE = frozenset(
    {"application_id", "encoding", "foreign_keys", "page_size", "schema_version", "user_version"}
)
# The application's own number in the header: for its migrations.
_SETTABLE = frozenset({"user_version"})

_MODULES = frozenset({"fts5", "fts5vocab", "rtree", "rtree_i32"})
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "sqlite_log"})
_PATCHES = frozenset({"json_patch", "jsonb_patch"})

_SCHEMA = frozenset(
    {apsw.SQLITE_ALTER_TABLE, apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_TEMP_TABLE,
     apsw.SQLITE_CREATE_VIEW, apsw.SQLITE_CREATE_TEMP_VIEW, apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_TABLE,
     apsw.SQLITE_DROP_TEMP_TABLE, apsw.SQLITE_DROP_VIEW, apsw.SQLITE_DROP_TEMP_VIEW, apsw.SQLITE_DROP_VTABLE}
)  # fmt: skip
# What reading needs. An R-tree compiles its own INSERT, UPDATE and DELETE when it is first read: such a
# statement is refused by what it is (``sqlite3_stmt_readonly``) and by ``PRAGMA query_only``.
_READING = frozenset(
    {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE, apsw.SQLITE_PRAGMA,
     apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
)  # fmt: skip

_BLANK = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*"
_ONLY_BLANK = re.compile(_BLANK, re.S)
_VACUUM = re.compile(_BLANK + r"vacuum\b", re.S | re.I)


class Mode(enum.Enum):
    """Whose statement is compiled."""

    OWN = "ours: everything is allowed"
    FULL = "the agent's"
    READING = "a model's: only reading is allowed"


class Guard:
    """One connection's. Keeps no reference to it, so that it goes when its turn goes."""

    def __init__(self) -> None:
        self.mode = Mode.OWN
        self.vacuuming = False
        #: Whether some statement changed the schema: those compiled before it may know other columns.
        self.schema_changed = False
        #: Why a statement was refused, and whether it was for controlling a transaction.
        self.refused: str | None = None
        self.refused_transaction = False
        #: time.monotonic() at which the statement is cut.
        self.deadline = 0.0
        self.timed_out = False
        self.cancelled = False
        self._cut_at_page = False
        #: Whether the statement that was compiled last calls ``json_patch``, and the one that runs.
        self.patches = self.patching = False
        #: Whether any did: then none is kept compiled, since only compiling tells.
        self.has_patched = False

    def begin(self, mode: Mode, seconds: float) -> None:
        self.mode, self.deadline = mode, time.monotonic() + seconds
        self.refused, self.refused_transaction, self.timed_out = None, False, False
        self.patches = self.patching = False
        self._cut_at_page = False

    def end(self) -> None:
        self.mode, self.vacuuming = Mode.OWN, False

    def interrupts(self) -> bool:
        """Whether the statement that runs ends here."""
        if self.cancelled:
            return True
        if time.monotonic() > self.deadline:
            self.timed_out = True
        return self.timed_out

    def cuts_at_page(self) -> bool:
        """The same, where a page is read. Once: SQLite then reads what it needs to undo the statement."""
        if self._cut_at_page or not self.interrupts():
            return False
        self._cut_at_page = True
        return True

    def authorize(
        self, action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None
    ) -> int:
        if self.mode is Mode.OWN or (why := self._refusal(action, first, second)) is None:
            self.schema_changed |= action in _SCHEMA
            if action == apsw.SQLITE_FUNCTION and (second or "").lower() in _PATCHES:
                self.patches = self.has_patched = True
            return apsw.SQLITE_OK
        self.refused = self.refused or why
        return apsw.SQLITE_DENY

    def _refusal(self, action: int, first: str | None, second: str | None) -> str | None:
        if action == apsw.SQLITE_PRAGMA:
            return self._refuses_pragma((first or "").lower(), second)
        if self.mode is Mode.READING and action not in _READING:
            return "only reading is allowed here"
        if action == apsw.SQLITE_ATTACH:
            # VACUUM builds the new database in a temporary one.
            return None if self.vacuuming and not first else "ATTACH is not allowed"
        if action == apsw.SQLITE_DETACH:
            return "DETACH is not allowed"
        if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT):
            if self.vacuuming:
                return None
            self.refused_transaction = True
            return "use `async with self.sql.transaction()` instead of BEGIN, COMMIT, ROLLBACK and SAVEPOINT"
        if action == apsw.SQLITE_FUNCTION:
            name = (second or "").lower()
            if name in _FUNCTIONS or (self.mode is Mode.READING and name in _PATCHES):
                return f"{name}() is not allowed"
        if action == apsw.SQLITE_CREATE_VTABLE and (second or "").lower() not in _MODULES:
            return f"virtual tables of {second} are not allowed, only of {', '.join(sorted(_MODULES))}"
        return None

    def _refuses_pragma(self, name: str, value: str | None) -> str | None:
        if name in _REPORTS or (name in _READABLE and value is None):
            return None
        if name in _SETTABLE and self.mode is Mode.FULL:
            return None
        return f"PRAGMA {name} is not allowed"


def bound(connection: apsw.Connection, guard: Guard) -> None:
    """Bounds the values of the statement that is about to run."""
    patches, guard.patches = guard.patches, False
    if patches != guard.patching:
        guard.patching = patches
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_PATCHED_BYTES if patches else _longest())


def _longest() -> int:
    return int(conf.get("MAX_SQL_VALUE_BYTES")) * ROW_VALUES


def is_blank(text: str) -> bool:
    """Whether there is nothing but white space, comments and semicolons."""
    return _ONLY_BLANK.fullmatch(text) is not None


def is_vacuum(statement: str) -> bool:
    return _VACUUM.match(statement) is not None


def confine(connection: apsw.Connection, guard: Guard) -> None:
    """Sets what holds for every statement of a connection."""
    connection.authorizer = guard.authorize
    connection.set_progress_handler(guard.interrupts, STEPS)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    functions.define(connection)
    search.define(connection, guard.interrupts)
    value = conf.get("MAX_SQL_VALUE_BYTES")
    for limit, maximum in (
        (apsw.SQLITE_LIMIT_LENGTH, _longest()),
        (apsw.SQLITE_LIMIT_SQL_LENGTH, value),
        (apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES),
        (apsw.SQLITE_LIMIT_ATTACHED, 1),  # for VACUUM
        (apsw.SQLITE_LIMIT_VARIABLE_NUMBER, MAX_BINDS),
        (apsw.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.limit(limit, maximum)


def limit_heap() -> None:
    """Bounds SQLite's memory in this process, the sum over all actors."""
    apsw.hard_heap_limit(conf.get("SQL_HEAP_BYTES"))
