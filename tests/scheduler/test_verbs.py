"""What an operator does with tasks, on real rows and real leases."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents import store
from agents.exceptions import TaskError, TaskGoneError, TaskRunningError
from agents.models import Actor
from agents.store import get_store
from agents.store.requests import Alarm, TaskEnd
from scheduler import verbs
from scheduler.models import Attempt, Step, Task
from tests.scheduler.turns import claim, commit, new_actor

pytestmark = pytest.mark.django_db

FUTURE = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
PAST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def actor() -> int:
    return new_actor()


@pytest.fixture
def woken() -> Iterator[list[Alarm]]:
    """The alarms that dispatchers hear of."""
    alarms: list[Alarm] = []
    store.on_alarms.append(alarms.extend)
    yield alarms
    store.on_alarms.remove(alarms.extend)


def a_task(actor_id: int, task_id: str = "process", **fields: Any) -> Task:
    fields = {"method": "process", "payload": {"n": 1}, "due_at": FUTURE} | fields
    return Task.objects.create(actor_id=actor_id, task_id=task_id, **fields)


def parked(actor_id: int, task_id: str = "process", **fields: Any) -> Task:
    fields = {
        "status": "parked", "attempts": 6, "parked_at": PAST, "error": "ValueError: no", "due_at": PAST,
    } | fields  # fmt: skip
    task = a_task(actor_id, task_id, **fields)
    Step.objects.create(actor_id=actor_id, task_pk=task.pk, name="reply", use=1, result="paid for")
    return task


def running(actor_id: int, **fields: Any) -> tuple[Task, Any]:
    """A task that a turn runs now."""
    a_task(actor_id, due_at=PAST, **fields)
    claimed = claim(actor_id, drain=True)
    assert claimed.task is not None
    return Task.objects.get(pk=claimed.task.pk), claimed


def expire(actor_id: int) -> None:
    Actor.objects.filter(pk=actor_id).update(lease_expires_at=PAST)


def alarm(actor_id: int) -> dt.datetime | None:
    return Actor.objects.get(pk=actor_id).alarm


def is_now(moment: dt.datetime | None) -> bool:
    return moment is not None and abs(moment - get_store().sql.now()) < dt.timedelta(seconds=10)


# Replay


def test_replay_makes_a_parked_task_pending_afresh(actor: int) -> None:
    task = parked(actor)
    other = Step.objects.create(actor_id=actor, task_pk=task.pk + 1, name="reply", use=1)
    returned = verbs.replay(task)
    task.refresh_from_db()
    assert (task.status, task.attempts, task.error, task.parked_at) == ("pending", 0, "", None)
    assert (task.method, task.payload) == ("process", {"n": 1})
    assert is_now(task.due_at)
    assert returned.due_at == task.due_at
    assert list(Step.objects.all()) == [other]
    assert alarm(actor) == task.due_at


def test_replay_keeps_a_recurrence(actor: int) -> None:
    task = parked(actor, every_seconds=60.0)
    assert verbs.replay(task).every_seconds == 60.0


def test_a_replayed_task_of_the_inbox_is_its_head_again(actor: int) -> None:
    first = parked(actor, "first", lane="inbox")
    a_task(actor, "second", lane="inbox", due_at=PAST)
    verbs.replay(first)
    claimed = claim(actor, drain=True)
    assert claimed.task is not None
    assert claimed.task.task_id == "first"


def test_only_a_parked_task_is_replayed(actor: int) -> None:
    task = a_task(actor)
    with pytest.raises(TaskError) as caught:
        verbs.replay(task)
    assert caught.value.code == "task_state"
    task.refresh_from_db()
    assert task.due_at == FUTURE


def test_the_task_as_it_is_decides_not_the_one_that_was_shown(actor: int) -> None:
    shown = parked(actor)
    verbs.replay(shown)
    with pytest.raises(TaskError):
        verbs.replay(shown)


# Run now


def test_run_now_makes_a_pending_task_due(actor: int) -> None:
    task = a_task(actor, attempts=2, error="ValueError: no")
    verbs.run_now(task)
    task.refresh_from_db()
    assert is_now(task.due_at)
    assert (task.status, task.attempts) == ("pending", 2)
    assert alarm(actor) == task.due_at


def test_a_parked_task_is_not_run_now(actor: int) -> None:
    with pytest.raises(TaskError):
        verbs.run_now(parked(actor))


# Cancel


@pytest.mark.parametrize("make", [a_task, parked])
def test_cancel_removes_a_task_and_its_steps_and_keeps_its_attempts(
    actor: int, make: Callable[[int], Task]
) -> None:
    task = make(actor)
    Attempt.objects.create(
        actor_id=actor, task_pk=task.pk, task_id="process", lane="timer", method="process", number=1,
        turn_id=uuid.uuid4(), outcome="failed", due_at=PAST, started_at=PAST,
    )  # fmt: skip
    a_task(actor, "later")
    assert verbs.cancel(task) is True
    assert [task.task_id for task in Task.objects.all()] == ["later"]
    assert not Step.objects.exists()
    assert Attempt.objects.get().outcome == "failed"
    assert alarm(actor) == FUTURE
    assert verbs.cancel(task) is False


def test_the_alarm_goes_with_the_last_task(actor: int) -> None:
    task = a_task(actor)
    verbs.run_now(task)
    assert alarm(actor)
    verbs.cancel(task)
    assert alarm(actor) is None


# A task that runs


@pytest.mark.parametrize("verb", [verbs.replay, verbs.run_now, verbs.cancel])
def test_a_running_task_is_left_alone(actor: int, verb: Callable[[Task], Any]) -> None:
    task, claimed = running(actor)
    with pytest.raises(TaskRunningError) as caught:
        verb(task)
    assert caught.value.code == "task_running"
    again = Task.objects.get(pk=task.pk)
    assert (again.due_at, again.attempts) == (PAST, 1)
    assert Actor.objects.get(pk=actor).token == claimed.token


def test_other_tasks_of_a_running_actor_can_be_changed_and_its_turn_commits(actor: int) -> None:
    _, claimed = running(actor)
    other = a_task(actor, "other")
    verbs.run_now(other)
    assert claimed.task is not None
    commit(claimed, task=TaskEnd(claimed.task.pk, claimed.task.attempt_pk, "done", "delete"))
    other.refresh_from_db()
    assert alarm(actor) == other.due_at


def test_a_task_whose_process_died_can_be_cancelled_and_its_attempt_ends_as_lost(actor: int) -> None:
    task, _ = running(actor)
    expire(actor)
    assert verbs.cancel(task) is True
    attempt = Attempt.objects.get()
    assert attempt.outcome == "lost"
    assert attempt.ended_at is not None
    assert claim(actor, drain=True).task is None


def test_a_task_whose_process_died_can_be_run_now(actor: int) -> None:
    task, _ = running(actor)
    expire(actor)
    verbs.run_now(task)
    assert is_now(Task.objects.get(pk=task.pk).due_at)


# What is gone


@pytest.mark.parametrize("verb", [verbs.replay, verbs.run_now])
def test_a_task_that_is_gone_is_refused(actor: int, verb: Callable[[Task], Any]) -> None:
    task = parked(actor)
    Task.objects.all().delete()
    with pytest.raises(TaskGoneError):
        verb(task)


def test_a_task_whose_actor_is_gone_is_gone(actor: int) -> None:
    task = parked(actor)
    attempt = an_attempt(actor)
    for model in (Step, Attempt, Task, Actor):
        model._default_manager.all().delete()
    assert verbs.cancel(task) is False
    with pytest.raises(TaskGoneError):
        verbs.replay(task)
    with pytest.raises(TaskGoneError):
        verbs.replay_attempt(attempt)
    assert [
        error.code for _, error in verbs.replay_all([task]).refused if isinstance(error, TaskGoneError)
    ] == ["task_gone"]


# Attempts


def an_attempt(actor_id: int, **fields: Any) -> Attempt:
    fields = {
        "task_pk": 4_000_000, "task_id": "process", "lane": "timer", "method": "process", "payload": {"n": 7},
        "number": 1, "turn_id": uuid.uuid4(), "outcome": "done", "due_at": PAST, "started_at": PAST,
        "ended_at": PAST,
    } | fields  # fmt: skip
    return Attempt.objects.create(actor_id=actor_id, **fields)


@pytest.mark.parametrize("outcome", ["done", "failed", "lost", "stopped", "released"])
@pytest.mark.parametrize("lane", ["timer", "inbox"])
def test_a_finished_attempt_is_replayed_as_a_new_timer(actor: int, outcome: str, lane: str) -> None:
    task = verbs.replay_attempt(an_attempt(actor, outcome=outcome, lane=lane))
    task.refresh_from_db()
    assert (task.method, task.payload, task.lane, task.status) == ("process", {"n": 7}, "timer", "pending")
    assert (task.attempts, task.max_retries) == (0, 5)
    assert task.task_id != "process"
    assert is_now(task.due_at)
    assert alarm(actor) == task.due_at


def test_a_replayed_attempt_leaves_the_task_it_came_from_and_takes_its_retries(actor: int) -> None:
    task = a_task(actor, max_retries=2)
    made = verbs.replay_attempt(an_attempt(actor, task_pk=task.pk, payload=None))
    assert (made.max_retries, made.payload) == (2, None)
    task.refresh_from_db()
    assert task.due_at == FUTURE


def test_a_hook_stays_a_hook_without_retries(actor: int) -> None:
    made = verbs.replay_attempt(an_attempt(actor, lane="hook", method="on_parked"))
    assert (made.lane, made.method, made.max_retries) == ("hook", "on_parked", 0)


def test_an_attempt_that_has_not_ended_is_not_replayed(actor: int) -> None:
    running(actor)
    with pytest.raises(TaskRunningError):
        verbs.replay_attempt(Attempt.objects.get())
    expire(actor)
    with pytest.raises(TaskRunningError):
        verbs.replay_attempt(Attempt.objects.get())
    assert Task.objects.count() == 1


def test_an_attempt_that_was_pruned_is_gone(actor: int) -> None:
    attempt = an_attempt(actor)
    Attempt.objects.all().delete()
    with pytest.raises(TaskGoneError):
        verbs.replay_attempt(attempt)


# Many


def test_a_bulk_does_what_can_be_done_and_says_why_the_rest_was_refused(actor: int) -> None:
    other = new_actor("bob")
    task, _ = running(actor)
    mixed = [parked(other, "one"), a_task(other, "two"), parked(actor, "three"), task]
    outcome = verbs.replay_all(mixed)
    assert sorted(task.task_id for task in outcome.done) == ["one", "three"]
    assert sorted(
        (task.task_id, error.code) for task, error in outcome.refused if isinstance(error, TaskError)
    ) == [
        ("process", "task_running"),
        ("two", "task_state"),
    ]
    assert {task.task_id: task.status for task in Task.objects.all()} == dict.fromkeys(
        ["one", "two", "three", "process"], "pending"
    )


def test_bulk_and_single_verbs_leave_the_same_rows() -> None:
    rows = []
    for name, verb, bulk in (
        ("replay", verbs.replay, verbs.replay_all),
        ("run", verbs.run_now, verbs.run_all_now),
        ("cancel", verbs.cancel, verbs.cancel_all),
    ):
        make = parked if name == "replay" else a_task
        single, many = new_actor(f"{name} one"), new_actor(f"{name} many")
        verb(make(single))
        bulk([make(many)])
        columns = ("task_id", "status", "attempts", "error", "parked_at", "method", "payload")
        rows.append(
            [
                (list(Task.objects.filter(actor_id=id).values(*columns)), is_now(alarm(id)))
                for id in (single, many)
            ]
        )
    assert all(one == many for one, many in rows)


# Waking


@pytest.mark.django_db(transaction=True)
def test_a_worker_is_woken_once_the_verb_has_committed(woken: list[Alarm]) -> None:
    actor_id = new_actor()
    task = a_task(actor_id)
    verbs.run_now(task)
    assert [(alarm.actor_id, alarm.due) for alarm in woken] == [(actor_id, True)]
    woken.clear()
    with pytest.raises(TaskError):
        verbs.replay(task)
    assert woken == []
