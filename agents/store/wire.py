"""Statements on their way to PostgreSQL: in one round trip as many as don't need each other's answers.

psycopg's own pipeline mode does the same for its cursors, at about twice the cost a statement; a lone turn is
hardly more than its statements. This is the part of it that the store needs, on psycopg's connection:
server-side parameters as text, prepared statements, and rows as psycopg's loaders give them. The order on the
wire is the order of the calls.
"""

from __future__ import annotations

import datetime as dt
import itertools
import struct
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db.utils import DataError
from psycopg import pq
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.types.datetime import TimestamptzLoader

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED)
_IDLE = pq.TransactionStatus.IDLE
_IN_TRANSACTION = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_BYTEA = 17  # pg_type.oid
_PLAIN = frozenset({bool, int, float, uuid.UUID})

_prepared: WeakKeyDictionary[psycopg.Connection[Any], dict[str, bytes]] = WeakKeyDictionary()
_numbers = itertools.count(1)


class StalePlan(psycopg.OperationalError):
    """A prepared statement that is not there, or another is there by its name: a pooler gave us another
    session, somebody said DISCARD ALL. Or one that is there and can't be used, because a migration changed a
    column that it returns."""


def unread(rows: Rows) -> Any:
    """The rows of a statement whose answer nobody needs."""
    return rows


class Later(Generic[T]):
    """The answer of a statement that may still have to be sent: calling it gives the answer."""

    __slots__ = ("_convert", "_result", "_wire", "formats", "params", "prepare", "query")

    def __init__(
        self,
        wire: Wire,
        query: str,
        params: list[bytes | None] | None,
        formats: list[int] | None,
        convert: Callable[[Rows], T],
        prepare: bool,
    ) -> None:
        self.query = query
        self.params = params
        self.formats = formats
        self.prepare = prepare
        self._wire = wire
        self._convert = convert
        self._result: pq.abc.PGresult | None = None

    @property
    def status(self) -> bytes | None:
        """The command's tag, such as b"COMMIT" or b"UPDATE 3"."""
        return self._result.command_status if self._result is not None else None

    def land(self, result: pq.abc.PGresult) -> None:
        self._result = result

    def __call__(self) -> T:
        if self._result is None:
            self._wire.trip()
        assert self._result is not None, "the statement was never sent: its transaction had failed"
        return self._convert(self._wire.rows(self._result))


class Wire:
    """One connection. Raises psycopg's errors: the first of a trip, where ``trip`` is called."""

    def __init__(self, raw: psycopg.Connection[Any], *, prepare: bool) -> None:
        self.raw = raw
        self._pgconn = raw.pgconn
        self._rows = Transformer(_Context(raw))
        self._prepare = prepare
        # What this session has prepared, by query: it outlives a visit to the pool.
        self._names = _prepared.setdefault(raw, {})
        self._waiting: list[Later[Any]] = []
        # Whether plans that are made in this transaction are good for later ones.
        self.planned = False

    @property
    def idle(self) -> bool:
        """Nothing was said yet, and no transaction is open: what is said next is one by itself."""
        return not self._waiting and self.raw.autocommit and self._pgconn.transaction_status == _IDLE

    def say(
        self, query: str, *params: Any, convert: Callable[[Rows], T] = unread, prepare: bool = True
    ) -> Later[T]:
        """Puts a statement on the next trip. Parameters are ``$1``, ``$2`` ..., each cast in the query."""
        values = [p if p.__class__ is bytes else text(p) for p in params] if params else None
        # All but arrays of bytes goes over as text.
        formats = [1 if p.__class__ is Blobs else 0 for p in params] if params[1:] else None
        statement = Later(self, query, values, formats, convert, prepare and self._prepare)
        self._waiting.append(statement)
        return statement

    def forget(self) -> None:
        """What was said and not sent is not sent."""
        self._waiting = []
        self.planned = False

    def trip(self) -> None:
        """Sends what was said and reads all answers. After an error nothing behind it was done."""
        statements, self._waiting = self._waiting, []
        if not statements:
            return
        raw, pgconn = self.raw, self._pgconn
        if raw.closed:
            raise psycopg.OperationalError("the connection is closed")
        if not raw.autocommit and pgconn.transaction_status == _IDLE:
            # Django opened a transaction: psycopg would begin it with the first query of a cursor.
            statements.insert(0, Later(self, begin(raw), None, None, list, False))
        with raw.lock:
            try:
                pgconn.enter_pipeline_mode()
                sent = self._send(statements)
                results = raw.wait(_talk(pgconn, len(sent)))
                pgconn.exit_pipeline_mode()
                self.planned &= pgconn.transaction_status != _IDLE
            except BaseException:
                raw.close()  # in the middle of something: of no use to anybody
                raise
        self._land(sent, results)

    def _send(self, statements: Sequence[Later[Any]]) -> list[Later[Any] | str | None]:
        """What each answer will belong to: a statement, the query that was prepared, the end of the trip."""
        pgconn = self._pgconn
        sent: list[Later[Any] | str | None] = []
        preparing: dict[str, bytes] = {}
        for statement in statements:
            query = statement.query
            if not statement.prepare:
                pgconn.send_query_params(query.encode(), statement.params, param_formats=statement.formats)
                sent.append(statement)
                continue
            name = self._names.get(query) or preparing.get(query)
            if name is None:
                preparing[query] = name = b"agents_%d" % next(_numbers)
                pgconn.send_prepare(name, query.encode())
                sent.append(query)
            pgconn.send_query_prepared(name, statement.params, param_formats=statement.formats)
            sent.append(statement)
        self._preparing = preparing
        pgconn.pipeline_sync()
        sent.append(None)
        return sent

    def _land(
        self, sent: Sequence[Later[Any] | str | None], results: Sequence[list[pq.abc.PGresult]]
    ) -> None:
        for owner, (result, *_) in zip(sent, results, strict=True):
            if result.status in _FAILED:
                error = error_from_result(result, encoding="utf-8")
                if _is_stale(error):
                    self._names.clear()
                    raise StalePlan(str(error)) from error
                raise error
            if isinstance(owner, str):
                self._names[owner] = self._preparing[owner]
            elif owner is not None:
                owner.land(result)

    def rows(self, result: pq.abc.PGresult) -> Rows:
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)

    def roll_back(self) -> None:
        """Ends a transaction that this wire began, if the connection is still good."""
        self.forget()
        if self.raw.closed or self._pgconn.transaction_status == _IDLE:
            return
        if self._pgconn.transaction_status not in _IN_TRANSACTION:
            self.raw.close()
            return
        self.say("ROLLBACK")
        self.trip()


class _Moments(TimestamptzLoader):
    """Moments, several times as fast as psycopg's own loader, which knows every DateStyle."""

    def load(self, data: Any) -> dt.datetime:
        try:
            moment = dt.datetime.fromisoformat(bytes(data).decode())
        except ValueError:
            moment = super().load(data)
        return moment if moment.tzinfo is dt.UTC else moment.astimezone(dt.UTC)


class _Context:
    """psycopg's adapters as Django set them up for a connection, with our own moments."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.connection = raw
        self.adapters = AdaptersMap(raw.adapters)
        self.adapters.register_loader("timestamptz", _Moments)


def _is_stale(error: psycopg.Error) -> bool:
    if isinstance(error, psycopg.errors.InvalidSqlStatementName | psycopg.errors.DuplicatePreparedStatement):
        return True
    # "Cached plan must not change result type", in whatever language the server speaks.
    return error.sqlstate == "0A000" and error.diag.source_function == "RevalidateCachedQuery"


def _talk(pgconn: Any, count: int) -> Generator[Any, Any, list[list[pq.abc.PGresult]]]:
    yield from send(pgconn)
    results: list[list[pq.abc.PGresult]] = []
    while len(results) < count:
        results.append((yield from fetch_many(pgconn)))
    return results


def begin(raw: psycopg.Connection[Any]) -> str:
    """What psycopg would begin a transaction with."""
    level = raw.isolation_level
    return "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"


class Blobs(list[bytes]):
    """A parameter that is a bytea[]."""


def text(value: Any) -> bytes | None:
    """A parameter as PostgreSQL reads it. Its type is the cast in the query."""
    # Nearly all are of these, and a lone turn's commit has dozens.
    kind = value.__class__
    if kind is str and "\0" not in value:
        return value.encode()
    if kind in _PLAIN:
        return str(value).encode()
    if value is None:
        return None
    if isinstance(value, Blobs):
        # PostgreSQL's binary form of an array: dimensions, whether with nulls, the type of its elements; the
        # length and the first index of the one dimension; each element behind its length (array_recv).
        head = struct.pack("!iiIii", 1, 0, _BYTEA, len(value), 1)
        return b"".join((head, *(part for blob in value for part in (struct.pack("!i", len(blob)), blob))))
    if isinstance(value, bytes):
        return value
    if isinstance(value, dt.datetime):
        return value.isoformat().encode()
    if isinstance(value, dt.timedelta):
        return b"%f seconds" % value.total_seconds()
    if isinstance(value, list | tuple):
        return b"{%s}" % b",".join(str(int(v)).encode() for v in value)
    if isinstance(value, str) and "\0" in value:
        raise DataError("PostgreSQL's text cannot hold U+0000")  # and libpq would end it there
    if isinstance(value, str | int | float | uuid.UUID):
        return str(value).encode()
    raise TypeError(f"no parameter: {type(value).__name__}")
