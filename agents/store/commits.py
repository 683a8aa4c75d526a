"""Commits: everything that turns wrote, under the fence, and how it is found out whether one happened."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import transaction

from agents import faults
from agents.exceptions import OutcomeUnknownError, TurnLostError
from agents.store import patience
from agents.store.limits import Lane, Room, additions
from agents.store.patience import Tries
from agents.store.requests import Commit, Committed, Next
from agents.store.rows import TURN_RECORD
from agents.store.statements import (
    BRIEF_LOCK_TIMEOUT,
    NEXT_WINDOW,
    Address,
    ConnectionLost,
    Delayed,
    Interrupted,
    LockedRow,
    Statements,
    lock_timeout,
)
from agents.store.tells import put, take_keys
from agents.turn import in_commit
from agents.writes import Row, Table

logger = logging.getLogger("agents.store")

# Rows with bytes in them that one statement writes.
BINARY_ROWS = 512

# None: set aside, to be tried again alone.
Outcome = Committed | BaseException | None


class Commits:
    def __init__(self, sql: Statements) -> None:
        self.sql = sql

    def commit(self, commits: Sequence[Commit], *, wait: bool) -> list[Committed | BaseException]:
        outcomes: list[Outcome] = [None] * len(commits)
        together = _independent(commits)
        unknown = False
        if len(together) > 1:
            found, unknown = self._together([commits[at] for at in together])
            for at, outcome in zip(together, found, strict=True):
                outcomes[at] = outcome
        among = set(together)
        finished: list[Committed | BaseException] = []
        for at, commit in enumerate(commits):
            outcome = outcomes[at]
            if outcome is None:
                outcome = self._commit_alone(commit, unknown and at in among, wait)
            finished.append(outcome)
        return finished

    def _together(self, commits: Sequence[Commit]) -> tuple[list[Outcome], bool]:
        """As many as can be had in one transaction; also whether the outcome of the others is unknown."""
        # A row that somebody has locked is waited for briefly. Then those go that need none such.
        for skip in (False, True):
            try:
                return self._transact(commits, timeout=BRIEF_LOCK_TIMEOUT, skip=skip), False
            except Interrupted:
                continue
            except ConnectionLost:
                return [None] * len(commits), True
            except Exception:
                # A value that the database refuses: it is one turn's, not all's.
                logger.info("a batch of %d commits goes one by one", len(commits), exc_info=True)
                break
        return [None] * len(commits), False

    def _commit_alone(self, commit: Commit, unknown: bool, wait: bool) -> Committed | BaseException:
        tries = Tries(patience.COMMIT_PATIENCE)
        timeout = lock_timeout(wait)
        while True:
            try:
                if unknown and (happened := self._happened(commit)):
                    return happened
                unknown = False
                (outcome,) = self._transact([commit], timeout=timeout, alone=True)
                if outcome is not None:
                    return outcome
                trouble: Exception = Interrupted("an actor that was told something is being erased")
            except Interrupted as error:
                trouble = error
            except ConnectionLost as error:
                unknown, trouble = True, error
            except Exception as error:  # refused by the database, or by the application's own function
                return error
            if not wait and not unknown:
                return Delayed(str(trouble))
            if tries.over and unknown:
                logger.error("the outcome of turn %s is unknown: %s", commit.turn_id, trouble)
                return OutcomeUnknownError(turn_id=commit.turn_id)
            if tries.over:
                return TurnLostError(
                    f"the database kept aborting the commit: {trouble}", turn_id=commit.turn_id
                )
            tries.pause()

    def _happened(self, commit: Commit) -> Committed | None:
        """Finds out whether a commit is in the database whose connection died. None: it is not.

        Under the actor's lock: what the dead connection left may still be running on the server, and it
        holds that lock until its commit has happened, or can't any more.
        """
        with self.sql.transaction():
            rows, now = self.sql.lock([commit.actor_id])()
            row = rows.get(commit.actor_id)
            if row is None:
                return None
            if not commit.dirty:
                # It would only have freed the lease. If that is no longer held, then it is free of it.
                happened = commit.release and row.token != commit.token
            else:
                happened = self.sql.committed_by(commit.actor_id, commit.version + 1) == commit.turn_id
            if not happened:
                return None
            begun = self.sql.begun(commit.actor_id, commit.next.turn_id) if commit.next else None
            touched: set[int] = set()
            if commit.tells:
                touched |= set(self.sql.find(sorted({(t.kind, t.name) for t in commit.tells}))().values())
            if commit.release and begun is None:
                touched.add(commit.actor_id)
            alarms = self.sql.alarms(sorted(touched), now) if touched else []
        stood_back = bool(commit.next and begun is None and row.waiting)
        # What else was due then: the drain after that one looks for it.
        anew: list[int] | None = [] if begun and commit.next and commit.next.anew else None
        return Committed(commit.version + commit.dirty, begun, now, stood_back, alarms, anew)

    # One transaction

    def _transact(
        self, commits: Sequence[Commit], *, timeout: float, alone: bool = False, skip: bool = False
    ) -> list[Outcome]:
        # Actors that are told something exist before the transaction that locks them begins; where others'
        # rows are skipped, so are those that somebody may just be making.
        ids: dict[Address, int] = {}
        if told := sorted({(t.kind, t.name) for c in commits for t in c.tells}):
            ids = self.sql.find(told)() if skip else self.sql.ensure(told, timeout)
        with self.sql.transaction(with_orm=any(c.at_commit for c in commits), lock_timeout=timeout):
            faults.point("commit.begin")
            finish = self._write(commits, ids, alone, skip)
            faults.point("commit.commit")
        faults.point("commit.committed")
        return finish()

    def _write(
        self, commits: Sequence[Commit], ids: dict[Address, int], alone: bool, skip: bool
    ) -> Callable[[], list[Outcome]]:
        reaches = [all((t.kind, t.name) in ids for t in c.tells) for c in commits]
        added = [additions(c, ids) if r else Counter[Lane]() for c, r in zip(commits, reaches, strict=True)]
        growing = sorted({actor_id for a in added for actor_id, _ in a})
        involved = sorted({c.actor_id for c in commits} | set(ids.values()))
        rows, now = self.sql.lock(involved, growing, skip=skip)()
        faults.point("commit.locked")

        room = Room(rows)
        refused: dict[int, Outcome] = {}
        good: list[Commit] = []
        for at, commit in enumerate(commits):
            if skip and commit.actor_id not in rows:
                refused[at] = None
            elif not holds(commit, rows.get(commit.actor_id)):
                refused[at] = TurnLostError(turn_id=commit.turn_id)
            elif not reaches[at] or any(ids[t.kind, t.name] not in rows for t in commit.tells):
                refused[at] = None
            elif room.takes(added[at]) or alone:
                good.append(commit)
            else:
                refused[at] = None

        self._write_rows(good, ids, now)
        for commit in good:
            if commit.at_commit:
                self._run_application(commit)
        if ends := [(c.actor_id, c.task) for c in good if c.task]:
            self.sql.end_tasks(ends, now)
        # A drain goes on with its next task, unless somebody in another process waits for the actor.
        # Nor where an operator has taken the actor over, released it or paused it since the drain began.
        nexts = {
            c.actor_id: c.next
            for c in good
            if c.next and not rows[c.actor_id].waiting and c.next.hold == rows[c.actor_id].hold
        }
        starts = {
            id: Next(n.turn_id, n.due[:NEXT_WINDOW], n.due_before, n.hold) for id, n in nexts.items() if n.due
        }
        begun = self.sql.begin(list(starts.items()), now) if starts else dict
        anew = {id: n for id, n in nexts.items() if n.anew}
        begun_anew = self.sql.begin_anew(list(anew.items()), now) if anew else dict
        if alone and room.tight:
            room.check(self.sql.pending(growing))
        faults.point("commit.written")
        updated = self.sql.update_actors(actor_rows(good, ids, starts | anew), now) if good else list

        def finish() -> list[Outcome]:
            alarms, tasks, first = {a.actor_id: a for a in updated()}, begun(), begun_anew()
            outcomes: list[Outcome] = []
            for at, commit in enumerate(commits):
                if at in refused:
                    outcomes.append(refused[at])
                    continue
                task, due = first.get(commit.actor_id) or (tasks.get(commit.actor_id), None)
                touched = {ids[t.kind, t.name] for t in commit.tells}
                if commit.release and task is None:
                    touched.add(commit.actor_id)
                outcomes.append(
                    Committed(
                        commit.version + commit.dirty,
                        task,
                        now,
                        bool(commit.next and rows[commit.actor_id].waiting),
                        [alarms[id] for id in sorted(touched)],
                        due,
                    )
                )
            return outcomes

        return finish

    def _write_rows(self, commits: Sequence[Commit], ids: dict[Address, int], now: dt.datetime) -> None:
        deletes = by_table(pair for c in commits for pair in c.writes.deletes)
        inserts = by_table(pair for c in commits for pair in c.writes.inserts)
        upserts = by_table(pair for c in commits for pair in c.writes.upserts)
        records: list[Row] = [{**c.record, "committed_at": now} for c in commits if c.record is not None]
        if records:
            inserts[TURN_RECORD] = records
        for verb, tables in (
            (self.sql.delete, deletes), (self.sql.insert, inserts), (self.sql.upsert, upserts)
        ):  # fmt: skip
            for table, rows in tables.items():
                self._write_table(verb, table, rows)
        if tells := [t for c in commits for t in c.tells]:
            fresh = take_keys(self.sql, tells, ids)
            put(self.sql, [(ids[t.kind, t.name], t) for t in tells], now, fresh)

    def _write_table(
        self, verb: Callable[[Table, Sequence[Row]], None], table: Table, rows: Sequence[Row]
    ) -> None:
        if not table.binary_columns:
            verb(table, rows)
            return
        # Pages of actors' databases may be many megabytes: not all of them in one statement, nor in memory.
        for start in range(0, len(rows), BINARY_ROWS):
            verb(table, rows[start : start + BINARY_ROWS])
            if start + BINARY_ROWS < len(rows):
                self.sql.flush()  # the last of them go with what follows
            faults.point("commit.rows")

    def _run_application(self, commit: Commit) -> None:
        """The application's own writes, in this transaction; they may not reach for other actors."""
        self.sql.flush()
        token = in_commit.set(True)
        try:
            for fn, args in commit.at_commit:
                fn(*args)
        finally:
            in_commit.reset(token)
        if transaction.get_rollback():
            # Django would roll all of this back without a word.
            raise transaction.TransactionManagementError(
                "a function given to at_commit left its transaction marked for rollback"
            )
        # What they left for after the commit cannot undo it: Django logs its errors, as with robust=True.
        connection = transaction.get_connection()
        connection.run_on_commit = [(sids, fn, True) for sids, fn, _ in connection.run_on_commit]


# What a commit asks for


def _independent(commits: Sequence[Commit]) -> list[int]:
    """The positions of those that can be one transaction.

    Not turns with functions of the application: what those do is theirs to answer for. And not those of an
    actor that is there more than once (a checkpoint behind a step's save): each moves the fence of the next.
    """
    times = Counter(c.actor_id for c in commits)
    return [at for at, c in enumerate(commits) if times[c.actor_id] == 1 and not c.at_commit]


def holds(commit: Commit, row: LockedRow | None) -> bool:
    """The fence."""
    return row is not None and row.live and row.token == commit.token and row.version == commit.version


def by_table(pairs: Iterable[tuple[Table, Row]]) -> dict[Table, list[Row]]:
    tables: dict[Table, list[Row]] = {}
    for table, row in pairs:
        tables.setdefault(table, []).append(row)
    return tables


def actor_rows(
    commits: Sequence[Commit], ids: dict[Address, int], starts: dict[int, Next]
) -> list[dict[str, Any]]:
    """What the last statement updates, in the order of the ids."""
    rows: dict[int, dict[str, Any]] = {}
    for commit in commits:
        start = starts.get(commit.actor_id)
        rows[commit.actor_id] = {
            "id": commit.actor_id,
            "own": True,
            "dirty": commit.dirty,
            "committed_by": commit.turn_id if commit.dirty else None,
            "keep": not commit.release,
            "next_turn_id": start.turn_id if start else None,
            "seq": commit.seq,
            "cursor": commit.cursor,
            "state_changed": commit.state_changed,
            "state": commit.state,
            "tasks": commit.adds_tasks,
            "starts": commit.starts,
        }
    for actor_id in {ids[t.kind, t.name] for c in commits for t in c.tells}:
        rows.setdefault(actor_id, {"id": actor_id})["tasks"] = True
    return [rows[id] for id in sorted(rows)]
