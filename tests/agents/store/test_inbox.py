"""The order of tasks: the inbox strictly, timers by their time; and how a drain goes from one to the next."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from typing import Any

import pytest

from agents import clock
from agents.exceptions import TurnLostError
from agents.models import Actor
from agents.store import order, statements
from agents.store.base import TASK
from agents.store.requests import Claimed, Committed, Next, TaskEnd
from agents.store.statements import NEXT_WINDOW
from agents.writes import Table, Writes
from scheduler.models import Attempt, Task
from tests.agents.store.stage import Stage

TASK_KEY = Table("scheduler.Task", ("actor_id", "task_id"))
NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)


def later(seconds: float) -> None:
    clock.shift(dt.timedelta(seconds=seconds))


def ids(tasks: list[Task]) -> list[str]:
    return [t.task_id for t in tasks]


def fail(stage: Stage, claimed: Claimed, after: float = 5.0, **options: Any) -> Committed:
    assert claimed.task is not None
    end = stage.failed(claimed.task, after, claimed.actor.now)
    return stage.commit(stage.dirty(claimed, outcome="failed", task=end, **options))


def test_the_inbox_runs_in_the_order_in_which_it_was_told(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, *range(5)) + stage.told(actor, *range(5))
    assert stage.run_all(actor) == ids(told)


def test_a_head_that_waits_for_its_retry_holds_up_the_rest(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, 1, 2, 3)
    claimed = stage.drain(actor)
    following = stage.next(claimed)
    committed = fail(stage, claimed, next=following)
    assert committed.next is None
    head = Task.objects.get(pk=told[0].pk)
    (alarm,) = committed.alarms
    assert (alarm.at, alarm.due, stage.row(actor).alarm) == (head.due_at, False, head.due_at)
    nothing = stage.drain(actor)
    assert (nothing.task, nothing.due) == (None, [])
    stage.commit(stage.release(nothing))
    later(6)
    assert stage.run_all(actor) == ids(told)


def test_a_head_that_parks_lets_the_next_one_run(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    end = TaskEnd(claimed.task.pk, claimed.task.attempt_pk, "failed", "park", error="no", traceback="T")
    committed = stage.commit(stage.dirty(claimed, task=end, next=stage.next(claimed)))
    assert committed.next is not None
    assert committed.next.task_id == told[1].task_id
    parked = Task.objects.get(pk=told[0].pk)
    assert (parked.status, parked.parked_at, parked.error) == ("parked", committed.now, "no")


def test_a_replayed_task_takes_its_old_place(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, 1, 2, 3)
    Task.objects.filter(pk=told[0].pk).update(status="parked")
    stage.store.realarm(actor)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    assert claimed.task.task_id == told[1].task_id
    Task.objects.filter(pk=told[0].pk).update(status="pending", attempts=0)
    Attempt.objects.filter(task_pk=told[0].pk).delete()
    assert stage.run_drain(claimed) == [told[1].task_id]  # the third is not the head any more
    assert stage.run_all(actor) == [told[0].task_id, told[2].task_id]


def test_timers_pass_an_inbox_that_is_held_up(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, 1)
    fail(stage, stage.drain(actor), after=60)
    stage.turn(actor, timers=[{"task_id": "tick"}])
    assert stage.row(actor).alarm == Task.objects.get(task_id="tick").due_at
    assert stage.run_all(actor) == ["tick"]
    assert stage.row(actor).alarm == Task.objects.get(pk=told[0].pk).due_at


def test_a_timer_that_waits_for_its_retry_holds_up_nobody(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "a"}, {"task_id": "b"}])
    claimed = stage.drain(actor)
    committed = fail(stage, claimed, next=stage.next(claimed))
    assert committed.next is not None
    assert committed.next.task_id == "b"


def test_a_drain_takes_what_was_due_when_it_began(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "now"}])
    claimed = stage.drain(actor)
    stage.told(actor, "later")
    assert claimed.due == []
    assert stage.run_drain(claimed) == ["now"]
    assert len(stage.run_all(actor)) == 1


def test_a_drain_s_moment_can_be_given(stage: Stage) -> None:
    """An agent whose ``now()`` is overridden: its drains judge by that."""
    actor = stage.actor()
    now = stage.store.sql.now()
    soon = {"task_id": "soon", "due_at": now + dt.timedelta(hours=1)}
    claimed = stage.claim(actor)
    commit = stage.dirty(claimed, timers=[])
    from agents.store.rows import TASK

    commit.writes.insert(TASK, stage.timer(actor, soon["due_at"], "soon"))  # type: ignore[arg-type]
    stage.commit(commit)
    early = stage.drain(actor)
    assert early.task is None
    stage.commit(stage.release(early))
    drain = stage.drain(actor, due_before=now + dt.timedelta(hours=2))
    assert drain.task is not None
    assert (drain.task.task_id, drain.due_before) == ("soon", now + dt.timedelta(hours=2))


def test_a_drain_takes_no_more_than_its_window_and_the_next_one_the_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.store import postgres, sqlite

    for module in (postgres, sqlite, order):
        monkeypatch.setattr(module, "DRAIN_WINDOW", 6)
    actor = stage.actor()
    told = stage.told(actor, *range(10))
    stage.turn(actor, timers=[{"task_id": f"t{n}"} for n in range(4)])
    claimed = stage.drain(actor)
    assert len(claimed.due) == 5
    ran = stage.run_drain(claimed)
    assert ran == ids(told)[:6]
    assert stage.run_all(actor) == [*ids(told)[6:], "t0", "t1", "t2", "t3"]


def test_a_drain_goes_on_over_all_windows_of_candidates(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, *range(NEXT_WINDOW * 3))
    claimed = stage.drain(actor)
    assert len(claimed.due) == NEXT_WINDOW * 3 - 1
    assert stage.run_drain(claimed) == ids(told)
    assert statements.DRAIN_WINDOW >= NEXT_WINDOW * 3


def test_tasks_that_were_cancelled_or_replaced_meanwhile_are_not_begun(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": f"t{n}"} for n in range(5)])
    claimed = stage.drain(actor)
    Task.objects.filter(task_id="t1").delete()
    Task.objects.filter(task_id="t2").update(status="parked")
    Task.objects.filter(task_id="t3").update(due_at=claimed.actor.now + dt.timedelta(hours=1))
    assert stage.run_drain(claimed) == ["t0", "t4"]
    assert Attempt.objects.count() == 2


def test_more_cancelled_tasks_than_a_commit_looks_at_leave_the_rest_to_the_next_drain(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, *range(NEXT_WINDOW + 4))
    claimed = stage.drain(actor)
    Task.objects.filter(pk__in=[t.pk for t in told[1 : NEXT_WINDOW + 2]]).delete()
    assert claimed.task is not None
    committed = stage.commit(stage.dirty(claimed, task=stage.done(claimed.task), next=stage.next(claimed)))
    assert committed.next is None
    assert [a.due for a in committed.alarms] == [True]  # so whoever committed this wakes the next drain
    assert stage.row(actor).token is None
    assert stage.run_all(actor) == ids(told[NEXT_WINDOW + 2 :])


def test_a_turn_may_replace_a_task_that_its_drain_was_to_run_next(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "a"}, {"task_id": "b"}])
    claimed = stage.drain(actor)
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": actor, "task_id": "b"})
    assert claimed.task is not None
    commit = stage.dirty(
        claimed, writes=writes, timers=[{"task_id": "b"}], task=stage.done(claimed.task),
        next=stage.next(claimed),
    )  # fmt: skip
    committed = stage.commit(commit)
    assert committed.next is None
    assert stage.run_all(actor) == ["b"]


def test_a_turn_may_replace_its_own_task(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "a"}])
    claimed = stage.drain(actor)
    assert claimed.task is not None
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": actor, "task_id": "a"})
    end = TaskEnd(claimed.task.pk, claimed.task.attempt_pk, "done", "gone")
    stage.commit(stage.dirty(claimed, writes=writes, timers=[{"task_id": "a"}], task=end))
    task = Task.objects.get(task_id="a")
    assert (task.attempts, task.pk == claimed.task.pk) == (0, False)
    assert Attempt.objects.get().outcome == "done"


def test_a_fresh_mark_makes_a_drain_stand_back_and_release(stage: Stage) -> None:
    actor = stage.actor()
    told = stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    stage.store.mark_waiting(actor)
    committed = stage.commit(stage.dirty(claimed, task=stage.done(claimed.task), next=stage.next(claimed)))
    assert (committed.next, committed.stood_back) == (None, True)
    assert [a.due for a in committed.alarms] == [True]
    seen = stage.store.inspect(actor)
    assert seen is not None
    assert (seen["leased"], seen["waiting"]) == (False, True)
    taken = stage.claim(actor)  # whoever waited
    seen = stage.store.inspect(actor)
    assert seen is not None
    assert (seen["leased"], seen["waiting"]) == (True, False)
    stage.commit(stage.release(taken))
    assert stage.run_all(actor) == [told[1].task_id]


def test_an_old_mark_is_nobody_s_any_more(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    stage.store.mark_waiting(actor)
    Actor.objects.filter(pk=actor).update(waiting_at=claimed.actor.now - dt.timedelta(seconds=2))
    assert len(stage.run_drain(claimed)) == 2


def test_a_mark_on_a_free_actor_is_not_made(stage: Stage) -> None:
    actor = stage.actor()
    stage.store.mark_waiting(actor)
    assert stage.row(actor).waiting_at is None


def test_a_turn_that_asks_for_no_next_task_is_not_standing_back(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    stage.store.mark_waiting(actor)
    assert claimed.task is not None
    assert not stage.commit(stage.dirty(claimed, task=stage.done(claimed.task))).stood_back


def test_the_next_task_has_a_turn_of_its_own_under_the_same_lease(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    assert stage.store.stop(actor) == claimed.turn_id
    following = stage.next(claimed)
    committed = stage.commit(stage.dirty(claimed, task=stage.done(claimed.task), next=following))
    row = stage.row(actor)
    assert (row.token, row.turn_id, row.stop_turn_id) == (claimed.token, following.turn_id, None)
    assert row.turn_started_at == committed.now
    assert committed.next is not None
    assert committed.next.turn_id == following.turn_id
    # A late stop for the turn before finds nothing.
    assert stage.store.stop(actor, claimed.turn_id) is None


def test_a_lost_turn_begins_nothing(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    stage.expire(actor)
    commit = stage.dirty(claimed, task=stage.done(claimed.task), next=stage.next(claimed))
    assert isinstance(stage.refused(commit), TurnLostError)
    assert Attempt.objects.get().outcome == "running"


def test_a_next_without_candidates_ends_the_drain(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    assert claimed.task is not None and claimed.due_before is not None
    empty = Next(claimed.turn_id, [], claimed.due_before)
    committed = stage.commit(stage.dirty(claimed, task=stage.done(claimed.task), next=empty))
    assert (committed.next, stage.row(actor).token) == (None, None)


# The pure rule


def due(*rows: tuple[int, bool, int, bool]) -> list[int]:
    """Rows of one actor: (task, in the inbox, due at second, due)."""
    times = [(1, task, inbox, NOW + dt.timedelta(seconds=at), is_due) for task, inbox, at, is_due in rows]
    return order.in_order(times).get(1, [])


def test_timers_run_by_their_time_and_then_by_their_number() -> None:
    assert due((3, False, 2, True), (1, False, 5, True), (2, False, 2, True)) == [2, 3, 1]


def test_the_inbox_ends_at_its_first_task_that_is_not_due() -> None:
    assert due((1, True, 0, True), (2, True, 9, False), (3, True, 1, True)) == [1]


def test_a_task_of_the_inbox_never_overtakes_those_before_it() -> None:
    """The second was told before the first was retried: its own time is earlier, its place is not."""
    assert due((1, True, 5, True), (2, True, 1, True), (9, False, 3, True)) == [9, 1, 2]


def test_timers_that_are_not_due_are_left_out() -> None:
    assert due((1, False, 9, False), (2, False, 1, True)) == [2]


def test_a_drain_that_begins_in_a_commit_finds_what_a_claim_would_find_in_the_same_order(
    stage: Stage,
) -> None:
    shapes = itertools.product((-3, -1, 0, 5), repeat=4)
    for shape in itertools.islice(shapes, 0, None, 7):
        actor = stage.actor()
        first, *inbox = stage.told(actor, 0, 1, 2)
        claimed = stage.drain(actor)
        now = claimed.actor.now
        for task, seconds in zip(inbox, shape[:2], strict=True):
            Task.objects.filter(pk=task.pk).update(due_at=now + dt.timedelta(seconds=seconds))
        writes = Writes()
        for seconds in shape[2:]:
            writes.insert(TASK, stage.timer(actor, now + dt.timedelta(seconds=seconds)))
        assert claimed.task is not None
        following = Next(uuid.uuid4(), [], now, anew=True)
        committed = stage.commit(
            stage.dirty(claimed, task=stage.done(claimed.task), next=following, writes=writes)
        )
        assert committed.now is not None
        rows = Task.objects.filter(actor_id=actor).order_by("id")
        expected = order.in_order(
            (actor, t.pk, t.lane == "inbox", t.due_at, t.due_at <= committed.now) for t in rows
        ).get(actor, [])
        began = [] if committed.next is None else [committed.next.pk, *(committed.anew or [])]
        assert began == expected, shape
        if committed.next is None:
            assert committed.anew is None
            assert stage.row(actor).token is None
        else:
            assert committed.next.attempt == 1
            assert stage.row(actor).turn_id == committed.next.turn_id == following.turn_id
            assert Attempt.objects.get(actor_id=actor, outcome="running").pk == committed.next.attempt_pk
        assert first.pk not in began
        stage.audit()
