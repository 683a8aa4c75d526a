"""Tells: tasks from outside, put into inboxes under the lock of their actors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

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

Told = tuple[list[bool], list[Alarm]]


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
            rows, now = self._lock(tells, ids)
            if len(rows) < len(ids):
                raise Interrupted("an actor that was told something is being erased")
            accepted, updated = self._put(tells, ids, rows, now, again)
            faults.point("tell.commit")
        faults.point("tell.committed")
        return accepted, updated()

    def tell_here(self, tells: Sequence[Tell]) -> Told:
        """In the transaction that is open on this thread's connection; ``django.db`` errors as they are."""
        if not tells:
            return [], []
        try:
            while True:
                ids = self.sql.ensure(addresses(tells), LOCK_TIMEOUT)
                rows, now = self._lock(tells, ids)
                if len(rows) == len(ids):  # else somebody erased one: it is made again
                    break
            accepted, updated = self._put(tells, ids, rows, now, False)
            return accepted, updated()
        except (Interrupted, ConnectionLost) as error:
            raise (error.__cause__ or error) from None

    def _lock(
        self, tells: Sequence[Tell], ids: dict[Address, int]
    ) -> tuple[dict[int, LockedRow], dt.datetime]:
        growing = sorted({id for id, _ in told(tells, ids)})
        return self.sql.lock(sorted(ids.values()), growing)

    def _put(
        self,
        tells: Sequence[Tell],
        ids: dict[Address, int],
        rows: dict[int, LockedRow],
        now: dt.datetime,
        again: bool,
    ) -> tuple[list[bool], Answer[list[Alarm]]]:
        """``again``: an earlier try may have happened. A task whose (random) id is there did."""
        numbered = [(ids[t.kind, t.name], t) for t in tells]
        known = self.sql.known_tasks([(id, t.task_id) for id, t in numbered]) if again else set()
        new = [(id, t) for id, t in numbered if (id, t.task_id) not in known]
        room = Room(rows)
        room.takes(told((t for _, t in new), ids))
        fresh = dict(zip((t.task_id for _, t in new), put(self.sql, new, now), strict=True))
        if room.tight:
            room.check(self.sql.pending(sorted(rows)))
        updated = self.sql.update_actors([{"id": id, "tasks": True} for id in sorted(rows)], now)
        return [fresh.get(t.task_id, True) for t in tells], updated


def addresses(tells: Sequence[Tell]) -> list[Address]:
    return sorted({(t.kind, t.name) for t in tells})


def put(sql: Statements, tells: Sequence[tuple[int, Tell]], now: dt.datetime) -> list[bool]:
    """Puts tasks into inboxes whose actors are locked; False where the key had been seen."""
    keys = [(id, t.key) for id, t in tells if t.key is not None]
    fresh = sql.take_keys(keys, now) if keys else set()
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
