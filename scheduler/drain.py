"""The drain: running an actor's due tasks, one turn each, under one lease.

A drain takes what was due when it began. Each task's end is part of its turn's commit, which also begins
the next task; a caller of the actor is let through after the task that runs. Where the last turn has itself
made something due at once, as a text's turn that queues the answer, the next drain begins in its commit, too.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from agents import codec, conf, kinds
from agents.agent import Agent, TaskContext
from agents.engine import Engine
from agents.exceptions import ActorPausedError, AgentsError, OutcomeUnknownError, TurnLostError
from agents.kinds import wants_on_parked
from agents.observing import turns as observing
from agents.observing.logs import Quoted, about
from agents.store.base import parked_hook
from agents.store.requests import Claim, Claimed, Commit, Committed, Next, TaskEnd
from agents.store.rows import TASK
from agents.turn import Identity, StartedTask, Tell, Turn
from agents.turn_commits import commit_of, record_of, settle
from agents.writes import Writes
from conversations import streams, takeover
from scheduler import retry
from scheduler.observing import attempt_failed
from scheduler.recurrence import next_due
from scheduler.timers import Timers

logger = logging.getLogger("scheduler.drain")

# How long a drain that let a caller of another process through stands back before it looks again.
STAND_BACK = 1.0  # seconds
LOOK, LONGEST_LOOK = 0.01, 0.25  # seconds


@dataclass(slots=True)
class Drained:
    """What a drain did: tasks begun, and whether the actor has more that is due now."""

    ran: int = 0
    more: bool = False


async def drain(
    engine: Engine,
    actor_id: int,
    kind: str,
    goes_on: Callable[[], bool] = lambda: True,
    room: Callable[[], bool] = lambda: False,
) -> Drained:
    """Runs the due tasks of one actor. Nothing happens where another process holds it: it will wake us.

    Once ``goes_on()`` is false no further task begins. ``room``: whether nobody waits for this drain's place,
    so that the actor's next one may follow it at once.
    """
    result = Drained()
    cls = kinds.get(kind)
    place = engine.turnstile.enter(actor_id)
    if place is not None:
        try:
            await place
        except BaseException:
            engine.turnstile.give_up(actor_id, place)
            raise
    try:
        claimed = await _claim(engine, cls, actor_id)
        if claimed is None:
            return result
        await _Drain(engine, cls, claimed, result, goes_on, room).run()
    finally:
        engine.turnstile.leave(actor_id)
    return result


async def _claim(engine: Engine, cls: type[Agent[Any]], actor_id: int) -> Claimed | None:
    pause = LOOK
    while not engine.closing:
        claim = Claim(
            actor_id,
            uuid.uuid4(),
            drain=True,
            due_before=cls.clock(),
            wants_on_parked=wants_on_parked(cls.kind),
        )
        try:
            claimed = await engine.claims.submit(claim)
        except ActorPausedError:
            return None  # whoever lets it go on wakes us
        if claimed is not None:
            return claimed
        row = await engine.in_store(engine.store.inspect, actor_id)
        if row is None or row["leased"] or row["alarm"] is None:
            return None
        # Nobody holds it: its row is locked by somebody who may not wake us.
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_LOOK)
    return None


class _Drain:
    def __init__(
        self,
        engine: Engine,
        cls: type[Agent[Any]],
        claimed: Claimed,
        result: Drained,
        goes_on: Callable[[], bool],
        room: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.cls = cls
        self.claimed = claimed
        self.result = result
        self.goes_on = goes_on
        self.room = room
        self.began = claimed.due_before or claimed.actor.now
        self.due = claimed.due
        #: Somebody has taken the actor over: what is said to it is theirs to answer.
        self.taken = claimed.actor.hold == "taken"

    async def run(self) -> None:
        task, actor, token = self.claimed.task, self.claimed.actor, self.claimed.token
        if task is None:
            release = Commit(actor.id, token, self.claimed.turn_id, actor.version, dirty=False)
            try:
                self._finished(await self.engine.commit(release))
            except AgentsError:
                pass
            return
        while task is not None:
            self.result.ran += 1
            turn = Turn(
                actor,
                Identity("takeover" if self.taken else "task", task.method, task.turn_id, self.taken),
                self.engine,
                task=task,
            )
            turn.drain_began = self.began
            turn.takes_over, self.claimed.takes_over = self.claimed.takes_over, False
            try:
                committed = await self._turn(turn, task)
            finally:
                turn.let_go()
                self.engine.heartbeat.drop(token)
            if committed is None:
                return
            task = committed.next
            if task is None:
                self._finished(committed)
                if committed.stood_back:
                    await self._stand_back(actor.id)
                    self.result.more = True
                return
            assert committed.now is not None
            if committed.anew is not None:
                self.began, self.due = committed.now, committed.anew
            else:
                self.due = self.due[self.due.index(task.pk) + 1 :] if task.pk in self.due else []
            actor = turn.successor(committed.now)

    def _finished(self, committed: Committed) -> None:
        clock = self.cls.clock()
        own = [a for a in committed.alarms if a.actor_id == self.claimed.actor.id]
        self.result.more = any(a.at is not None and a.at <= (clock or a.now) for a in own)
        if clock is not None:
            # The database's clock would wake us for what isn't due by the agent's own, again and again.
            committed.alarms = [a for a in committed.alarms if a not in own]
        self.engine.announce(committed)

    async def _stand_back(self, actor_id: int) -> None:
        """The lease is free for whoever marked the row; until it was taken, or the mark is old."""
        deadline = time.monotonic() + STAND_BACK
        while time.monotonic() < deadline:
            row = await self.engine.in_store(self.engine.store.inspect, actor_id)
            if row is None or row["leased"] or not row["waiting"]:
                return
            await asyncio.sleep(LOOK)

    def _next(self, turn: Turn, commit: Commit) -> Next | None:
        """What may begin in this commit: nothing, where somebody in this process waits for the actor."""
        if not self.due and not self._anew(turn, commit):
            return None
        if self.engine.closing or not self.goes_on():
            return None
        if self.engine.turnstile.awaited(self.claimed.actor.id):
            return None
        return Next(uuid.uuid4(), self.due, self.began, self.claimed.actor.hold, anew=not self.due)

    def _anew(self, turn: Turn, commit: Commit) -> bool:
        """Whether this commit makes something due at once, which might as well begin in it."""
        if self.taken or not commit.writes.inserts:
            return False
        # Not by an agent's own clock: the database's does not say what is due by that.
        if self.cls.clock() is not None or not self.room():
            return False
        now = turn.database_now()
        return any(table is TASK and row["due_at"] <= now for table, row in commit.writes.inserts)

    async def _turn(self, turn: Turn, task: StartedTask) -> Committed | None:
        """Runs one task's turn and commits its end. None: the lease is somebody else's now."""
        budget = self.cls.task_budget or conf.get("TASK_BUDGET")
        self.claimed.turn_id = turn.id
        try:
            body = takeover.take_in if self.taken else self._body
            await self.engine.run_body(turn, self.claimed, body, budget)
            commit = commit_of(
                turn,
                self.claimed,
                "done",
                task=self._success(task, replaced=_replaced(turn)),
            )
            commit.next = self._next(turn, commit)
        except BaseException as error:
            await turn.abandoned()
            observing.failed(turn, error)
            # The lease is gone: who takes the actor over has recorded, or will record, this attempt as lost.
            gone = turn.ended_by in ("lost", "overdue")
            return None if gone else await self._failed(turn, task, error)
        try:
            committed = await self.engine.commit(commit)
        except OutcomeUnknownError as error:
            observing.failed(turn, error)
            return None  # it may have happened: what the parts prepared for it stays
        except BaseException as error:
            await turn.abandoned()
            observing.failed(turn, error)
            return None if isinstance(error, TurnLostError) else await self._failed(turn, task, error)
        settle(turn, commit, committed)
        observing.committed(turn, wrote=True)
        if committed.next is not None:
            self.engine.announce(committed)
        return committed

    async def _body(self, turn: Turn) -> Any:
        agent = self.cls(turn)
        await agent._begin()
        task = turn.task
        assert task is not None
        method = self.cls.task_method(task.method)
        payload = codec.decode(task.payload)
        if task.lane == "hook":
            return await agent._hook(task.method, payload)
        if method is None:
            return await agent.on_task(task.method, payload, TaskContext(task.task_id, task.attempt))
        bound = getattr(agent, task.method)
        parameter = payload_parameter(method)
        # A task without a payload leaves a default of the method's own as it is.
        if parameter is None or (payload is None and parameter.default is not inspect.Parameter.empty):
            return await bound()
        return await bound(payload)

    # How an attempt ends

    def _success(self, task: StartedTask, outcome: str = "done", *, replaced: bool = False) -> TaskEnd:
        end = TaskEnd(task.pk, task.attempt_pk, outcome, "delete")
        if replaced:
            end.action = "gone"
        elif due := next_due(task.every_seconds, task.cron, task.tz, self.began):
            end.action, end.due_at = "advance", due
        return end

    async def _failed(self, turn: Turn, task: StartedTask, error: BaseException) -> Committed | None:
        """Records a failed attempt and what follows, in a fenced transaction of its own."""
        tells: list[Tell] = []
        outcome = "failed"
        # Not by the error's type: what a turn calls may have been stopped, or shut down, by itself.
        if turn.ended_by == "shutdown":
            end = TaskEnd(task.pk, task.attempt_pk, "released", "release", error="the process shut down")
            outcome = "lost"
        elif turn.ended_by == "stopped":
            end = self._success(task, "stopped")
            end.error, outcome = "stopped", "stopped"
        else:
            end, tells = self._retry(turn, task, error)
        if any(isinstance(part, Timers) and part.own_is_gone for part in turn.parts):
            end.action, tells = "gone", []  # a checkpoint has replaced or cancelled the task
        kept = await self._kept(turn) if outcome == "stopped" or end.action == "park" else None
        commit = Commit(
            turn.actor.id,
            self.claimed.token,
            turn.id,
            turn.actor.version,
            dirty=True,
            seq=kept.seq if kept else None,
            cursor=kept.cursor if kept else None,
            record=record_of(kept or turn, outcome, kept.committed_seq + 1 if kept else None, None),
            tells=tells,
            task=end,
            writes=kept.collect() if kept else Writes(),
        )
        commit.next = self._next(turn, commit)
        try:
            committed = await self.engine.commit(commit)
        except (TurnLostError, OutcomeUnknownError) as lost:
            logger.warning("the failure of %s could not be recorded: %s", task.method, lost)
            return None
        except Exception:
            logger.exception("the failure of %s could not be recorded; it counts as lost", task.method)
            return None
        attempt_failed(turn.actor, task, end)
        if kept:
            settle(kept, commit, committed)
            turn.committed_seq, turn.committed_cursor = kept.committed_seq, kept.committed_cursor
        turn.settle(committed.version)
        if committed.next is not None:
            self.engine.announce(committed)
        return committed

    async def _kept(self, turn: Turn) -> Turn | None:
        """What readers saw of the text that a task was writing stays, now that the task won't write it."""
        try:
            return await streams.kept(self.engine, turn)
        except Exception:
            logger.exception("the streams of %s are left to a sweep", turn.method)
            return None

    def _retry(self, turn: Turn, task: StartedTask, error: BaseException) -> tuple[TaskEnd, list[Tell]]:
        decision = retry.decide(error, task.attempt, task.max_retries)
        end = TaskEnd(
            task.pk, task.attempt_pk, "failed", "retry",
            error=codec.clean_text(decision.reason), traceback=retry.trace(error),
        )  # fmt: skip
        where, why = f"{turn.actor.kind}/{turn.actor.name}", Quoted(end.error, type(error).__name__)
        if decision.parks:
            end.action = "park"
            logger.error(
                "%s of %s is parked after %d attempts: %s",
                task.method,
                where,
                task.attempt,
                why,
                extra=about(turn),
            )
            if task.lane != "hook" and wants_on_parked(turn.actor.kind):
                hook = parked_hook(turn.actor.kind, turn.actor.name, task, end.error, turn.now())
                return end, [hook]
            return end, []
        end.due_at = turn.now() + dt.timedelta(seconds=decision.after)
        logger.warning(
            "%s of %s failed (attempt %d): %s", task.method, where, task.attempt, why, extra=about(turn)
        )
        return end, []


def _replaced(turn: Turn) -> bool:
    """Whether the turn scheduled its own task's id anew, or cancelled it: what it left stands."""
    return any(isinstance(part, Timers) and part.replaced_own for part in turn.parts)


@cache
def payload_parameter(method: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter of a task's method that takes its one argument, the payload; None if there is none."""
    parameters = list(inspect.signature(method).parameters.values())[1:]  # without self
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return next((p for p in parameters if p.kind in kinds), None)
