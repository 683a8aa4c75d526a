"""The store's statements for SQLite.

One writer at a time holds the whole database (immediate transactions), so nothing needs a row lock; the
conditions on the rows decide as they do on PostgreSQL. The clock is this machine's: there is no other.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.utils import Error as DatabaseError

from agents import clock, conf, faults
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
from agents.turn import ActorRow, StartedTask
from agents.writes import Row, Table

T = TypeVar("T")

_ACTOR = "id, kind, name, version, seq, cursor, state, started, sandbox"
# What keeps turns of an actor's agent from beginning.
_HOLD = """CASE WHEN taken_at IS NOT NULL THEN 'taken' WHEN paused_at IS NOT NULL THEN 'actor'
    ELSE COALESCE((SELECT CASE p.kind WHEN '' THEN 'everything' ELSE 'kind' END FROM agents_pause p
                    WHERE p.kind IN ('', agents_actor.kind) ORDER BY p.kind LIMIT 1), '') END"""
_TASK = (
    "t.id, t.actor_id, t.task_id, t.lane, t.method, t.payload, t.due_at, t.every_seconds, t.cron, t.tz, "
    "t.attempts, t.max_retries, t.carried"
)
_TIMERS = "SELECT {} FROM scheduler_task WHERE actor_id = ? AND status = 'pending' AND NOT lane = 'inbox'"
_INBOX = "SELECT {} FROM scheduler_task WHERE actor_id = ? AND status = 'pending' AND lane = 'inbox'"
_SAID = f"{_INBOX} AND method = '{RECEIVE}'"


def stored(value: Any) -> Any:
    """A value as Django's SQLite backend stores it, so that the ORM and text comparison agree."""
    if isinstance(value, dt.datetime):
        return str(value.astimezone(dt.UTC).replace(tzinfo=None))
    if isinstance(value, uuid.UUID):
        return value.hex
    return value


def moment(value: str | dt.datetime | None) -> dt.datetime | None:
    """Back again: Django's converters may have parsed the column, but never give it a zone."""
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    return None if value is None else value.replace(tzinfo=dt.UTC)


class SqliteStatements(Statements):
    def _run(self, query: str, params: Iterable[Any] = ()) -> list[Any]:
        return self._guarded(lambda raw: raw.execute(query, [stored(p) for p in params]).fetchall())

    def _guarded(self, work: Callable[[Any], T]) -> T:
        connection = connections[DEFAULT_DB_ALIAS]
        try:
            with connection.wrap_database_errors:
                connection.ensure_connection()
                faults.point("statement")
                result = work(connection.connection)
                faults.point("answer")
                return result
        except DatabaseError as error:
            meaning = translated(error)
            if isinstance(meaning, ConnectionLost) and not connection.in_atomic_block:
                connection.close()
            if meaning is error:
                raise
            raise meaning from error

    @contextmanager
    def transaction(
        self, *, with_orm: bool = False, brief: bool = False, lock_timeout: float = LOCK_TIMEOUT
    ) -> Iterator[None]:
        # An immediate transaction waits for the one writer there may be, as long as the connection's own
        # timeout says; there are no other locks.
        connection = connections[DEFAULT_DB_ALIAS]
        try:
            with transaction.atomic():
                yield
                faults.point("transaction.commit")
            with connection.wrap_database_errors:
                faults.point("transaction.committed")
        except DatabaseError as error:
            meaning = translated(error)
            if isinstance(meaning, ConnectionLost):
                connection.close()
            if meaning is error:
                raise
            raise meaning from error
        except ConnectionLost:
            connection.close()
            raise

    def flush(self) -> None:
        pass  # every statement is run at once

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self._run("BEGIN DEFERRED")  # sees what was committed when its first query ran
        try:
            yield
        finally:
            self._run("ROLLBACK")

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) + clock.offset

    # Addresses

    def ensure(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        ids = self.find(addresses)()
        return ids if all(a in ids for a in addresses) else self.make(addresses, lock_timeout)

    def make(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        with self.transaction():
            for kind, name in addresses:
                self._run("INSERT OR IGNORE INTO agents_actor (kind, name) VALUES (?, ?)", (kind, name))
            return self.find(addresses)()

    def find(self, addresses: Sequence[Address]) -> Answer[dict[Address, int]]:
        found = {}
        for kind, name in addresses:
            for (id,) in self._run("SELECT id FROM agents_actor WHERE kind = ? AND name = ?", (kind, name)):
                found[kind, name] = id
        return lambda: found

    def read(self, query: Query, *params: Any) -> Answer[list[tuple[Any, ...]]]:
        rows = self._run(query.sqlite.replace("{now}", f"'{stored(self.now())}'"), params)
        return lambda: rows

    # Claims

    def lease(self, claims: Sequence[Claim], seconds: float, *, dead: bool) -> Answer[Leased]:
        now = self.now()
        leased = Leased({}, set(), {})
        for claim in claims:
            for *row, was_held, hold in self._run(
                f"""SELECT {_ACTOR}, token IS NOT NULL, {_HOLD} FROM agents_actor
                     WHERE id = ? AND (token IS NULL OR lease_expires_at <= ?)""",
                (claim.actor_id, now),
            ):
                if hold and not claim.framework and not (claim.drain and hold == "taken"):
                    leased.held[claim.actor_id] = hold
                    continue
                if was_held:
                    leased.dead.add(claim.actor_id)
                    if not dead:
                        continue
                self._run(
                    """UPDATE agents_actor SET token = ?, turn_id = ?, turn_started_at = ?,
                              lease_expires_at = ?, stop_turn_id = NULL, waits_for_id = NULL,
                              waiting_at = NULL
                        WHERE id = ?""",
                    (claim.token, claim.turn_id, now, now + dt.timedelta(seconds=seconds), claim.actor_id),
                )
                id, kind, name, version, seq, cursor, state, started, sandbox = row
                leased.rows[id] = ActorRow(
                    id, kind, name, version, seq, cursor, _json(state), bool(started), now, hold,
                    bool(sandbox),
                )  # fmt: skip
        return lambda: leased

    def lock(
        self, ids: Sequence[int], counted: Sequence[int] = (), *, skip: bool = False
    ) -> Answer[tuple[dict[int, LockedRow], dt.datetime]]:
        now = self.now()
        pending = self.pending(counted)
        locked = {}
        for id in ids:
            for token, expires, version, kind, name, waiting, hold in self._run(
                f"""SELECT token, lease_expires_at, version, kind, name, waiting_at, {_HOLD}
                      FROM agents_actor WHERE id = ?""",
                (id,),
            ):
                expires_at, waiting_at = moment(expires), moment(waiting)
                locked[id] = LockedRow(
                    uuid.UUID(token) if token else None,
                    expires_at is not None and expires_at > now,
                    version,
                    kind,
                    name,
                    waiting_at is not None and waiting_at > now - WAITING_FRESH,
                    hold,
                    pending.get(id, {}),
                )
        return lambda: (locked, now)

    def due(self, claims: Sequence[Claim]) -> Answer[dict[int, Due]]:
        now = self.now()
        rows: list[tuple[int, int, bool, dt.datetime, bool]] = []
        for claim in claims:
            until = claim.due_before or now
            taken = self._held(claim.actor_id)[0]
            timers = (
                []
                if taken
                else self._run(
                    f"{_TIMERS.format('id, due_at')} AND due_at <= ? ORDER BY due_at, id LIMIT ?",
                    (claim.actor_id, until, DRAIN_WINDOW),
                )
            )
            inbox = self._run(
                f"{(_SAID if taken else _INBOX).format('id, due_at')} ORDER BY id LIMIT ?",
                (claim.actor_id, DRAIN_WINDOW),
            )
            for found, in_inbox in ((timers, False), (inbox, True)):
                for id, due_at in found:
                    at = moment(due_at)
                    assert at is not None
                    rows.append((claim.actor_id, id, in_inbox, at, at <= until))
        tasks = in_order(rows)
        due = {c.actor_id: Due(tasks.get(c.actor_id, []), c.due_before or now) for c in claims}
        return lambda: due

    def begin(self, starts: Sequence[tuple[int, Next]], now: dt.datetime) -> Answer[dict[int, StartedTask]]:
        begun = {}
        for actor_id, start in starts:
            for pk in start.due:
                picked = self._run(
                    f"""UPDATE scheduler_task SET attempts = attempts + 1
                        WHERE id = ? AND actor_id = ? AND status = 'pending' AND due_at <= ?
                          AND (NOT lane = 'inbox' OR NOT EXISTS (
                                SELECT 1 FROM scheduler_task e WHERE e.actor_id = scheduler_task.actor_id
                                   AND e.status = 'pending' AND e.lane = 'inbox'
                                   AND e.id < scheduler_task.id AND (e.method = '{RECEIVE}' OR NOT ?)))
                    RETURNING id""",
                    (pk, actor_id, start.due_before, start.hold == "taken"),
                )
                if not picked:
                    continue
                self._run(
                    """INSERT INTO scheduler_attempt
                         (actor_id, task_pk, task_id, lane, method, payload, number, turn_id, outcome,
                          due_at, started_at, error, traceback)
                       SELECT actor_id, id, task_id, lane, method, payload, attempts, ?, 'running',
                              due_at, ?, '', '' FROM scheduler_task WHERE id = ?""",
                    (start.turn_id, now, pk),
                )
                task = self.begun(actor_id, start.turn_id)
                assert task is not None
                begun[actor_id] = task
                break
        return lambda: begun

    def begin_anew(
        self, starts: Sequence[tuple[int, Next]], now: dt.datetime
    ) -> Answer[dict[int, tuple[StartedTask, list[int]]]]:
        dues = self.due([Claim(id, n.turn_id, due_before=now) for id, n in starts])()
        found = [(id, replace(n, due=due[:1], due_before=now)) for id, n in starts if (due := dues[id].tasks)]
        begun = self.begin(found, now)()
        return lambda: {id: (task, dues[id].tasks[1:]) for id, task in begun.items()}

    def open_attempts(self, ids: Sequence[int]) -> list[tuple[int, OpenAttempt]]:
        return [
            (id, OpenAttempt(attempt_pk, task_pk, _task(row) if row[0] is not None else None))
            for id in ids
            for attempt_pk, task_pk, *row in self._run(
                f"""SELECT p.id, p.task_pk, {_TASK}, p.turn_id, p.id FROM scheduler_attempt p
                      LEFT JOIN scheduler_task t ON t.id = p.task_pk
                     WHERE p.actor_id = ? AND p.outcome = 'running'""",
                (id,),
            )
        ]

    def begun(self, actor_id: int, turn_id: uuid.UUID) -> StartedTask | None:
        rows = self._run(
            f"""SELECT {_TASK}, p.turn_id, p.id FROM scheduler_attempt p
                  JOIN scheduler_task t ON t.id = p.task_pk
                 WHERE p.actor_id = ? AND p.outcome = 'running' AND p.turn_id = ?""",
            (actor_id, turn_id),
        )
        return _task(rows[0]) if rows else None

    # Commits

    def end_tasks(self, ends: Sequence[tuple[int, TaskEnd]], now: dt.datetime) -> None:
        for actor_id, end in ends:
            self._run(
                """UPDATE scheduler_attempt SET outcome = ?, ended_at = ?, error = ?, traceback = ?
                    WHERE id = ?""",
                (end.outcome, now, end.error, end.traceback, end.attempt_pk),
            )
            if end.action in ("delete", "advance", "gone"):
                self._run(
                    "DELETE FROM scheduler_step WHERE actor_id = ? AND task_pk = ?", (actor_id, end.task_pk)
                )
            match end.action:
                case "delete":
                    self._run("DELETE FROM scheduler_task WHERE id = ?", (end.task_pk,))
                case "advance":
                    self._run(
                        "UPDATE scheduler_task SET due_at = ?, attempts = 0, error = '' WHERE id = ?",
                        (end.due_at, end.task_pk),
                    )
                case "retry":
                    self._run(
                        "UPDATE scheduler_task SET due_at = ?, error = ? WHERE id = ?",
                        (end.due_at, end.error, end.task_pk),
                    )
                case "park":
                    self._run(
                        "UPDATE scheduler_task SET status = 'parked', parked_at = ?, error = ? WHERE id = ?",
                        (now, end.error, end.task_pk),
                    )
                case "release":
                    self._run(
                        "UPDATE scheduler_task SET attempts = attempts - 1 WHERE id = ?", (end.task_pk,)
                    )

    def delete(self, table: Table, rows: Sequence[Row]) -> None:
        on = " AND ".join(f"{c} = ?" for c in table.columns)
        for row in rows:
            key = [row[c] for c in table.columns]
            if table.model == "scheduler.Task":  # its steps' results go with a task
                self._run(
                    f"""DELETE FROM scheduler_step WHERE (actor_id, task_pk) IN (
                          SELECT actor_id, id FROM {table.name} WHERE {on})""",
                    key,
                )
            self._run(f"DELETE FROM {table.name} WHERE {on}", key)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._many(f"INSERT INTO {_into(table)}", table, rows)

    def insert_returning(self, table: Table, rows: Sequence[Row]) -> Answer[list[int]]:
        query = f"INSERT INTO {_into(table)} RETURNING id"
        ids = [id for values in _values(table, rows) for (id,) in self._run(query, values)]
        return lambda: ids

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        sets = ", ".join(f"{c} = excluded.{c}" for c in table.columns if c not in table.conflict)
        query = f"INSERT INTO {_into(table)} ON CONFLICT ({', '.join(table.conflict)}) DO UPDATE SET {sets}"
        self._many(query, table, rows)

    def _many(self, query: str, table: Table, rows: Sequence[Row]) -> None:
        values = _values(table, rows)
        self._guarded(lambda raw: raw.executemany(query, values))

    def take_keys(self, keys: Sequence[tuple[int, str]]) -> Answer[set[tuple[int, str]]]:
        now, taken = self.now(), set()
        for id, key in keys:
            if self._run(
                """INSERT INTO scheduler_inboxkey (actor_id, key, accepted_at) VALUES (?, ?, ?)
                   ON CONFLICT (actor_id, key) DO NOTHING RETURNING id""",
                (id, key, now),
            ):
                taken.add((id, key))
        return lambda: taken

    def known_tasks(self, tasks: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
        return {
            (id, task_id)
            for id, task_id in tasks
            if self._run(
                """SELECT 1 FROM scheduler_task WHERE actor_id = ? AND task_id = ?
                   UNION SELECT 1 FROM scheduler_attempt WHERE actor_id = ? AND task_id = ?""",
                (id, task_id, id, task_id),
            )
        }

    def pending(self, ids: Sequence[int]) -> dict[int, dict[str, int]]:
        return {
            id: dict(
                self._run(
                    """SELECT lane, count(*) FROM scheduler_task
                        WHERE actor_id = ? AND status = 'pending' GROUP BY lane""",
                    (id,),
                )
            )
            for id in ids
        }

    def update_actors(self, rows: Sequence[dict[str, Any]], now: dt.datetime) -> Answer[list[Alarm]]:
        alarms = []
        for row in rows:
            sets: dict[str, Any] = {}
            if row.get("own"):
                sets["waits_for_id"] = None
                next_turn_id = row.get("next_turn_id")
                begun = next_turn_id is not None and self.begun(row["id"], next_turn_id) is not None
                if not (row.get("keep") or begun):
                    sets |= {"token": None, "lease_expires_at": None, "turn_id": None, "stop_turn_id": None}
                else:
                    sets["lease_expires_at"] = now + dt.timedelta(seconds=conf.get("LEASE"))
                if begun:
                    sets |= {"turn_id": next_turn_id, "turn_started_at": now, "stop_turn_id": None}
            if row.get("dirty"):
                sets["committed_by"] = row["committed_by"]
            if row.get("starts"):
                sets["started"] = True
            for name in ("seq", "cursor"):
                if row.get(name) is not None:
                    sets[name] = row[name]
            if row.get("state_changed"):
                sets["state"] = _dumped(row["state"])
            if row.get("tasks"):
                sets["alarm"] = self._alarm(row["id"])
            version = ", version = version + 1" if row.get("dirty") else ""
            assignments = ", ".join(f"{c} = ?" for c in sets) or "id = id"
            for kind, name, alarm in self._run(
                f"UPDATE agents_actor SET {assignments}{version} WHERE id = ? RETURNING kind, name, alarm",
                [*sets.values(), row["id"]],
            ):
                alarms.append(Alarm(row["id"], kind, name, moment(alarm), now))
        return lambda: alarms

    def _held(self, actor_id: int) -> tuple[bool, bool]:
        """Whether an operator has taken the actor over, and whether it is paused."""
        query = "SELECT taken_at IS NOT NULL, paused_at IS NOT NULL FROM agents_actor WHERE id = ?"
        return next(
            ((bool(taken), bool(paused)) for taken, paused in self._run(query, (actor_id,))), (False, False)
        )

    def _alarm(self, actor_id: int) -> dt.datetime | None:
        taken, paused = self._held(actor_id)
        if taken:
            said = self._run(_SAID.format("due_at") + " ORDER BY id LIMIT 1", (actor_id,))
            return moment(said[0][0]) if said else None
        if paused:
            return None
        timer = self._run(_TIMERS.format("due_at") + " ORDER BY due_at LIMIT 1", (actor_id,))
        head = self._run(_INBOX.format("due_at") + " ORDER BY id LIMIT 1", (actor_id,))
        return min((at for (due,) in timer + head if (at := moment(due)) is not None), default=None)

    def alarms(self, ids: Sequence[int], now: dt.datetime) -> list[Alarm]:
        return [
            Alarm(id, kind, name, moment(alarm), now)
            for id in ids
            for kind, name, alarm in self._run(
                "SELECT kind, name, alarm FROM agents_actor WHERE id = ?", (id,)
            )
        ]

    def committed_by(self, actor_id: int, version: int) -> uuid.UUID | None:
        rows = self._run(
            "SELECT turn_id FROM agents_turnrecord WHERE actor_id = ? AND version = ?", (actor_id, version)
        )
        return uuid.UUID(rows[0][0]) if rows else None

    # Leases

    def renew(self, leases: Sequence[tuple[int, uuid.UUID]], seconds: float) -> dict[uuid.UUID, bool]:
        renewed = {}
        with self.transaction():
            now = self.now()
            for id, token in leases:
                if self._run(
                    """UPDATE agents_actor SET lease_expires_at = ?
                        WHERE id = ? AND token = ? AND lease_expires_at > ? RETURNING id""",
                    (now + dt.timedelta(seconds=seconds), id, token, now),
                ):
                    renewed[token] = True
        return renewed

    def free(self, actor_id: int, token: uuid.UUID) -> bool:
        # The attempt stays open and the lease looks dead: whoever claims next applies the retry rule.
        past = self.now() - dt.timedelta(seconds=1)
        return bool(
            self._run(
                "UPDATE agents_actor SET lease_expires_at = ? WHERE id = ? AND token = ? RETURNING id",
                (past, actor_id, token),
            )
        )

    def stops(self, ids: Sequence[int]) -> dict[int, uuid.UUID]:
        marks = ", ".join("?" for _ in ids)
        rows = self._run(
            f"SELECT id, stop_turn_id FROM agents_actor WHERE id IN ({marks}) AND stop_turn_id IS NOT NULL",
            ids,
        )
        return {id: uuid.UUID(turn_id) for id, turn_id in rows}

    def stop(self, actor_id: int, turn_id: uuid.UUID | None, lock_timeout: float) -> uuid.UUID | None:
        rows = self._run(
            """UPDATE agents_actor SET stop_turn_id = turn_id
                WHERE id = ? AND token IS NOT NULL AND lease_expires_at > ? AND turn_id = COALESCE(?, turn_id)
            RETURNING stop_turn_id""",
            (actor_id, self.now(), turn_id),
        )
        return uuid.UUID(rows[0][0]) if rows else None

    def mark_waiting(self, actor_id: int) -> bool:
        now = self.now()
        return bool(
            self._run(
                """UPDATE agents_actor SET waiting_at = ? WHERE id = ? AND token IS NOT NULL
                      AND (waiting_at IS NULL OR waiting_at < ?) RETURNING id""",
                (now, actor_id, now - WAITING_AGAIN),
            )
        )

    def inspect(self, actor_id: int) -> dict[str, Any] | None:
        rows = self._run(
            """SELECT id, kind, name, token, lease_expires_at, turn_id, turn_started_at, waits_for_id,
                      waiting_at, alarm FROM agents_actor WHERE id = ?""",
            (actor_id,),
        )
        if not rows:
            return None
        id, kind, name, token, expires, turn_id, started, waits_for, waiting, alarm = rows[0]
        now, expires_at, waiting_at = self.now(), moment(expires), moment(waiting)
        return {
            "id": id,
            "kind": kind,
            "name": name,
            "turn_id": uuid.UUID(turn_id) if turn_id else None,
            "turn_started_at": moment(started),
            "waits_for_id": waits_for,
            "waiting_at": waiting_at,
            "alarm": moment(alarm),
            "leased": token is not None and expires_at is not None and expires_at > now,
            "waiting": waiting_at is not None and waiting_at > now - WAITING_FRESH,
        }

    def wait_for(self, actor_id: int, token: uuid.UUID, target_id: int | None, lock_timeout: float) -> None:
        self._run(
            "UPDATE agents_actor SET waits_for_id = ? WHERE id = ? AND token = ?",
            (target_id, actor_id, token),
        )

    def sweep(self, kinds: Sequence[str], limit: int, within: dt.timedelta) -> list[Alarm]:
        # Kind by kind, so that those that are paused cost nothing, however much of them is due.
        now = self.now()
        paused = {kind for (kind,) in self._run("SELECT kind FROM agents_pause")}
        running = [] if "" in paused else [kind for kind in kinds if kind not in paused]
        marks = ", ".join("?" for _ in kinds)
        found = "SELECT id, kind, name, alarm FROM agents_actor"
        free = "alarm <= ? AND (token IS NULL OR lease_expires_at <= ?)"
        rows = self._run(
            f"""{found} INDEXED BY agents_actor_taken
                 WHERE taken_at IS NOT NULL AND kind IN ({marks}) AND {free} ORDER BY alarm LIMIT ?""",
            (*kinds, now + within, now, limit),
        )
        for kind in running:
            rows += self._run(
                f"{found} WHERE kind = ? AND taken_at IS NULL AND {free} ORDER BY alarm LIMIT ?",
                (kind, now + within, now, limit),
            )
        rows.sort(key=lambda row: row[3])
        return [Alarm(id, kind, name, moment(alarm), now) for id, kind, name, alarm in rows[:limit]]


# What SQLite says when nothing happened and the same may go through in a moment ...
_TRANSIENT = ("locked", "busy", "interrupted", "disk is full")
# ... and when this connection is of no use any more, or what it did last is not known.
_LOST = ("closed database", "disk I/O error", "unable to open database file")


def translated(error: BaseException) -> BaseException:
    """An error as what it means for the transaction: undone, unknown, or refused."""
    cause = error.__cause__ or error
    if isinstance(cause, sqlite3.OperationalError | sqlite3.ProgrammingError):
        if any(words in str(cause) for words in _LOST):
            return ConnectionLost(str(cause))
        if isinstance(cause, sqlite3.OperationalError) and any(words in str(cause) for words in _TRANSIENT):
            return Interrupted(str(cause))
    return error


def _into(table: Table) -> str:
    marks = ", ".join("?" for _ in table.columns)
    return f"{table.name} ({', '.join(table.columns)}) VALUES ({marks})"


def _values(table: Table, rows: Sequence[Row]) -> list[list[Any]]:
    as_json = table.json_columns
    return [[_dumped(row[c]) if c in as_json else stored(row[c]) for c in table.columns] for row in rows]


def _dumped(tree: Any) -> str | None:
    return None if tree is None else orjson.dumps(tree).decode()


def _json(value: str | None) -> Any:
    return None if value is None else orjson.loads(value)


def _task(row: Any) -> StartedTask:
    due_at = moment(row[6])
    assert due_at is not None
    return StartedTask(
        pk=row[0], attempt_pk=row[14], turn_id=uuid.UUID(row[13]), task_id=row[2], lane=row[3],
        method=row[4], payload=_json(row[5]), due_at=due_at, every_seconds=row[7], cron=row[8], tz=row[9],
        attempt=row[10], max_retries=row[11], carried=row[12],
    )  # fmt: skip
