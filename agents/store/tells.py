"""Tells: tasks from outside, put into inboxes under the lock of their actors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from agents import faults
from agents.exceptions import DatabaseUnavailableError, OutcomeUnknownError
from agents.store.limits import Room, told
from agents.store.patience import PATIENCE, Tries
from agents.store.requests import Alarm
from agents.store.rows import TASK, task_row
from agents.store.statements import (
    LOCK_TIMEOUT,
    Address,
    Answer,
    ConnectionLost,
    Delayed,
    Interrupted,
    LockedRow,
    Statements,
    lock_timeout,
)
from agents.turn import Tell
from agents.writes import Row, Table

Told = tuple[list[bool], list[Alarm]]
#: Keys of actors that had not been seen before.
Fresh = Answer[set[tuple[int, str]]]


class ToldBefore(Exception):  # noqa: N818 - says what should happen next; not a failure
    """A key had been seen, so none of what goes together was put down."""


class Tells:
    def __init__(self, sql: Statements) -> None:
        self.sql = sql

    def tell(self, tells: Sequence[Tell], *, wait: bool) -> Told:
        """In a transaction of its own, tried again until its outcome is known."""
        if not tells:
            return [], []
        tries = Tries(PATIENCE)
        unknown = False
        while True:
            try:
                return self._transact(tells, again=unknown, wait=wait)
            except Interrupted as error:
                if not wait and not unknown:
                    raise Delayed(str(error)) from error
                trouble: Exception = error
            except ConnectionLost as error:
                unknown, trouble = True, error
            if tries.over and unknown:
                raise OutcomeUnknownError("whether the task is in the inbox is not known") from trouble
            if tries.over:
                raise DatabaseUnavailableError(f"the database does not answer: {trouble}") from trouble
            tries.pause()

    def _transact(self, tells: Sequence[Tell], *, again: bool, wait: bool) -> Told:
        timeout = lock_timeout(wait)
        ids = self.sql.ensure(addresses(tells), timeout)
        with self.sql.transaction(lock_timeout=timeout):
            accepted, updated = self._lock_and_put(tells, ids, again)
            faults.point("tell.commit")
        faults.point("tell.committed")
        return accepted, updated()

    def tell_with(
        self, tells: Sequence[Tell], ids: Mapping[Address, int], parts: Mapping[Table, Sequence[Row]]
    ) -> tuple[dict[Table, list[int]], list[Alarm]]:
        """One try. The parts' rows go first: a constraint of theirs makes overlapping tells wait here."""
        with self.sql.transaction():
            written = {table: self.sql.insert_returning(table, rows) for table, rows in parts.items()}
            accepted, updated = self._lock_and_put(tells, {a: ids[a] for a in addresses(tells)}, False)
            if not all(accepted):
                raise ToldBefore
            faults.point("tell.commit")
        faults.point("tell.committed")
        return {table: made() for table, made in written.items()}, updated()

    def tell_here(self, tells: Sequence[Tell]) -> Told:
        """In the transaction that is open on this thread's connection; ``django.db`` errors as they are."""
        if not tells:
            return [], []
        try:
            while True:
                ids = self.sql.ensure(addresses(tells), LOCK_TIMEOUT)
                rows, now = self._lock(tells, ids)()
                if len(rows) == len(ids):  # else somebody erased one: it is made again
                    break
            accepted, updated = self._put(tells, ids, rows, now, take_keys(self.sql, tells, ids), False)
            return accepted, updated()
        except (Interrupted, ConnectionLost) as error:
            raise (error.__cause__ or error) from None

    def _lock_and_put(
        self, tells: Sequence[Tell], ids: dict[Address, int], again: bool
    ) -> tuple[list[bool], Answer[list[Alarm]]]:
        """Two round trips: the locks and what can be had with them, and all that follows from it."""
        locked = self._lock(tells, ids)
        fresh = take_keys(self.sql, tells, ids)
        rows, now = locked()
        if len(rows) < len(ids):
            raise Interrupted("an actor that was told something is being erased")
        return self._put(tells, ids, rows, now, fresh, again)

    def _lock(
        self, tells: Sequence[Tell], ids: dict[Address, int]
    ) -> Answer[tuple[dict[int, LockedRow], dt.datetime]]:
        growing = sorted({id for id, _ in told(tells, ids)})
        return self.sql.lock(sorted(ids.values()), growing)

    def _put(
        self,
        tells: Sequence[Tell],
        ids: dict[Address, int],
        rows: dict[int, LockedRow],
        now: dt.datetime,
        fresh: Fresh,
        again: bool,
    ) -> tuple[list[bool], Answer[list[Alarm]]]:
        """``again``: an earlier try may have happened. A task whose (random) id is there did."""
        numbered = [(ids[t.kind, t.name], t) for t in tells]
        known = self.sql.known_tasks([(id, t.task_id) for id, t in numbered]) if again else set()
        new = [(id, t) for id, t in numbered if (id, t.task_id) not in known]
        room = Room(rows)
        room.takes(told((t for _, t in new), ids))
        put_down = dict(zip((t.task_id for _, t in new), put(self.sql, new, now, fresh), strict=True))
        if room.tight:
            room.check(self.sql.pending(sorted(rows)))
        updated = self.sql.update_actors([{"id": id, "tasks": True} for id in sorted(rows)], now)
        return [put_down.get(t.task_id, True) for t in tells], updated


def addresses(tells: Sequence[Tell]) -> list[Address]:
    return sorted({(t.kind, t.name) for t in tells})


def take_keys(sql: Statements, tells: Iterable[Tell], ids: Mapping[Address, int]) -> Fresh:
    """Puts down the keys of tells, once the locks of their actors were asked for; those not seen before."""
    keys = [(ids[t.kind, t.name], t.key) for t in tells if t.key is not None]
    return sql.take_keys(keys) if keys else set


def put(sql: Statements, tells: Sequence[tuple[int, Tell]], now: dt.datetime, taken: Fresh) -> list[bool]:
    """Puts tasks into inboxes whose actors are locked; False where the key had been seen."""
    fresh = set(taken())
    accepted, rows = [], []
    for id, tell in tells:
        if tell.key is not None:
            if (id, tell.key) not in fresh:
                accepted.append(False)
                continue
            fresh.discard((id, tell.key))
        accepted.append(True)
        rows.append(task_row(id, tell, now))
    if rows:
        sql.insert(TASK, rows)
    return accepted
