"""The store's statements for PostgreSQL.

Rows go over as one JSON array a table (``jsonb_to_recordset``: nested values are read once, and a record
with some of them takes half the time of ``json_to_recordset``): one parameter, one prepared statement
whatever the batch's size, and the parsing happens on the server's processor instead of under our
interpreter lock. Bytes go beside it, as one array a column. Everything runs at READ COMMITTED: a statement
after the locks sees what others committed while the locks were waited for.

A statement whose answer nobody needs yet travels with the next one (``wire.py``). So a commit is two round
trips, however much it writes: the locks with what must be read under them, then all the rest with its COMMIT.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar, cast

import orjson
import psycopg
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error as DatabaseError

from agents import clock, conf
from agents.saying import RECEIVE
from agents.store.order import in_order
from agents.store.requests import Alarm, Claim, Next, TaskEnd
from agents.store.statements import (
    DRAIN_WINDOW,
    LOCK_TIMEOUT,
    WAITING_AGAIN,
    WAITING_FRESH,
    Address,
    Answer,
    ConnectionLost,
    Due,
    Interrupted,
    Leased,
    LockedRow,
    OpenAttempt,
    Query,
    Statements,
)
from agents.store.wire import Blobs, Later, Rows, StalePlan, Wire, unread
from agents.turn import ActorRow, StartedTask
from agents.writes import Row, Table

T = TypeVar("T")

# A jsonb has at most 256 MiB; what could come near it goes over as json.
MOST_JSONB = 64 * 1024 * 1024  # bytes of text

# Nothing happened, and the same transaction may go through in a moment.
_TRANSIENT = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.DiskFull,
    psycopg.errors.OutOfMemory,
    psycopg.errors.TooManyConnections,
    psycopg.errors.CannotConnectNow,
    StalePlan,
)
# A session that the server has ended, or will end. 08: connection exceptions; 25P03: idle in a transaction
# for too long; 40003: statement completion unknown; 57P: the server shuts down.
_ENDED = ("08", "25P03", "40003", "57P")

# Every statement of the store finds its rows by a key. A plan is made once a session, perhaps while the table
# of tasks is empty, and must do when there are ten thousand a second later: so indexes and loops, whatever
# the statistics say at that moment. (To plan the claim costs three times what it costs to run it.)
_PLANS = """SELECT set_config('plan_cache_mode', 'force_generic_plan', true),
                   set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
                   set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)"""
# For transactions that change leases alone: what is committed after them takes them to the disk, too.
_BRIEF = f"{_PLANS}, set_config('synchronous_commit', 'off', true)"
_TIMEOUTS = """set_config('lock_timeout', $1, true),
               set_config('idle_in_transaction_session_timeout', $2, true)"""
# A process that stops dead in the middle of a transaction (SIGSTOP, a network that is gone) keeps its locks
# no longer than a lease. Where functions of the application run in it, they may take their time.
_IDLE_TIMEOUT = 15.0  # seconds
_IDLE_TIMEOUT_WITH_ORM = 60.0  # seconds

# A join by a key may still be planned as a walk through a table that was tiny when it was planned. OFFSET 0
# keeps the planner out of a subquery: it is run once a row, by its key. What is changed is then named by
# where it is, which holds because its actor is locked: a place (ctid) in a table, or in a part (tableoid) of
# one that is split.


def located(source: str, table: str, on: str) -> str:
    """Rows of a source, each with where its rows of ``table`` are: ``part`` and ``at``."""
    return f"""(SELECT r.*, k.part, k.at FROM {source} AS r CROSS JOIN LATERAL (
                  SELECT t.tableoid AS part, t.ctid AS at FROM {table} t WHERE {on} OFFSET 0) k OFFSET 0)"""


def there(row: str, found: str) -> str:
    """Whether a row is the one that was found at a place."""
    return f"{row}.ctid = {found}.at AND {row}.tableoid = {found}.part"


_ACTOR = "a.kind, a.name, a.version, a.seq, a.cursor, a.state, a.started, a.sandbox"
_TASK = (
    "t.id, t.actor_id, t.task_id, t.lane, t.method, t.payload, t.due_at, t.every_seconds, t.cron, t.tz, "
    "t.attempts, t.max_retries, t.carried"
)

# What keeps turns of an actor's agent from beginning; agents_pause_kind serves the look-up. Whether anything
# is paused at all is asked once a statement: mostly nothing is.
_HOLD = """CASE WHEN a.taken_at IS NOT NULL THEN 'taken' WHEN a.paused_at IS NOT NULL THEN 'actor'
    WHEN NOT (SELECT EXISTS (SELECT 1 FROM agents_pause p WHERE p.kind >= '')) THEN ''
    ELSE COALESCE((SELECT CASE p.kind WHEN '' THEN 'everything' ELSE 'kind' END FROM agents_pause p
                    WHERE p.kind IN ('', a.kind) ORDER BY p.kind LIMIT 1), '') END"""

# When the first of an actor's pending tasks could run: of the inbox only the head counts. Of an actor that is
# taken over only what is said to it runs, of a paused one nothing.
_ALARM = f"""CASE WHEN a.taken_at IS NOT NULL THEN
    (SELECT t.due_at FROM scheduler_task t WHERE t.actor_id = a.id AND t.status = 'pending'
        AND t.lane = 'inbox' AND t.method = '{RECEIVE}' ORDER BY t.id LIMIT 1)
  WHEN a.paused_at IS NULL THEN LEAST(
    (SELECT min(t.due_at) FROM scheduler_task t
      WHERE t.actor_id = a.id AND t.status = 'pending' AND NOT t.lane = 'inbox'),
    (SELECT t.due_at FROM scheduler_task t
      WHERE t.actor_id = a.id AND t.status = 'pending' AND t.lane = 'inbox' ORDER BY t.id LIMIT 1)) END"""


def now_sql() -> str:
    """The one clock: the database's, at this very moment rather than at the transaction's start."""
    if not clock.offset:
        return "clock_timestamp()"
    return f"(clock_timestamp() + interval '{clock.offset.total_seconds()} seconds')"


def as_json(rows: Any) -> bytes:
    return orjson.dumps(rows)


def translated(error: BaseException, raw: psycopg.Connection[Any] | None) -> BaseException:
    """An error as what it means for the transaction: undone, unknown, or refused."""
    cause = error.__cause__ or error
    if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
        # The connection leads to a server that is no primary (any more): another one may find it.
        return ConnectionLost(str(cause))
    if isinstance(cause, _TRANSIENT):
        return Interrupted(str(cause))
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        state = cause.sqlstate or ""
        if raw is None or raw.closed or state.startswith(_ENDED):
            return ConnectionLost(str(cause))
    return error


class PostgresStatements(Statements):
    def __init__(self) -> None:
        self._this_thread = threading.local()

    # The connection

    def _say(self, query: str, *params: Any, convert: Callable[[Rows], T] = unread) -> Answer[T]:
        """Puts a statement on its way; its answer (all rows, as ``convert`` makes them) can be asked for."""
        wire = self._wire()
        if wire.idle:
            wire.say(_PLANS)
            wire.planned = True
        # Not prepared where an application's transaction goes on, under its own settings. And not with an
        # offset of the clock, which is part of the text.
        prepare = wire.planned and not clock.offset
        query = _with_clock(query) if prepare else query.replace("{now}", now_sql())
        later = wire.say(query, *params, convert=convert, prepare=prepare)
        return lambda: self._guarded(later)

    def _ask(self, query: str, *params: Any, convert: Callable[[Rows], T] = unread) -> T:
        return self._say(query, *params, convert=convert)()

    @property
    def _connection(self) -> BaseDatabaseWrapper:
        # Django's own look-up knows threads and event loops; the store runs in threads alone.
        found = getattr(self._this_thread, "connection", None)
        if found is None:
            found = self._this_thread.connection = connections[DEFAULT_DB_ALIAS]
        return cast(BaseDatabaseWrapper, found)

    def _wire(self) -> Wire:
        connection = self._connection
        if connection.connection is None:
            self._guarded(connection.ensure_connection)
        raw = cast("psycopg.Connection[Any]", connection.connection)
        wire: Wire | None = getattr(self._this_thread, "wire", None)
        if wire is None or wire.raw is not raw:
            wire = self._this_thread.wire = Wire(raw, prepare=conf.get("PREPARE_STATEMENTS"))
        return wire

    def _guarded(self, work: Callable[[], T]) -> T:
        """Runs what talks to the database; raises what its errors mean."""
        connection = self._connection
        try:
            with connection.wrap_database_errors:
                return work()
        except DatabaseError as error:
            meaning = translated(error, connection.connection)
            if isinstance(meaning, ConnectionLost) and not connection.in_atomic_block:
                connection.close()
            if meaning is error:
                raise
            raise meaning from error

    @contextmanager
    def transaction(
        self, *, with_orm: bool = False, brief: bool = False, lock_timeout: float = LOCK_TIMEOUT
    ) -> Iterator[None]:
        connection = self._connection
        if with_orm or connection.in_atomic_block:
            with self._django_transaction(lock_timeout):
                yield
            return
        # BEGIN and COMMIT travel with the statements beside them. Nobody else uses the connection meanwhile.
        wire = self._wire()
        wire.say("BEGIN ISOLATION LEVEL READ COMMITTED")
        if brief:
            wire.say(_BRIEF)
        else:
            wire.say(f"{_PLANS}, {_TIMEOUTS}", *_milliseconds(lock_timeout, _IDLE_TIMEOUT))
        wire.planned = True
        try:
            yield
            committed: Later[Rows] = wire.say("COMMIT")
            self._guarded(wire.trip)
            if committed.status != b"COMMIT":  # an error that somebody swallowed made it a rollback
                raise Interrupted(f"COMMIT was answered with {committed.status!r}")
        except BaseException as error:
            self._abandon(wire, error)
            raise

    def _abandon(self, wire: Wire, error: BaseException) -> None:
        if isinstance(error, ConnectionLost):
            self._connection.close()
            return
        try:
            wire.roll_back()
        except psycopg.Error:
            self._connection.close()  # which is a rollback, too

    @contextmanager
    def _django_transaction(self, lock_timeout: float) -> Iterator[None]:
        connection = self._connection
        outermost = not connection.in_atomic_block
        try:
            with transaction.atomic():
                if outermost:
                    self._say(f"SELECT {_TIMEOUTS}", *_milliseconds(lock_timeout, _IDLE_TIMEOUT_WITH_ORM))
                yield
                self.flush()
        except DatabaseError as error:
            meaning = translated(error, connection.connection)
            if isinstance(meaning, ConnectionLost):
                connection.close()
            if meaning is error:
                raise
            raise meaning from error
        except ConnectionLost:
            connection.close()
            raise
        finally:
            if connection.connection is not None:
                self._wire().forget()

    def flush(self) -> None:
        self._guarded(self._wire().trip)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        wire = self._wire()
        wire.say("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", prepare=False)
        self.flush()
        try:
            yield
        finally:
            self._guarded(wire.roll_back)

    def now(self) -> dt.datetime:
        return self._ask("SELECT {now}", convert=_first)

    # Addresses

    def ensure(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        ids = self.find(addresses)()
        missing = sorted(a for a in addresses if a not in ids)
        return ids | self.make(missing, lock_timeout) if missing else ids

    def make(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        open_already = self._connection.in_atomic_block
        with nullcontext() if open_already else self.transaction(lock_timeout=lock_timeout):
            self._say(
                """INSERT INTO agents_actor (kind, name)
                   SELECT r.kind, r.name FROM json_to_recordset($1::json) AS r(kind text, name text)
                   ORDER BY r.kind, r.name
                   ON CONFLICT (kind, name) DO NOTHING""",
                as_json([{"kind": k, "name": n} for k, n in addresses]),
            )
            # In a statement of its own, which sees the rows that somebody else was quicker to make.
            found = self.find(addresses)
        return found()

    def find(self, addresses: Sequence[Address]) -> Answer[dict[Address, int]]:
        return self._say(
            """SELECT r.kind, r.name, a.id
                 FROM json_to_recordset($1::json) AS r(kind text, name text) CROSS JOIN LATERAL (
                      SELECT id FROM agents_actor WHERE kind = r.kind AND name = r.name OFFSET 0) a""",
            as_json([{"kind": k, "name": n} for k, n in addresses]),
            convert=lambda rows: {(kind, name): id for kind, name, id in rows},
        )

    def read(self, query: Query, *params: Any) -> Answer[Rows]:
        return self._say(query.postgresql, *params)

    # Claims

    def lease(self, claims: Sequence[Claim], seconds: float, *, dead: bool) -> Answer[Leased]:
        # Skipping locked rows keeps two batches from waiting for each other; the condition decides, and is
        # looked at again when a row turns out to have changed since the statement began.
        def convert(rows: Rows) -> Leased:
            return Leased(
                {row[0]: _actor(row) for row in rows if row[4] is not None},
                {id for id, was_held, hold, refused, *_ in rows if was_held and not refused},
                {id: hold for id, was_held, hold, refused, *_ in rows if refused},
            )

        source, params = _source(
            _CLAIMED,
            [
                {
                    "id": c.actor_id, "new_token": c.token, "new_turn_id": c.turn_id,
                    "framework": c.framework, "drains": c.drain,
                }
                for c in claims
            ],
            first=3,
        )  # fmt: skip
        return self._say(
            f"""WITH found AS MATERIALIZED (
                  SELECT w.*, a.part, a.at, a.was_held, a.hold FROM {source} AS w CROSS JOIN LATERAL (
                         SELECT a.tableoid AS part, a.ctid AS at, a.token IS NOT NULL AS was_held,
                                {_HOLD} AS hold
                           FROM agents_actor a
                          WHERE a.id = w.id AND (a.token IS NULL OR a.lease_expires_at <= {{now}})
                            FOR NO KEY UPDATE SKIP LOCKED) a),
                free AS MATERIALIZED (
                  SELECT *, NOT (hold = '' OR framework OR (drains AND hold = 'taken')) AS refused
                    FROM found),
                taken AS (
                  UPDATE agents_actor a
                     SET token = free.new_token, turn_id = free.new_turn_id, turn_started_at = {{now}},
                         lease_expires_at = {{now}} + $1::float8 * interval '1 second',
                         stop_turn_id = NULL, waits_for_id = NULL, waiting_at = NULL
                    FROM free
                   WHERE {there("a", "free")} AND ($2::boolean OR NOT free.was_held) AND NOT free.refused
                  RETURNING a.id, free.was_held, free.hold, false, {_ACTOR}, {{now}} AS now)
                SELECT * FROM taken
                UNION ALL
                SELECT id, was_held, hold, refused, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
                  FROM free WHERE refused OR (was_held AND NOT $2::boolean)""",
            seconds,
            dead,
            *params,
            convert=convert,
        )

    def lock(
        self, ids: Sequence[int], counted: Sequence[int] = (), *, skip: bool = False
    ) -> Answer[tuple[dict[int, LockedRow], dt.datetime]]:
        locks = self._say(
            f"""SELECT a.id, a.token, a.lease_expires_at, a.version, a.kind, a.name, a.waiting_at, {_HOLD}
                  FROM agents_actor a WHERE a.id = ANY($1::bigint[]) ORDER BY a.id
                   FOR NO KEY UPDATE {"SKIP LOCKED" if skip else ""}""",
            list(ids),
            convert=list,
        )
        # Statements of their own, so after the locks, however long those took.
        read = self._pending(counted) if counted else self._say("SELECT {now}", convert=_now_alone)

        def locked() -> tuple[dict[int, LockedRow], dt.datetime]:
            now, pending = read()
            return {
                id: LockedRow(
                    token,
                    expires is not None and expires > now,
                    version,
                    kind,
                    name,
                    waiting is not None and waiting > now - WAITING_FRESH,
                    hold,
                    pending.get(id, {}),
                )
                for id, token, expires, version, kind, name, waiting, hold in locks()
            }, now

        return locked

    def due(self, claims: Sequence[Claim]) -> Answer[dict[int, Due]]:
        def convert(rows: Rows) -> dict[int, Due]:
            tasks = in_order((r[0], r[2], r[3] == "inbox", r[4], r[5]) for r in rows if r[2] is not None)
            return {id: Due(tasks.get(id, []), before) for id, before, *_ in rows}

        return self._say(
            f"""WITH want AS MATERIALIZED (
                  SELECT w.id, COALESCE(w.due_before, {{now}}) AS due_before,
                         COALESCE(a.taken, false) AS taken
                    FROM json_to_recordset($1::json) AS w(id bigint, due_before timestamptz)
                    LEFT JOIN LATERAL (
                         SELECT a.taken_at IS NOT NULL AS taken FROM agents_actor a
                          WHERE a.id = w.id OFFSET 0) a ON true)
               SELECT w.id, w.due_before, t.id, t.lane, t.due_at, t.due_at <= w.due_before
                 FROM want w LEFT JOIN LATERAL (
                  (SELECT t.id, t.lane, t.due_at FROM scheduler_task t
                    WHERE t.actor_id = w.id AND t.status = 'pending' AND NOT t.lane = 'inbox'
                      AND t.due_at <= w.due_before AND NOT w.taken
                    ORDER BY t.due_at, t.id LIMIT $2::int)
                  UNION ALL
                  (SELECT t.id, t.lane, t.due_at FROM scheduler_task t
                    WHERE t.actor_id = w.id AND t.status = 'pending' AND t.lane = 'inbox'
                      AND (t.method = '{RECEIVE}' OR NOT w.taken)
                    ORDER BY t.id LIMIT $2::int)) t ON true""",
            as_json([{"id": c.actor_id, "due_before": c.due_before} for c in claims]),
            DRAIN_WINDOW,
            convert=convert,
        )

    def begin(self, starts: Sequence[tuple[int, Next]], now: dt.datetime) -> Answer[dict[int, StartedTask]]:
        return self._say(
            f"""WITH picked AS (
                  SELECT DISTINCT ON (w.actor_id) t.part, t.at, w.turn_id,
                         nextval(pg_get_serial_sequence('scheduler_attempt', 'id')) AS attempt_id
                    FROM json_to_recordset($1::json)
                         AS w(actor_id bigint, turn_id uuid, due_before timestamptz, pks bigint[],
                              taken boolean)
                   CROSS JOIN LATERAL unnest(w.pks) WITH ORDINALITY AS c(pk, position)
                   CROSS JOIN LATERAL (
                         SELECT t.tableoid AS part, t.ctid AS at, t.id, t.actor_id, t.status, t.due_at,
                                t.lane
                           FROM scheduler_task t WHERE t.id = c.pk OFFSET 0) t
                   WHERE t.actor_id = w.actor_id AND t.status = 'pending' AND t.due_at <= w.due_before
                     AND (NOT t.lane = 'inbox' OR NOT EXISTS (
                           SELECT 1 FROM scheduler_task e WHERE e.actor_id = t.actor_id
                              AND e.status = 'pending' AND e.lane = 'inbox' AND e.id < t.id
                              AND (e.method = '{RECEIVE}' OR NOT w.taken)))
                   ORDER BY w.actor_id, c.position),
                {_begun()}""",
            as_json(
                [
                    {
                        "actor_id": id,
                        "turn_id": n.turn_id,
                        "due_before": n.due_before,
                        "pks": n.due,
                        "taken": n.hold == "taken",
                    }
                    for id, n in starts
                ]
            ),
            now,
            convert=lambda rows: {row[1]: _task(row) for row in rows},
        )

    def begin_anew(
        self, starts: Sequence[tuple[int, Next]], now: dt.datetime
    ) -> Answer[dict[int, tuple[StartedTask, list[int]]]]:
        # The order of agents/store/order.py, so that it takes no round trip to look first.
        return self._say(
            f"""WITH picked AS (
                  SELECT t.part, t.at, w.turn_id, f.pks,
                         nextval(pg_get_serial_sequence('scheduler_attempt', 'id')) AS attempt_id
                    FROM json_to_recordset($1::json) AS w(actor_id bigint, turn_id uuid)
                   CROSS JOIN LATERAL (
                         SELECT array_agg(c.id ORDER BY c.held, c.id) AS pks FROM (
                           (SELECT t.id, t.due_at AS held FROM scheduler_task t
                             WHERE t.actor_id = w.actor_id AND t.status = 'pending'
                               AND NOT t.lane = 'inbox' AND t.due_at <= $2::timestamptz
                             ORDER BY t.due_at, t.id LIMIT $3::int)
                           UNION ALL
                           (SELECT i.id, max(i.due_at) OVER (ORDER BY i.id) FROM (
                              SELECT t.id, t.due_at FROM scheduler_task t
                               WHERE t.actor_id = w.actor_id AND t.status = 'pending' AND t.lane = 'inbox'
                               ORDER BY t.id LIMIT $3::int) i)) c
                          WHERE c.held <= $2::timestamptz OFFSET 0) f
                   CROSS JOIN LATERAL (
                         SELECT t.tableoid AS part, t.ctid AS at FROM scheduler_task t
                          WHERE t.id = f.pks[1] OFFSET 0) t),
                {_begun(", p.pks")}""",
            as_json([{"actor_id": id, "turn_id": n.turn_id} for id, n in starts]),
            now,
            DRAIN_WINDOW,
            convert=lambda rows: {row[1]: (_task(row), row[15][1:DRAIN_WINDOW]) for row in rows},
        )

    def open_attempts(self, ids: Sequence[int]) -> list[tuple[int, OpenAttempt]]:
        return self._ask(
            f"""SELECT p.actor_id, p.id, p.task_pk, {_TASK}, p.turn_id, p.id
                  FROM scheduler_attempt p LEFT JOIN LATERAL (
                       SELECT * FROM scheduler_task t WHERE t.id = p.task_pk OFFSET 0) t ON true
                 WHERE p.actor_id = ANY($1::bigint[]) AND p.outcome = 'running'""",
            list(ids),
            convert=lambda rows: [
                (id, OpenAttempt(pk, task_pk, _task(task) if task[0] is not None else None))
                for id, pk, task_pk, *task in rows
            ],
        )

    def begun(self, actor_id: int, turn_id: uuid.UUID) -> StartedTask | None:
        return self._ask(
            f"""SELECT {_TASK}, p.turn_id, p.id FROM scheduler_attempt p CROSS JOIN LATERAL (
                       SELECT * FROM scheduler_task t WHERE t.id = p.task_pk OFFSET 0) t
                 WHERE p.actor_id = $1::bigint AND p.outcome = 'running' AND p.turn_id = $2::uuid""",
            actor_id,
            turn_id,
            convert=lambda rows: _task(rows[0]) if rows else None,
        )

    # Commits

    def end_tasks(self, ends: Sequence[tuple[int, TaskEnd]], now: dt.datetime) -> None:
        rows = as_json(
            [
                {
                    "actor_id": actor_id, "id": e.task_pk, "attempt": e.attempt_pk, "outcome": e.outcome,
                    "action": e.action, "due_at": e.due_at, "error": e.error, "traceback": e.traceback,
                }
                for actor_id, e in ends
            ]
        )  # fmt: skip
        source = """(SELECT * FROM jsonb_to_recordset($1::jsonb) AS r(
            actor_id bigint, id bigint, attempt bigint, outcome text, action text, due_at timestamptz,
            error text, traceback text))"""
        self._say(
            f"""UPDATE scheduler_attempt p
                   SET outcome = r.outcome, ended_at = $2::timestamptz, error = r.error,
                       traceback = r.traceback
                  FROM {located(source, "scheduler_attempt", "t.id = r.attempt")} AS r
                 WHERE {there("p", "r")}""",
            rows,
            now,
        )
        actions = {e.action for _, e in ends}
        if actions & {"delete", "advance", "gone"}:
            steps = located(source, "scheduler_step", "t.actor_id = r.actor_id AND t.task_pk = r.id")
            self._say(
                f"""DELETE FROM scheduler_step s USING {steps} AS r
                     WHERE {there("s", "r")} AND r.action IN ('delete', 'advance', 'gone')""",
                rows,
            )
        if "delete" in actions:
            self._say(
                "DELETE FROM scheduler_task WHERE id = ANY($1::bigint[])",
                [e.task_pk for _, e in ends if e.action == "delete"],
            )
        if actions & {"advance", "retry", "park", "release"}:
            self._say(
                f"""UPDATE scheduler_task t
                       SET due_at = COALESCE(r.due_at, t.due_at),
                           attempts = CASE r.action WHEN 'advance' THEN 0
                                                    WHEN 'release' THEN t.attempts - 1
                                                    ELSE t.attempts END,
                           status = CASE r.action WHEN 'park' THEN 'parked' ELSE t.status END,
                           parked_at = CASE r.action WHEN 'park' THEN $2::timestamptz ELSE t.parked_at END,
                           error = CASE r.action WHEN 'release' THEN t.error ELSE r.error END
                      FROM {located(source, "scheduler_task", "t.id = r.id")} AS r
                     WHERE {there("t", "r")} AND r.action IN ('advance', 'retry', 'park', 'release')""",
                rows,
                now,
            )

    def delete(self, table: Table, rows: Sequence[Row]) -> None:
        source, params = _source(_types(table), rows)
        on = " AND ".join(f"t.{c} = r.{c}" for c in table.columns)
        query = f"""DELETE FROM {table.name} t USING {located(source, table.name, on)} AS r
                     WHERE {there("t", "r")}"""
        if table.model == "scheduler.Task":  # its steps' results go with a task
            steps = located("gone", "scheduler_step", "t.actor_id = r.actor_id AND t.task_pk = r.id")
            query = f"""WITH gone AS ({query} RETURNING t.actor_id, t.id)
                        DELETE FROM scheduler_step s USING {steps} AS r WHERE {there("s", "r")}"""
        self._say(query, *params)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        query, params = self._insert(table, rows)
        self._say(query, *params)

    def insert_returning(self, table: Table, rows: Sequence[Row]) -> Answer[list[int]]:
        query, params = self._insert(table, rows)
        return self._say(f"{query} RETURNING id", *params, convert=lambda rows: [id for (id,) in rows])

    def _insert(self, table: Table, rows: Sequence[Row]) -> tuple[str, list[Any]]:
        columns = ", ".join(table.columns)
        source, params = self._rows(table, rows)
        # The order of the rows is the order of their ids: the inbox rests on it.
        return f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {source} AS r", params

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        columns = ", ".join(table.columns)
        sets = ", ".join(f"{c} = EXCLUDED.{c}" for c in table.columns if c not in table.conflict)
        last = {tuple(row[c] for c in table.conflict): row for row in rows}  # the last of equals stands
        source, params = self._rows(table, list(last.values()))
        self._say(
            f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {source} AS r "
            f"ON CONFLICT ({', '.join(table.conflict)}) DO UPDATE SET {sets}",
            *params,
        )

    def _rows(self, table: Table, rows: Sequence[Row]) -> tuple[str, list[Any]]:
        return _with_bytes(table, rows) if table.binary_columns else _source(_types(table), rows)

    def take_keys(self, keys: Sequence[tuple[int, str]]) -> Answer[set[tuple[int, str]]]:
        return self._say(
            """INSERT INTO scheduler_inboxkey (actor_id, key, accepted_at)
               SELECT DISTINCT r.actor_id, r.key, {now}
                 FROM json_to_recordset($1::json) AS r(actor_id bigint, key text)
               ON CONFLICT (actor_id, key) DO NOTHING RETURNING actor_id, key""",
            as_json([{"actor_id": id, "key": key} for id, key in keys]),
            convert=lambda rows: {(id, key) for id, key in rows},
        )

    def known_tasks(self, tasks: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
        return self._ask(
            """SELECT r.actor_id, r.task_id
                 FROM json_to_recordset($1::json) AS r(actor_id bigint, task_id text)
                WHERE EXISTS (SELECT 1 FROM scheduler_task t
                               WHERE t.actor_id = r.actor_id AND t.task_id = r.task_id OFFSET 0)
                   OR EXISTS (SELECT 1 FROM scheduler_attempt p
                               WHERE p.actor_id = r.actor_id AND p.task_id = r.task_id OFFSET 0)""",
            as_json([{"actor_id": id, "task_id": t} for id, t in tasks]),
            convert=lambda rows: {(id, task_id) for id, task_id in rows},
        )

    def pending(self, ids: Sequence[int]) -> dict[int, dict[str, int]]:
        return self._pending(ids)()[1]

    def _pending(self, ids: Sequence[int]) -> Answer[tuple[dt.datetime, dict[int, dict[str, int]]]]:
        # scheduler_task_due and scheduler_task_inbox serve the two counts.
        return self._say(
            """SELECT {now}, a.id,
                      (SELECT count(*) FROM scheduler_task t WHERE t.actor_id = a.id
                          AND t.status = 'pending' AND NOT t.lane = 'inbox' AND t.lane = 'timer'),
                      (SELECT count(*) FROM scheduler_task t WHERE t.actor_id = a.id
                          AND t.status = 'pending' AND t.lane = 'inbox')
                 FROM unnest($1::bigint[]) AS a(id)""",
            list(ids),
            convert=lambda rows: (
                rows[0][0],
                {id: {"timer": timers, "inbox": inbox} for _, id, timers, inbox in rows},
            ),
        )

    def update_actors(self, rows: Sequence[dict[str, Any]], now: dt.datetime) -> Answer[list[Alarm]]:
        source, params = _source(_UPDATED, rows, first=3)
        return self._say(
            _update(source, any(r.get("tasks") for r in rows), any(r.get("next_turn_id") for r in rows)),
            now,
            conf.get("LEASE"),
            *params,
            convert=lambda rows: [Alarm(id, kind, name, at, now) for id, kind, name, at in rows],
        )

    def alarms(self, ids: Sequence[int], now: dt.datetime) -> list[Alarm]:
        return self._ask(
            "SELECT id, kind, name, alarm FROM agents_actor WHERE id = ANY($1::bigint[])",
            list(ids),
            convert=lambda rows: [Alarm(id, kind, name, at, now) for id, kind, name, at in rows],
        )

    def committed_by(self, actor_id: int, version: int) -> uuid.UUID | None:
        return self._ask(
            "SELECT turn_id FROM agents_turnrecord WHERE actor_id = $1::bigint AND version = $2::bigint",
            actor_id,
            version,
            convert=_first,
        )

    # Leases. Nothing here waits long for a row that somebody else has locked: an application's transaction
    # may hold it for as long as it likes, and other turns depend on the thread that would wait.

    def renew(self, leases: Sequence[tuple[int, uuid.UUID]], seconds: float) -> dict[uuid.UUID, bool]:
        with self.transaction(brief=True):
            # Rows that are locked now are left for the next renewal; nobody can take their leases meanwhile.
            renewed = self._say(
                f"""WITH held AS MATERIALIZED (
                      SELECT a.part, a.at FROM json_to_recordset($1::json) AS r(id bigint, token uuid)
                       CROSS JOIN LATERAL (
                             SELECT a.tableoid AS part, a.ctid AS at FROM agents_actor a
                              WHERE a.id = r.id AND a.token = r.token AND a.lease_expires_at > {{now}}
                                FOR NO KEY UPDATE SKIP LOCKED) a)
                   UPDATE agents_actor a SET lease_expires_at = {{now}} + $2::float8 * interval '1 second'
                     FROM held WHERE {there("a", "held")} RETURNING a.token""",
                rows := as_json([{"id": id, "token": token} for id, token in leases]),
                seconds,
                convert=lambda rows: {token for (token,) in rows},
            )
            ours = self._say(
                """SELECT r.token FROM json_to_recordset($1::json) AS r(id bigint, token uuid)
                    CROSS JOIN LATERAL (
                          SELECT a.token, a.lease_expires_at FROM agents_actor a WHERE a.id = r.id OFFSET 0) a
                    WHERE a.token = r.token AND a.lease_expires_at > {now}""",
                rows,
                convert=lambda rows: {token for (token,) in rows},
            )
        return {token: token in renewed() for token in ours()}

    def free(self, actor_id: int, token: uuid.UUID) -> bool:
        # The attempt stays open and the lease looks dead: whoever claims next applies the retry rule. A row
        # that is locked just now is left alone: nobody renews the lease, so it ends by itself.
        return self._ask(
            """UPDATE agents_actor SET lease_expires_at = {now} - interval '1 second' WHERE id IN (
                 SELECT id FROM agents_actor WHERE id = $1::bigint AND token = $2::uuid
                    FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING id""",
            actor_id,
            token,
            convert=bool,
        )

    def stops(self, ids: Sequence[int]) -> dict[int, uuid.UUID]:
        return self._ask(
            """SELECT id, stop_turn_id FROM agents_actor
                WHERE id = ANY($1::bigint[]) AND stop_turn_id IS NOT NULL""",
            list(ids),
            convert=dict,
        )

    def stop(self, actor_id: int, turn_id: uuid.UUID | None, lock_timeout: float) -> uuid.UUID | None:
        with self.transaction(lock_timeout=lock_timeout):
            stopped = self._say(
                """UPDATE agents_actor SET stop_turn_id = turn_id
                    WHERE id = $1::bigint AND token IS NOT NULL AND lease_expires_at > {now}
                      AND turn_id = COALESCE($2::uuid, turn_id)
                RETURNING stop_turn_id""",
                actor_id,
                turn_id,
                convert=_first,
            )
        return stopped()

    def mark_waiting(self, actor_id: int) -> bool:
        # A row that is locked just now is not marked: its caller looks again soon.
        return self._ask(
            """UPDATE agents_actor SET waiting_at = {now} WHERE id IN (
                 SELECT id FROM agents_actor
                  WHERE id = $1::bigint AND token IS NOT NULL
                    AND (waiting_at IS NULL OR waiting_at < {now} - $2::interval)
                    FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING id""",
            actor_id,
            WAITING_AGAIN,
            convert=bool,
        )

    def inspect(self, actor_id: int) -> dict[str, Any] | None:
        keys = ("id", "kind", "name", "turn_id", "turn_started_at", "waits_for_id", "waiting_at", "alarm",
                "leased", "waiting")  # fmt: skip
        return self._ask(
            """SELECT id, kind, name, turn_id, turn_started_at, waits_for_id, waiting_at, alarm,
                      token IS NOT NULL AND lease_expires_at > {now},
                      COALESCE(waiting_at > {now} - $2::interval, false)
                 FROM agents_actor WHERE id = $1::bigint""",
            actor_id,
            WAITING_FRESH,
            convert=lambda rows: dict(zip(keys, rows[0], strict=True)) if rows else None,
        )

    def wait_for(self, actor_id: int, token: uuid.UUID, target_id: int | None, lock_timeout: float) -> None:
        with self.transaction(lock_timeout=lock_timeout):
            self._say(
                """UPDATE agents_actor SET waits_for_id = $3::bigint
                    WHERE id = $1::bigint AND token = $2::uuid""",
                actor_id,
                token,
                target_id,
            )

    # The sweep: agents_actor_due and agents_actor_taken serve it, if what the alarm is compared with is known
    # before the scan (a volatile function in the condition would be called for every row). Kind by kind, so
    # that those that are paused cost nothing, however much of them is due.
    def sweep(self, kinds: Sequence[str], limit: int, within: dt.timedelta) -> list[Alarm]:
        return self._ask(
            """SELECT * FROM (
                  SELECT a.* FROM (
                      SELECT kind FROM json_array_elements_text($1::json) AS k(kind)
                       WHERE NOT EXISTS (SELECT 1 FROM agents_pause p WHERE p.kind IN ('', k.kind))) k
                   CROSS JOIN LATERAL (
                      SELECT id, kind, name, alarm, {now} FROM agents_actor
                       WHERE kind = k.kind AND alarm <= (SELECT {now}) + $2::interval
                         AND taken_at IS NULL AND (token IS NULL OR lease_expires_at <= {now})
                       ORDER BY alarm LIMIT $3::int) a
                  UNION ALL
                  (SELECT * FROM (
                      SELECT id, kind, name, alarm, {now} FROM agents_actor
                       WHERE taken_at IS NOT NULL AND alarm <= (SELECT {now}) + $2::interval
                         AND (token IS NULL OR lease_expires_at <= {now})
                       ORDER BY alarm OFFSET 0) t
                    WHERE kind IN (SELECT json_array_elements_text($1::json)) LIMIT $3::int)) found
                ORDER BY alarm LIMIT $3::int""",
            as_json(list(kinds)),
            within,
            limit,
            convert=lambda rows: [Alarm(*row) for row in rows],
        )


@cache
def _update(source: str, tasks: bool, nexts: bool) -> str:
    """The last statement of a commit. Several texts, so that no commit pays for what it doesn't need."""
    begun = """EXISTS (SELECT 1 FROM scheduler_attempt p WHERE p.actor_id = r.id AND p.outcome = 'running'
                          AND p.turn_id = r.next_turn_id)"""
    return f"""
        UPDATE agents_actor a SET
          token = CASE WHEN r.frees THEN NULL ELSE a.token END,
          lease_expires_at = CASE WHEN r.frees THEN NULL
                                  WHEN r.own THEN $1::timestamptz + $2::float8 * interval '1 second'
                                  ELSE a.lease_expires_at END,
          turn_id = CASE WHEN r.frees THEN NULL WHEN r.begun THEN r.next_turn_id ELSE a.turn_id END,
          turn_started_at = CASE WHEN r.begun THEN $1::timestamptz ELSE a.turn_started_at END,
          stop_turn_id = CASE WHEN r.frees OR r.begun THEN NULL ELSE a.stop_turn_id END,
          waits_for_id = CASE WHEN r.own THEN NULL ELSE a.waits_for_id END,
          version = a.version + CASE WHEN r.dirty THEN 1 ELSE 0 END,
          committed_by = COALESCE(r.committed_by, a.committed_by),
          started = a.started OR COALESCE(r.starts, false),
          seq = COALESCE(r.seq, a.seq), cursor = COALESCE(r.cursor, a.cursor),
          state = CASE WHEN r.state_changed THEN r.state ELSE a.state END,
          alarm = {f"CASE WHEN r.tasks THEN {_ALARM} ELSE a.alarm END" if tasks else "a.alarm"}
        FROM (
          SELECT r.*, b.begun,
                 COALESCE(r.own, false) AND NOT COALESCE(r.keep, false) AND NOT b.begun AS frees
            FROM {located(source, "agents_actor", "t.id = r.id")} AS r
           CROSS JOIN LATERAL (SELECT {begun if nexts else "false"} AS begun OFFSET 0) b OFFSET 0) r
        WHERE {there("a", "r")}
        RETURNING a.id, a.kind, a.name, a.alarm"""


@cache
def _begun(more: str = "") -> str:
    """Begins the tasks at the places in ``picked``, and their attempts. ``more``: what else it returns."""
    return f"""begun AS (
                  UPDATE scheduler_task t SET attempts = t.attempts + 1
                    FROM picked p WHERE {there("t", "p")}
                  RETURNING {_TASK}, p.turn_id, p.attempt_id{more}),
                opened AS (
                  INSERT INTO scheduler_attempt
                    (id, actor_id, task_pk, task_id, lane, method, payload, number, turn_id, outcome,
                     due_at, started_at, error, traceback)
                  SELECT attempt_id, actor_id, id, task_id, lane, method, payload, attempts, turn_id,
                         'running', due_at, $2::timestamptz, '', '' FROM begun)
                SELECT * FROM begun"""


Types = tuple[tuple[str, str], ...]  # a source's columns and their types

_CLAIMED: Types = (
    ("id", "bigint"), ("new_token", "uuid"), ("new_turn_id", "uuid"), ("framework", "boolean"),
    ("drains", "boolean"),
)  # fmt: skip
_UPDATED: Types = (
    ("id", "bigint"), ("own", "boolean"), ("keep", "boolean"), ("dirty", "boolean"), ("committed_by", "uuid"),
    ("next_turn_id", "uuid"), ("seq", "bigint"), ("cursor", "bigint"), ("state_changed", "boolean"),
    ("state", "jsonb"), ("tasks", "boolean"), ("starts", "boolean"),
)  # fmt: skip


def _source(types: Types, rows: Sequence[Row], first: int = 1) -> tuple[str, list[Any]]:
    """Rows as what a statement selects from, to be given an alias, and its parameters from ``$first`` on.

    One row goes over as it is: that saves a lone turn a seventh of what it costs the server.
    """
    if len(rows) != 1:
        text = as_json(rows)
        return _many(types, first, "jsonb" if len(text) < MOST_JSONB else "json"), [text]
    (row,) = rows
    cells = [
        as_json(value) if type == "jsonb" and value is not None else value
        for column, type in types
        for value in (row.get(column),)
    ]
    return _one(types, first), cells


@cache
def _many(types: Types, first: int, form: str) -> str:
    record = ", ".join(f"{column} {type}" for column, type in types)
    return f"(SELECT * FROM {form}_to_recordset(${first}::{form}) AS r({record}))"


@cache
def _one(types: Types, first: int) -> str:
    # A cast to varchar(n) would cut in silence what the column itself refuses.
    cells = (
        f"${at}::{'text' if type.startswith('varchar') else type} AS {column}"
        for at, (column, type) in enumerate(types, first)
    )
    return f"(SELECT {', '.join(cells)})"


def _with_bytes(table: Table, rows: Sequence[Row]) -> tuple[str, list[Any]]:
    """The same for a table with bytes in it, which go over as they are, in an array a column beside the JSON
    of the others: 100 pages took 3.5 ms so, and 10 ms as hexadecimal text in JSON."""
    binary = [c for c in table.columns if c in table.binary_columns]
    record = ", ".join(f"{column} {type}" for column, type in _types(table))
    arrays = ", ".join(f"unnest(${at}::bytea[])" for at, _ in enumerate(binary, 2))
    names = ", ".join([column for column, _ in _types(table)] + binary)
    rest = [{c: value for c, value in row.items() if c not in binary} for row in rows]
    source = f"(SELECT * FROM ROWS FROM (json_to_recordset($1::json) AS ({record}), {arrays}) AS r({names}))"
    return source, [as_json(rest), *(Blobs(row[c] for row in rows) for c in binary)]


@cache
def _types(table: Table) -> Types:
    """The columns of a table that JSON can hold, and their types."""
    fields = {f.column: f for f in apps.get_model(table.model)._meta.concrete_fields}
    connection = connections[DEFAULT_DB_ALIAS]
    return tuple(
        (c, fields[c].db_type(connection) or "") for c in table.columns if c not in table.binary_columns
    )


def _milliseconds(*seconds: float) -> list[str]:
    return [f"{round(s * 1000)}ms" for s in seconds]


@cache
def _with_clock(query: str) -> str:
    return query.replace("{now}", now_sql())


def _now_alone(rows: Rows) -> tuple[dt.datetime, dict[int, dict[str, int]]]:
    return rows[0][0], {}


def _first(rows: Rows) -> Any:
    return rows[0][0] if rows else None


def _json(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, str | bytes) else value


def _actor(row: Any) -> ActorRow:
    id, _, hold, _, kind, name, version, seq, cursor, state, started, sandbox, now = row
    return ActorRow(id, kind, name, version, seq, cursor, _json(state), started, now, hold, sandbox)


def _task(row: Any) -> StartedTask:
    return StartedTask(
        pk=row[0], attempt_pk=row[14], turn_id=row[13], task_id=row[2], lane=row[3], method=row[4],
        payload=_json(row[5]), due_at=row[6], every_seconds=row[7], cron=row[8], tz=row[9],
        attempt=row[10], max_retries=row[11], carried=row[12],
    )  # fmt: skip
