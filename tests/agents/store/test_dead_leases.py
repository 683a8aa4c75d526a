"""Turns whose process died: what the next claim finds, and what becomes of their tasks."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from agents import clock, codec
from agents.store.requests import Claim, TaskEnd
from scheduler.models import Attempt, Task
from scheduler.retry import LOST
from tests.agents.store.stage import Stage


def attempts(actor_id: int) -> list[tuple[Any, ...]]:
    rows = Attempt.objects.filter(actor_id=actor_id).order_by("pk")
    return list(rows.values_list("number", "outcome"))


def die(stage: Stage, actor: int) -> Any:
    """Begins the actor's due task in a process that is never heard of again."""
    claimed = stage.drain(actor)
    assert claimed.task is not None
    stage.expire(actor)
    return claimed


def later(seconds: float) -> None:
    clock.shift(dt.timedelta(seconds=seconds))


def test_an_attempt_is_counted_and_recorded_before_its_method_runs(stage: Stage) -> None:
    actor = stage.actor()
    (task,) = stage.told(actor, {"n": 1}, max_retries=2)
    claimed = stage.drain(actor)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.number, attempt.turn_id) == ("running", 1, claimed.turn_id)
    assert (attempt.task_pk, attempt.task_id, attempt.payload) == (task.pk, task.task_id, {"n": 1})
    assert claimed.task is not None
    assert (claimed.task.attempt, claimed.task.attempt_pk) == (1, attempt.pk)
    assert Task.objects.get().attempts == 1


def test_an_attempt_under_a_dead_lease_is_recorded_as_lost_and_retried(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    die(stage, actor)
    # A call, not a drain: whoever comes next.
    claimed = stage.claim(actor)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.error, attempt.ended_at) == ("lost", LOST, claimed.actor.now)
    task = Task.objects.get()
    assert (task.attempts, task.status, task.error) == (1, "pending", LOST)
    pause = (task.due_at - claimed.actor.now).total_seconds()
    assert 1.0 <= pause <= 1.1
    assert stage.row(actor).alarm == task.due_at
    stage.commit(stage.release(claimed))


def test_a_lost_task_runs_again_when_its_pause_is_over(stage: Stage) -> None:
    actor = stage.actor()
    (task,) = stage.told(actor, 1)
    die(stage, actor)
    early = stage.drain(actor)
    assert (early.task, early.due) == (None, [])
    stage.commit(stage.release(early))
    later(1.2)
    assert stage.run_all(actor) == [task.task_id]
    assert attempts(actor) == [(1, "lost"), (2, "done")]


def test_a_drain_that_recovers_a_lost_task_begins_the_others(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "t0"}, {"task_id": "t1"}])
    die(stage, actor)
    drain = stage.drain(actor)
    assert drain.task is not None
    assert (drain.task.task_id, drain.due) == ("t1", [])
    assert attempts(actor) == [(1, "lost"), (1, "running")]


def test_a_task_that_kills_every_process_is_parked_after_its_retries(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, max_retries=2)
    for _ in range(3):
        die(stage, actor)
        claimed = stage.claim(actor, wants_on_parked=True)
        stage.commit(stage.release(claimed))
        later(10)
    task = Task.objects.get(lane="inbox")
    assert (task.status, task.attempts, task.error) == ("parked", 3, LOST)
    assert task.parked_at is not None
    assert attempts(actor) == [(1, "lost"), (2, "lost"), (3, "lost")]
    hook = Task.objects.get(lane="hook")
    assert (hook.method, hook.max_retries, hook.status) == ("on_parked", 0, "pending")
    payload = codec.decode(hook.payload)
    assert payload == {
        "id": task.task_id, "name": "go", "payload": 1, "attempts": 3, "max_retries": 2,
        "parked_at": task.parked_at, "error": LOST,
    }  # fmt: skip


def test_a_parked_task_makes_no_hook_where_nobody_wants_one(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, max_retries=0)
    die(stage, actor)
    stage.claim(actor)
    assert Task.objects.get().status == "parked"
    assert stage.row(actor).alarm is None


def test_a_hook_that_is_lost_is_parked_and_gets_no_hook(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, {"id": "x"}, lane="hook", max_retries=0)
    die(stage, actor)
    stage.claim(actor, wants_on_parked=True)
    assert [(t.lane, t.status) for t in Task.objects.all()] == [("hook", "parked")]


def test_the_drain_that_parks_a_task_begins_its_hook(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, max_retries=0)
    die(stage, actor)
    drain = stage.drain(actor, wants_on_parked=True)
    assert drain.task is not None
    assert (drain.task.method, drain.task.lane) == ("on_parked", "hook")


def test_a_payload_that_this_version_cannot_decode_does_not_keep_its_task_from_being_parked(
    stage: Stage,
) -> None:
    actor = stage.actor()
    strange = {"$of-a-newer-version": "x"}
    stage.told(actor, strange, max_retries=0)
    die(stage, actor)
    stage.claim(actor, wants_on_parked=True)
    payload = Task.objects.get(lane="hook").payload
    assert payload is not None
    assert payload["payload"] == strange


def test_a_task_that_was_replaced_while_it_ran_is_lost_without_a_retry(stage: Stage) -> None:
    """Its attempt must not stay open for ever: nobody would end it."""
    actor = stage.actor()
    (task,) = stage.told(actor, 1)
    die(stage, actor)
    Task.objects.filter(pk=task.pk).delete()
    stage.store.realarm(actor)
    claimed = stage.claim(actor, wants_on_parked=True)
    assert attempts(actor) == [(1, "lost")]
    assert not Task.objects.exists()
    stage.commit(stage.release(claimed))


def test_a_released_attempt_is_uncounted(stage: Stage) -> None:
    """A shutdown gives its delivery back."""
    actor = stage.actor()
    stage.told(actor, 1, max_retries=0)
    for _ in range(3):
        claimed = stage.drain(actor)
        assert claimed.task is not None
        assert claimed.task.attempt == 1
        end = TaskEnd(claimed.task.pk, claimed.task.attempt_pk, "released", "release")
        stage.commit(stage.dirty(claimed, outcome="lost", task=end))
    assert Task.objects.get().attempts == 0
    assert [outcome for _, outcome in attempts(actor)] == ["released"] * 3


def test_a_voided_lease_leaves_its_attempt_to_the_next_claim(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    assert stage.store.free(actor, claimed.token)
    assert attempts(actor) == [(1, "running")]
    following = stage.claim(actor)
    assert attempts(actor) == [(1, "lost")]
    stage.commit(stage.release(following))


def test_a_turn_that_is_no_task_leaves_nothing_to_recover(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    stage.claim(actor)
    stage.expire(actor)
    drain = stage.drain(actor)
    assert drain.task is not None
    assert drain.task.attempt == 1
    assert attempts(actor) == [(1, "running")]


def test_a_recurring_task_that_is_lost_is_retried_and_keeps_recurring(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "hourly", "every_seconds": 3600.0}])
    die(stage, actor)
    stage.commit(stage.release(stage.claim(actor)))
    later(2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    assert (claimed.task.attempt, claimed.task.every_seconds) == (2, 3600.0)
    due_at = claimed.actor.now + dt.timedelta(hours=1)
    end = TaskEnd(claimed.task.pk, claimed.task.attempt_pk, "done", "advance", due_at=due_at)
    stage.commit(stage.dirty(claimed, task=end))
    task = Task.objects.get()
    assert (task.attempts, task.due_at, task.error, task.status) == (0, due_at, "", "pending")


def test_many_dead_leases_are_recovered_in_one_batch(stage: Stage) -> None:
    actors = [stage.actor() for _ in range(6)]
    for at, actor in enumerate(actors):
        stage.told(actor, 1, max_retries=at % 2)
        if at < 4:
            die(stage, actor)
    claims = [Claim(a, uuid.uuid4(), drain=True, wants_on_parked=True) for a in actors]
    results = stage.store.claim(claims)
    methods = [r.task.method if r.task else None for r in results]  # type: ignore[union-attr]
    assert methods == ["on_parked", None, "on_parked", None, "go", "go"]
