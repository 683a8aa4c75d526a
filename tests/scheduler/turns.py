"""Turns with timers alone, claimed and committed by the real store."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from agents.models import Actor
from agents.store import get_store
from agents.store.requests import Claim, Claimed, Commit, Committed, TaskEnd
from agents.turn import Identity, Reader, Turn
from scheduler.recurrence import next_due
from scheduler.timers import Timers

Body = Callable[[Timers], Awaitable[Any]]


class SameThread(Reader):
    """Reads on the test's own connection."""

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await sync_to_async(fn, thread_sensitive=True)(*args)


def new_actor(name: str = "alice", kind: str = "support") -> int:
    return get_store().ensure([(kind, name)])[kind, name]


def claim(actor_id: int, **options: Any) -> Claimed:
    claimed = get_store().claim([Claim(actor_id, uuid.uuid4(), **options)])[0]
    assert isinstance(claimed, Claimed)
    return claimed


def run(actor_id: int, body: Body, **options: Any) -> Any:
    """One turn of the actor: ``body(timers)`` and a commit. Returns what the body returned."""
    return _turn(claim(actor_id), body, **options)


def run_task(actor_id: int, body: Body, *, due_before: dt.datetime | None = None, **options: Any) -> Any:
    """One turn in which the actor's first due task runs, succeeds and ends as the rules say."""
    return _turn(claim(actor_id, drain=True, due_before=due_before), body, **options)


def _turn(
    claimed: Claimed,
    body: Body,
    *,
    check_method: Callable[[str], None] = lambda name: None,
    read_only: bool = False,
    checkpoint: Body | None = None,
) -> Any:
    """``checkpoint`` is a second body, which runs after the first one's writes were committed."""
    turn = Turn(
        claimed.actor,
        Identity("call", "test", claimed.turn_id),
        SameThread(),
        task=claimed.task,
        read_only=read_only,
    )
    timers = Timers(turn, check_method)
    try:
        result = _await(body, timers)
        if checkpoint is not None:
            _commit(claimed, timers, last=False)
            result = _await(checkpoint, timers)
    except BaseException:
        Actor.objects.filter(pk=claimed.actor.id).update(token=None, lease_expires_at=None)
        raise
    _commit(claimed, timers, last=True)
    return result


def commit(claimed: Claimed, *, version: int | None = None, dirty: bool = True, **fields: Any) -> Committed:
    """One commit of the turn that was claimed; raises what the store answers instead."""
    at = claimed.actor.version if version is None else version
    request = Commit(
        actor_id=claimed.actor.id,
        token=claimed.token,
        turn_id=claimed.turn_id,
        version=at,
        dirty=dirty,
        **fields,
    )
    (result,) = get_store().commit([request])
    if not isinstance(result, Committed):
        raise result
    return result


@async_to_sync
async def _await(body: Body, timers: Timers) -> Any:
    return await body(timers)


def _commit(claimed: Claimed, timers: Timers, *, last: bool) -> None:
    turn, end = timers.turn, None
    if last and (task := claimed.task):
        due_at = next_due(task.every_seconds, task.cron, task.tz, claimed.actor.now)
        action = "gone" if timers.replaced_own else "advance" if due_at else "delete"
        end = TaskEnd(task.pk, task.attempt_pk, "done", action, due_at)
    result = commit(
        claimed, version=turn.actor.version, dirty=turn.wrote, release=last, writes=turn.collect(), task=end
    )
    turn.settle_buffer(result.version, turn.seq, turn.cursor, turn.committed_state)
