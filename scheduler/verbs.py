"""What an operator does with tasks: replay, run now, cancel. The admin and the commands call these.

Each verb runs in one transaction under the actor's row lock, recomputes the alarm and wakes a worker after
its commit. A task that is running is left alone: its turn holds the lease, and its end would undo the verb.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from agents.exceptions import AgentsError, TaskError, TaskGoneError, TaskRunningError
from agents.models import Actor
from agents.store import get_store, lock_actor
from scheduler.models import Attempt, AttemptOutcome, Lane, Step, Task, TaskStatus
from scheduler.retry import LOST

#: Retries of a task that is made from an attempt whose own task is gone.
DEFAULT_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Held:
    """An actor whose row is locked, and the database's time since then."""

    actor: Actor
    now: dt.datetime

    @property
    def leased(self) -> bool:
        expires = self.actor.lease_expires_at
        return self.actor.token is not None and expires is not None and expires > self.now


@dataclass(slots=True)
class Outcome:
    """What became of each task of a bulk: done, or refused and why."""

    done: list[Task] = field(default_factory=list)
    refused: list[tuple[Task, AgentsError]] = field(default_factory=list)


# One task. Each raises TaskGoneError for a task that is not there any more (cancel returns False), and
# TaskRunningError for one that runs.


def replay(task: Task) -> Task:
    """A parked task becomes pending and due now, with no attempts and no saved steps. Returns it.

    In the inbox it takes its old place, so it is the head again. Raises TaskError unless it is parked.
    """
    with held(task.actor_id) as holding:
        return replay_held(holding, task)


def run_now(task: Task) -> Task:
    """A pending task is due now: a timer before its moment, a retry before its pause is over. Returns it.

    Its attempts go on counting; a recurring task counts its next fire from this run. In the inbox only the
    head can run. Raises TaskError for a parked task.
    """
    with held(task.actor_id) as holding:
        return _run_now(holding, task)


def cancel(task: Task) -> bool:
    """Removes a task, pending or parked, with its saved steps; False if it was gone. Its attempts stay."""
    try:
        with held(task.actor_id) as holding:
            _cancel(holding, task)
    except TaskGoneError:
        return False
    return True


def replay_attempt(attempt: Attempt) -> Task:
    """Runs once more what a finished attempt ran: a new task, due now, with the same method and payload.

    It is a timer whatever its origin, so it neither waits behind the inbox nor holds it up; only a hook stays
    a hook. Raises TaskRunningError for an attempt that has not ended, TaskGoneError if its actor is gone.
    """
    with held(attempt.actor_id) as holding:
        return again_held(holding, attempt.pk)


# Many tasks: one transaction an actor. A task that refuses does not keep the others from theirs.


def replay_all(tasks: Iterable[Task]) -> Outcome:
    """Replays each of these tasks."""
    return _each(replay_held, tasks)


def run_all_now(tasks: Iterable[Task]) -> Outcome:
    """Makes each of these tasks due now."""
    return _each(_run_now, tasks)


def cancel_all(tasks: Iterable[Task]) -> Outcome:
    """Cancels each of these tasks; those that are gone are among the refused."""
    return _each(_cancel, tasks)


def _each(verb: Callable[[Held, Task], Task], tasks: Iterable[Task]) -> Outcome:
    outcome = Outcome()
    for actor_id, group in groupby(sorted(tasks, key=lambda t: (t.actor_id, t.pk)), lambda t: t.actor_id):
        mine = list(group)
        done: list[Task] = []
        refused: list[tuple[Task, AgentsError]] = []
        try:
            with held(actor_id) as holding:
                for task in mine:
                    try:
                        done.append(verb(holding, task))
                    except TaskError as error:  # raised before anything was written
                        refused.append((task, error))
        except TaskGoneError as error:
            refused = [(task, error) for task in mine]
        outcome.done += done
        outcome.refused += refused
    return outcome


# Under the lock. ``payload_of`` gives the payload that runs instead: (kind, method, payload).

PayloadOf = Callable[[str, str, Any], Any]


@contextmanager
def held(actor_id: int, *, wait: bool = True) -> Iterator[Held]:
    """An actor whose row is locked, in a transaction; at its end the alarm is anew. Raises TaskGoneError.

    Without ``wait`` raises Delayed where somebody else has locked it.
    """
    try:
        with lock_actor(actor_id, wait=wait) as actor:
            yield Held(actor, get_store().sql.now())
    except Actor.DoesNotExist:
        raise TaskGoneError("The actor is not there any more, nor are its tasks.") from None


def _idle(held: Held, task: Task) -> Task:
    """The task as it is now, not running."""
    try:
        current = Task.objects.get(pk=task.pk, actor_id=held.actor.pk)
    except Task.DoesNotExist:
        raise TaskGoneError from None
    begun = Attempt.objects.filter(
        actor_id=held.actor.pk, task_pk=task.pk, outcome=AttemptOutcome.RUNNING
    ).exists()
    # An attempt that is open under a dead lease ended with its process.
    if begun and held.leased:
        raise TaskRunningError
    return current


def replay_held(held: Held, task: Task, payload_of: PayloadOf | None = None) -> Task:
    """As ``replay``, of an actor that is held."""
    current = _idle(held, task)
    if current.status != TaskStatus.PARKED:
        raise TaskError("Only a parked task can be replayed; a pending one runs by itself.")
    if payload_of is not None:
        current.payload = payload_of(held.actor.kind, current.method, current.payload)
    _forget_steps(current)
    current.status, current.attempts, current.due_at = TaskStatus.PENDING, 0, held.now
    current.parked_at, current.error = None, ""
    current.save(update_fields=["status", "attempts", "due_at", "parked_at", "error", "payload"])
    return current


def again_held(held: Held, attempt_pk: int, payload_of: PayloadOf | None = None) -> Task:
    """As ``replay_attempt``, of an actor that is held."""
    attempt = Attempt.objects.filter(pk=attempt_pk, actor_id=held.actor.pk).first()
    if attempt is None:
        raise TaskGoneError("The attempt is not there any more.")
    if attempt.outcome == AttemptOutcome.RUNNING:
        raise TaskRunningError("The attempt has not ended: its task runs, or will be retried by itself.")
    original = Task.objects.filter(pk=attempt.task_pk, actor_id=attempt.actor_id).first()
    hook = attempt.lane == Lane.HOOK
    payload = attempt.payload
    if payload_of is not None:
        payload = payload_of(held.actor.kind, attempt.method, payload)
    return Task.objects.create(
        actor_id=attempt.actor_id,
        task_id=uuid.uuid4().hex,
        lane=Lane.HOOK if hook else Lane.TIMER,
        method=attempt.method,
        payload=payload,
        due_at=held.now,
        created_at=held.now,
        max_retries=original.max_retries if original else 0 if hook else DEFAULT_RETRIES,
    )


def _run_now(held: Held, task: Task) -> Task:
    current = _idle(held, task)
    if current.status != TaskStatus.PENDING:
        raise TaskError("A parked task is replayed, not run now.")
    current.due_at = held.now
    current.save(update_fields=["due_at"])
    return current


def _cancel(held: Held, task: Task) -> Task:
    current = _idle(held, task)
    _forget_steps(current)
    Task.objects.filter(pk=current.pk).delete()
    # Who takes over from a dead process ends the attempts of the tasks it finds: this one it won't find.
    Attempt.objects.filter(actor_id=held.actor.pk, task_pk=current.pk, outcome=AttemptOutcome.RUNNING).update(
        outcome=AttemptOutcome.LOST, ended_at=held.now, error=LOST
    )
    return current


def _forget_steps(task: Task) -> None:
    Step.objects.filter(actor_id=task.actor_id, task_pk=task.pk).delete()
