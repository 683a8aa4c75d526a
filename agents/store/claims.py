"""Claims: who gets the turn of an actor, and with which task a drain begins."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from agents import conf, faults
from agents.exceptions import ActorPausedError, ActorTakenOverError, DatabaseUnavailableError
from agents.store.patience import PATIENCE, Tries, retrying
from agents.store.requests import Claim, Claimed, Next, TaskEnd
from agents.store.rows import TASK, parked_hook, task_row
from agents.store.statements import (
    Answer,
    ConnectionLost,
    Due,
    Interrupted,
    Leased,
    OpenAttempt,
    Statements,
)
from agents.turn import ActorRow, StartedTask, Tell
from scheduler import retry
from scheduler.observing import attempt_failed

Outcome = Claimed | BaseException | None


class Claims:
    """A batch of claims is one transaction. It waits for nobody: rows that others have locked are skipped."""

    def __init__(self, sql: Statements) -> None:
        self.sql = sql

    def claim(self, claims: Sequence[Claim]) -> list[Outcome]:
        # One actor twice in a batch: the first claim has it, the others wait.
        first: dict[int, Claim] = {}
        is_first = []
        for claim in claims:
            is_first.append(claim.actor_id not in first)
            first.setdefault(claim.actor_id, claim)
        outcomes = self._patiently(list(first.values()), whole=any(c.drain for c in first.values()))
        return [
            outcomes.get(claim.actor_id) if leads else None
            for claim, leads in zip(claims, is_first, strict=True)
        ]

    def _patiently(self, claims: Sequence[Claim], *, whole: bool) -> dict[int, Outcome]:
        tries = Tries(PATIENCE)
        while True:
            try:
                found, dead = (self._wholly if whole else self._briefly)(claims)
                break
            except (Interrupted, ConnectionLost) as error:
                if isinstance(error, ConnectionLost):
                    # Perhaps leased, perhaps not: what those tokens hold is given back.
                    self._give_back(claims)
                if tries.over:
                    unavailable = DatabaseUnavailableError(f"the database does not answer: {error}")
                    return dict.fromkeys((c.actor_id for c in claims), unavailable)
                tries.pause()
            except Exception as error:
                # A row that cannot be read, an attempt that cannot be ended: it is one actor's, not all's.
                self._give_back(claims)
                if len(claims) == 1:
                    return {claims[0].actor_id: error}
                return {id: o for c in claims for id, o in self._patiently([c], whole=whole).items()}
        outcomes: dict[int, Outcome] = {**found}
        if dead:
            outcomes |= self._patiently([c for c in claims if c.actor_id in dead], whole=True)
        return outcomes

    def _briefly(self, claims: Sequence[Claim]) -> tuple[dict[int, Outcome], set[int]]:
        """Leases what is free, in one round trip. Also says whose old lease is dead: that takes more."""
        with self.sql.transaction(brief=True):
            lease = self.sql.lease(claims, conf.get("LEASE"), dead=False)
            faults.point("claim.commit")
        faults.point("claim.committed")
        leased = lease()
        found = _held(leased)
        for c in claims:
            if c.actor_id in leased.rows:
                found[c.actor_id] = Claimed(leased.rows[c.actor_id], c.token, c.turn_id)
        return found, leased.dead

    def _wholly(self, claims: Sequence[Claim]) -> tuple[dict[int, Outcome], set[int]]:
        """Leases what is free, recovers what dead leases left, and begins the drains' first tasks."""
        drains = [c for c in claims if c.drain]
        with self.sql.transaction():
            lease = self.sql.lease(claims, conf.get("LEASE"), dead=True)
            due = self.sql.due(drains) if drains else None
            leased = lease()
            faults.point("claim.leased")
            ended = self._recover(leased, claims) if leased.dead else []
            if ended and drains:
                due = self.sql.due(drains)  # a retry, a hook: what is due is something else now
            dues = due() if due else {}
            begun = self._begin_first([c for c in drains if c.actor_id in leased.rows], leased, dues)
            faults.point("claim.commit")
        faults.point("claim.committed")
        for id, attempt, end in ended:
            if attempt.task is not None:
                attempt_failed(leased.rows[id], attempt.task, end)
        tasks = begun()
        found = _held(leased)
        for claim in claims:
            if (row := leased.rows.get(claim.actor_id)) is None:
                continue
            found[claim.actor_id] = claimed = Claimed(row, claim.token, claim.turn_id)
            claimed.takes_over = claim.actor_id in leased.dead
            if claim.drain:
                claimed.task = tasks.get(claim.actor_id)
                claimed.due = dues[claim.actor_id].tasks[1:]
                claimed.due_before = dues[claim.actor_id].before
        return found, set()

    def _begin_first(
        self, drains: Sequence[Claim], leased: Leased, dues: dict[int, Due]
    ) -> Answer[dict[int, StartedTask]]:
        # The first of the due ones was read under the lock that is still held, so it can begin.
        starts = [
            (c.actor_id, Next(c.turn_id, due.tasks[:1], due.before, leased.rows[c.actor_id].hold))
            for c in drains
            if (due := dues[c.actor_id]).tasks
        ]
        return self.sql.begin(starts, leased.rows[starts[0][0]].now) if starts else dict

    # What dead leases left open

    def _recover(self, leased: Leased, claims: Sequence[Claim]) -> list[tuple[int, OpenAttempt, TaskEnd]]:
        """Records the attempts that dead leases left open as lost, and applies the retry rule to them."""
        wants_hook = {c.actor_id for c in claims if c.wants_on_parked}
        ended, hooks = [], []
        for id, attempt in self.sql.open_attempts(sorted(leased.dead)):
            end, hook = lost(attempt, leased.rows[id], id in wants_hook)
            ended.append((id, attempt, end))
            if hook:
                hooks.append((id, hook))
        if not ended:
            return []
        now = leased.rows[ended[0][0]].now
        self.sql.end_tasks([(id, end) for id, _, end in ended], now)
        if hooks:
            self.sql.insert(TASK, [task_row(id, hook, now) for id, hook in hooks])
        self.sql.update_actors([{"id": id, "tasks": True} for id in sorted({id for id, _, _ in ended})], now)
        return ended

    # Claims that may have happened

    def _give_back(self, claims: Sequence[Claim]) -> None:
        retrying(lambda: self._undo(claims))
        for claim in claims:
            claim.token = uuid.uuid4()

    def _undo(self, claims: Sequence[Claim]) -> None:
        with self.sql.transaction():
            # The lock waits for what a dead connection left running.
            rows, now = self.sql.lock(sorted({c.actor_id for c in claims}))()
            held = [c for c in claims if c.actor_id in rows and rows[c.actor_id].token == c.token]
            if not held:
                return
            ends = [
                (c.actor_id, TaskEnd(task.pk, task.attempt_pk, "released", "release"))
                for c in held
                if (task := self.sql.begun(c.actor_id, c.turn_id))
            ]
            if ends:
                self.sql.end_tasks(ends, now)
            freed = sorted(c.actor_id for c in held)
            self.sql.update_actors([{"id": id, "own": True, "tasks": True} for id in freed], now)


def _held(leased: Leased) -> dict[int, Outcome]:
    """Refusals: an operator wants no turn of these actors' agents to begin."""
    return {
        id: ActorTakenOverError(hold=hold) if hold == "taken" else ActorPausedError(hold=hold)
        for id, hold in leased.held.items()
    }


def lost(attempt: OpenAttempt, row: ActorRow, wants_hook: bool) -> tuple[TaskEnd, Tell | None]:
    """How an attempt ends whose lease died, and the hook that it leaves."""
    task = attempt.task
    if task is None:  # replaced or cancelled while it ran
        return TaskEnd(attempt.task_pk, attempt.attempt_pk, "lost", "gone", error=retry.LOST), None
    decision = retry.decide(None, task.attempt, task.max_retries)
    end = TaskEnd(task.pk, attempt.attempt_pk, "lost", "retry", error=decision.reason)
    if not decision.parks:
        end.due_at = row.now + dt.timedelta(seconds=decision.after)
        return end, None
    end.action = "park"
    if not wants_hook or task.lane == "hook":
        return end, None
    return end, parked_hook(row.kind, row.name, task, decision.reason, row.now)
