"""What a turn schedules, cancels and sees, written by the real store."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from agents import conf
from agents.exceptions import (
    ActorPrivateMethodError,
    ActorUnknownMethodError,
    CodecError,
    LimitError,
    ReadOnlyTurnError,
    ScheduleError,
    StepWriteError,
)
from agents.turn import in_step
from scheduler import moments
from scheduler.models import Step, Task
from scheduler.records import TaskRecord
from scheduler.timers import MAX_RETRIES, Timers
from tests.scheduler.turns import new_actor, run, run_task

pytestmark = pytest.mark.django_db


@pytest.fixture
def actor() -> int:
    return new_actor()


def the(actor_id: int, **filters: Any) -> Task:
    return Task.objects.get(actor_id=actor_id, **filters)


def parked(actor_id: int, task_id: str) -> None:
    Task.objects.filter(actor_id=actor_id, task_id=task_id).update(status="parked", attempts=6)


# The five ways to schedule


def test_queue_makes_a_task_that_is_due_at_once(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        before = timers.turn.now()
        return before, await timers.queue("process", {"a": 1}), timers.turn.now()

    before, task_id, after = run(actor, body)
    task = the(actor)
    assert (task.task_id, task.method, task.payload, task.lane) == (task_id, "process", {"a": 1}, "timer")
    assert (task.status, task.attempts, task.max_retries) == ("pending", 0, 5)
    assert before <= task.due_at <= after
    assert (task.every_seconds, task.cron, task.tz) == (None, "", "")


@pytest.mark.parametrize("seconds", [86_400, 86_400.0, dt.timedelta(days=1)])
def test_schedule_takes_numbers_and_timedeltas_from_the_turns_now(actor: int, seconds: Any) -> None:
    async def body(timers: Timers) -> Any:
        return timers.turn.now(), await timers.schedule(seconds, "nudge", id="nudge", max_retries=0)

    now, task_id = run(actor, body)
    assert task_id == "nudge"
    assert abs(the(actor).due_at - now - dt.timedelta(days=1)) < dt.timedelta(seconds=5)
    assert the(actor).max_retries == 0


def test_schedule_at_keeps_the_moment_and_takes_a_past_one_as_now(actor: int) -> None:
    future = dt.datetime(2090, 1, 1, 9, tzinfo=dt.timezone(dt.timedelta(hours=9)))

    async def body(timers: Timers) -> Any:
        await timers.schedule_at(future, "later", id="later")
        await timers.schedule_at(dt.datetime(1990, 1, 1, tzinfo=dt.UTC), "now", id="now")
        return timers.turn.now()

    after = run(actor, body)
    assert the(actor, task_id="later").due_at == dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
    assert dt.timedelta() <= after - the(actor, task_id="now").due_at < dt.timedelta(seconds=5)


def test_every_fires_for_the_first_time_after_one_interval(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        await timers.every(dt.timedelta(minutes=1), "tick", id="tick")
        return timers.turn.now()

    now = run(actor, body)
    assert the(actor).every_seconds == 60.0
    assert abs(the(actor).due_at - now - dt.timedelta(minutes=1)) < dt.timedelta(seconds=5)


def test_cron_fires_at_its_next_match_in_its_zone(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        await timers.cron("0 9 * * MON-FRI", "report", tz="America/New_York", id="report")
        await timers.cron("@daily", "sweep", id="sweep")
        return timers.turn.now()

    now = run(actor, body)
    report, sweep = the(actor, task_id="report"), the(actor, task_id="sweep")
    assert (report.cron, report.tz, sweep.cron, sweep.tz) == (
        "0 9 * * MON-FRI",
        "America/New_York",
        "@daily",
        "UTC",
    )
    assert now < report.due_at <= now + dt.timedelta(days=4)
    assert report.due_at.hour in (13, 14)
    assert sweep.due_at == (now + dt.timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


# Ids


def test_without_an_id_every_call_makes_a_task_of_its_own(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        return {await timers.queue("process") for _ in range(3)}

    ids = run(actor, body) | run(actor, body)
    assert len(ids) == 6
    assert set(Task.objects.values_list("task_id", flat=True)) == ids


def test_scheduling_an_id_replaces_the_pending_task_of_that_id(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", {"n": 1}, id="nudge"))
    before = the(actor)
    Task.objects.filter(pk=before.pk).update(attempts=3, error="ValueError")
    run(actor, lambda t: t.every(30, "poke", {"n": 2}, id="nudge", max_retries=1))
    after = the(actor)
    assert (after.method, after.payload, after.every_seconds, after.max_retries) == (
        "poke",
        {"n": 2},
        30.0,
        1,
    )
    assert (after.attempts, after.error) == (0, "")
    assert after.pk != before.pk


def test_scheduling_an_id_replaces_a_parked_task_and_forgets_its_steps(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", id="nudge"))
    parked(actor, "nudge")
    Step.objects.create(actor_id=actor, task_pk=the(actor).pk, name="reply", use=1, result="paid for")
    run(actor, lambda t: t.queue("nudge", id="nudge"))
    assert the(actor).status == "pending"
    assert not Step.objects.exists()


def test_the_same_id_twice_in_a_turn_leaves_the_last(actor: int) -> None:
    async def body(timers: Timers) -> None:
        await timers.schedule(60, "one", id="x")
        await timers.every(60, "two", id="x")
        await timers.queue("three", id="x")

    run(actor, body)
    assert (the(actor).method, the(actor).every_seconds) == ("three", None)


def test_an_id_belongs_to_one_actor(actor: int) -> None:
    other = new_actor("bob")
    run(other, lambda t: t.queue("process", id="process"))
    run(actor, lambda t: t.queue("process", id="process"))
    assert run(actor, lambda t: t.cancel("process"))
    assert the(other).task_id == "process"


# Cancelling


def test_cancel_says_whether_there_was_a_task(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", id="nudge"))
    assert run(actor, lambda t: t.cancel("nudge")) is True
    assert not Task.objects.exists()
    assert run(actor, lambda t: t.cancel("nudge")) is False
    assert run(actor, lambda t: t.cancel("never")) is False


def test_cancel_removes_a_parked_task(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", id="nudge"))
    parked(actor, "nudge")
    assert run(actor, lambda t: t.cancel("nudge")) is True
    assert not Task.objects.exists()


def test_cancel_and_schedule_in_one_turn_end_as_the_last_word_says(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "stored", id="x"))

    async def schedule_cancel(timers: Timers) -> Any:
        await timers.queue("new", id="x")
        return await timers.cancel("x"), await timers.cancel("x"), await timers.list()

    async def cancel_schedule(timers: Timers) -> Any:
        return await timers.cancel("x"), await timers.queue("new", id="x"), await timers.cancel("y")

    assert run(actor, cancel_schedule) == (True, "x", False)
    assert the(actor).method == "new"
    assert run(actor, schedule_cancel) == (True, False, [])
    assert not Task.objects.exists()


def test_a_task_without_an_id_can_be_cancelled_by_the_id_it_got(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        kept, gone = await timers.queue("a"), await timers.queue("b")
        return kept, await timers.cancel(gone)

    kept, cancelled = run(actor, body)
    assert cancelled
    assert the(actor).task_id == kept
    assert run(actor, lambda t: t.cancel(kept))


def test_two_coroutines_of_a_turn_that_cancel_one_task_agree_on_who_did(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", id="nudge"))

    async def body(timers: Timers) -> Any:
        return await asyncio.gather(*(timers.cancel("nudge") for _ in range(3)))

    assert sorted(run(actor, body)) == [False, False, True]


def test_a_task_scheduled_while_a_cancel_looks_is_the_one_it_cancels(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        return await asyncio.gather(timers.cancel("x"), timers.queue("process", id="x"))

    assert run(actor, body) == [True, "x"]
    assert not Task.objects.exists()


def test_what_is_in_the_inbox_is_neither_listed_nor_cancelled(actor: int) -> None:
    Task.objects.create(
        actor_id=actor,
        task_id="told",
        lane="inbox",
        method="receive",
        due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    )
    assert run(actor, lambda t: t.list()) == []
    assert run(actor, lambda t: t.cancel("told")) is False


# Looking


def test_a_record_has_what_was_asked_for_as_the_types_that_went_in(actor: int) -> None:
    payload = {"price": Decimal("9.50"), "at": dt.date(2026, 11, 30), "tags": {"a"}, "$date": "literal"}

    async def body(timers: Timers) -> Any:
        await timers.schedule(60, "nudge", payload, id="nudge", max_retries=2)
        await timers.every(90, "tick", id="tick")
        await timers.cron("0 9 * * *", "report", tz="Europe/Paris", id="report")
        return timers.turn.now(), await timers.list()

    now, own = run(actor, body)
    stored = run(actor, lambda t: t.list())
    for records in (own, stored):
        by_id = {record.id: record for record in records}
        assert [record.due for record in records] == sorted(record.due for record in records)
        nudge = by_id["nudge"]
        assert nudge == TaskRecord(
            id="nudge", name="nudge", payload=payload, due=nudge.due, every=None, cron=None, tz=None,
            attempts=0, max_retries=2, created_at=nudge.created_at,
        )  # fmt: skip
        assert abs(nudge.created_at - now) < dt.timedelta(seconds=5)
        assert (by_id["tick"].every, by_id["tick"].payload) == (90.0, None)
        assert (by_id["report"].cron, by_id["report"].tz) == ("0 9 * * *", "Europe/Paris")
        assert all(record.due.tzinfo is not None for record in records)
    with pytest.raises(AttributeError):
        stored[0].due = now


def test_list_sees_the_turns_own_writes_over_what_is_stored(actor: int) -> None:
    async def before(timers: Timers) -> None:
        await timers.schedule(10, "kept", id="kept")
        await timers.schedule(20, "replaced", id="replaced")
        await timers.schedule(30, "cancelled", id="cancelled")
        await timers.schedule(40, "parked", id="parked")

    async def body(timers: Timers) -> Any:
        await timers.schedule(5, "anew", id="replaced")
        await timers.cancel("cancelled")
        await timers.schedule(15, "new", id="new")
        return [(record.id, record.name) for record in await timers.list()]

    run(actor, before)
    parked(actor, "parked")
    expected = [("replaced", "anew"), ("kept", "kept"), ("new", "new")]
    assert run(actor, body) == expected
    assert run(actor, lambda t: t.list()) and [r.id for r in run(actor, lambda t: t.list())] == [
        id for id, _ in expected
    ]


def test_a_checkpoint_leaves_one_of_each(actor: int) -> None:
    async def first(timers: Timers) -> None:
        await timers.queue("a", id="a")
        await timers.schedule(60, "b", id="b")

    async def second(timers: Timers) -> Any:
        assert await timers.cancel("a")
        await timers.schedule(90, "b2", id="b")
        return [record.name for record in await timers.list()]

    assert run(actor, first, checkpoint=second) == ["b2"]
    assert the(actor).method == "b2"


# The running task and its own id


def test_a_task_that_runs_once_is_not_listed_while_it_runs(actor: int) -> None:
    run(actor, lambda t: t.queue("process", id="process"))
    assert run_task(actor, lambda t: t.list()) == []
    assert not Task.objects.exists()


def test_a_recurring_task_is_listed_with_its_next_due_time_while_it_runs(actor: int) -> None:
    run(actor, lambda t: t.every(60, "tick", id="tick"))
    Task.objects.update(due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))

    async def body(timers: Timers) -> Any:
        return timers.turn.actor.now, await timers.list()

    began, (record,) = run_task(actor, body)
    assert record.due == began + dt.timedelta(seconds=60)
    assert the(actor).due_at == record.due


def test_a_recurring_tasks_next_due_time_counts_from_the_start_of_its_drain(actor: int) -> None:
    run(actor, lambda t: t.every(60, "tick", id="tick"))
    Task.objects.update(due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    began = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)

    async def body(timers: Timers) -> Any:
        timers.turn.drain_began = began
        return await timers.list()

    (record,) = run_task(actor, body)
    assert record.due == began + dt.timedelta(seconds=60)


def test_a_task_that_schedules_its_own_id_leaves_what_it_scheduled(actor: int) -> None:
    run(actor, lambda t: t.queue("process", {"n": 1}, id="process"))

    async def body(timers: Timers) -> Any:
        assert not timers.replaced_own
        await timers.schedule(60, "process", {"n": 2}, id="process")
        assert timers.replaced_own
        return [record.payload for record in await timers.list()]

    assert run_task(actor, body) == [{"n": 2}]
    assert (the(actor).payload, the(actor).attempts) == ({"n": 2}, 0)


def test_a_recurring_task_that_cancels_itself_stops_recurring(actor: int) -> None:
    run(actor, lambda t: t.every(60, "tick", id="tick"))
    Task.objects.update(due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))

    async def body(timers: Timers) -> Any:
        return (
            await timers.cancel("tick"),
            await timers.cancel("tick"),
            timers.replaced_own,
            await timers.list(),
        )

    assert run_task(actor, body) == (True, False, True, [])
    assert not Task.objects.exists()


def test_a_recurring_task_that_schedules_itself_once_runs_once_more(actor: int) -> None:
    run(actor, lambda t: t.every(60, "tick", id="tick"))
    Task.objects.update(due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    run_task(actor, lambda t: t.schedule(5, "tick", id="tick"))
    assert the(actor).every_seconds is None


def test_a_task_that_replaces_itself_before_a_checkpoint_has_replaced_itself_for_good(actor: int) -> None:
    run(actor, lambda t: t.queue("process", id="process"))

    async def second(timers: Timers) -> Any:
        return timers.replaced_own, [record.name for record in await timers.list()]

    assert run_task(actor, lambda t: t.schedule(60, "again", id="process"), checkpoint=second) == (
        True,
        ["again"],
    )
    assert the(actor).method == "again"


def test_touching_other_ids_is_not_touching_ones_own(actor: int) -> None:
    run(actor, lambda t: t.queue("process", id="process"))

    async def body(timers: Timers) -> bool:
        await timers.queue("process")
        await timers.schedule(60, "nudge", id="nudge")
        await timers.cancel("nudge")
        return timers.replaced_own

    assert run_task(actor, body) is False
    assert the(actor).method == "process"


# What is refused, before anything is buffered


def refuses(actor_id: int, error: type[Exception], verb: str, *args: Any, **options: Any) -> None:
    """A turn in which ``timers.verb(*args)`` raises and leaves nothing behind."""
    check = {"check_method": options.pop("check_method")} if "check_method" in options else {}

    async def body(timers: Timers) -> None:
        with pytest.raises(error):
            await getattr(timers, verb)(*args, **options)
        assert not timers.turn.wrote
        assert await timers.list() == []

    run(actor_id, body, **check)


@pytest.mark.parametrize("seconds", [0, -1, 0.0, math.nan, math.inf, "60", None, 1e-9])
def test_every_refuses_what_is_not_positive(actor: int, seconds: Any) -> None:
    refuses(actor, ScheduleError, "every", seconds, "tick")
    assert not Task.objects.exists()


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, moments.FURTHEST + 1, "1", None])
def test_schedule_refuses_what_lies_behind_or_too_far_ahead(actor: int, seconds: Any) -> None:
    refuses(actor, ScheduleError, "schedule", seconds, "nudge")


def test_schedule_at_refuses_naive_moments_and_the_far_future(actor: int) -> None:
    for moment in (dt.datetime(2027, 1, 1), dt.datetime(2200, 1, 1, tzinfo=dt.UTC), "2027-01-01T00:00Z"):
        refuses(actor, ScheduleError, "schedule_at", moment, "nudge")


def test_the_furthest_moment_is_stored(actor: int) -> None:
    run(actor, lambda t: t.schedule(moments.FURTHEST, "nudge"))
    assert the(actor).due_at.year >= 2120


@pytest.mark.parametrize(
    ("expression", "tz"),
    [
        ("0 12 31 4 *", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("nonsense", "UTC"),
        ("0 9 * * *", "Mars/Base"),
        ("0 9 * * *", ""),
    ],
)
def test_cron_refuses_what_cannot_be_kept(actor: int, expression: str, tz: str) -> None:
    refuses(actor, ScheduleError, "cron", expression, "report", tz=tz)


def test_a_method_needs_a_name_that_a_method_can_have(actor: int) -> None:
    for name in ("", "two words", "a.b", "1st", "a-b", "x" * 129, "nul\x00", None, 5, print):
        refuses(actor, ActorUnknownMethodError, "queue", name)
    run(actor, lambda t: t.queue("x" * 128))
    run(actor, lambda t: t.queue("_private"))
    run(actor, lambda t: t.queue("not_written_yet"))
    assert Task.objects.count() == 3


def test_what_the_agent_refuses_as_a_method_is_refused(actor: int) -> None:
    def check(name: str) -> None:
        if name in ("alarm", "queue"):
            raise ActorPrivateMethodError(name)

    refuses(actor, ActorPrivateMethodError, "every", 60, "alarm", check_method=check)
    run(actor, lambda t: t.queue("process"), check_method=check)
    assert the(actor).method == "process"


def test_an_id_is_non_empty_text_of_up_to_255_characters(actor: int) -> None:
    for id in ("", 5, b"x", True):
        refuses(actor, ScheduleError, "queue", "process", id=id)
        refuses(actor, ScheduleError, "cancel", id)
    refuses(actor, LimitError, "queue", "process", id="x" * 256)
    run(actor, lambda t: t.queue("process", id="😋" * 255))
    assert run(actor, lambda t: t.cancel("😋" * 255))


def test_text_that_cannot_be_stored_is_replaced_in_ids_and_payloads(actor: int) -> None:
    assert run(actor, lambda t: t.queue("process", {"k\x00": "v\ud83d"}, id="a\x00b")) == "a\ufffdb"
    assert (the(actor).task_id, the(actor).payload) == ("a\ufffdb", {"k\ufffd": "v\ufffd"})
    assert run(actor, lambda t: t.cancel("a\x00b"))


@pytest.mark.parametrize("retries", [-1, 1.5, "5", None, True, MAX_RETRIES + 1])
def test_max_retries_is_a_whole_number_from_zero(actor: int, retries: Any) -> None:
    refuses(actor, ScheduleError, "queue", "process", max_retries=retries)


def test_the_edges_of_max_retries(actor: int) -> None:
    run(actor, lambda t: t.queue("process", id="none", max_retries=0))
    run(actor, lambda t: t.queue("process", id="many", max_retries=MAX_RETRIES))
    assert the(actor, task_id="many").max_retries == MAX_RETRIES


def test_a_payload_that_cannot_be_stored_is_refused(actor: int) -> None:
    refuses(actor, CodecError, "queue", "process", {"a": object()})


def test_a_payload_has_a_largest_size(actor: int) -> None:
    maximum = conf.get("MAX_PAYLOAD_BYTES")
    refuses(actor, LimitError, "queue", "process", "x" * (maximum - 1))
    run(actor, lambda t: t.queue("process", "x" * (maximum - 2)))  # two quotes
    assert the(actor).payload == "x" * (maximum - 2)


def test_a_payload_is_kept_as_it_was_when_it_was_given(actor: int) -> None:
    async def body(timers: Timers) -> None:
        payload = {"items": [1]}
        await timers.queue("process", payload)
        payload["items"].append(2)

    run(actor, body)
    assert the(actor).payload == {"items": [1]}


def test_a_read_may_look_and_not_touch(actor: int) -> None:
    run(actor, lambda t: t.schedule(60, "nudge", id="nudge"))

    async def body(timers: Timers) -> Any:
        for call in (timers.queue("process"), timers.cancel("nudge"), timers.cancel("never")):
            with pytest.raises(ReadOnlyTurnError):
                await call
        return [record.id for record in await timers.list()]

    assert run(actor, body, read_only=True) == ["nudge"]


def test_a_step_may_not_schedule(actor: int) -> None:
    async def body(timers: Timers) -> None:
        token = in_step.set(True)
        try:
            with pytest.raises(StepWriteError):
                await timers.queue("process")
        finally:
            in_step.reset(token)

    run(actor, body)
    assert not Task.objects.exists()


def test_a_turn_that_cancelled_nothing_wrote_nothing(actor: int) -> None:
    async def body(timers: Timers) -> bool:
        await timers.cancel("never")
        return timers.turn.wrote

    assert run(actor, body) is False


def test_an_abandoned_turn_forgets_what_it_scheduled(actor: int) -> None:
    async def body(timers: Timers) -> Any:
        await timers.queue("process", id="process")
        await timers.turn.abandoned()
        return len(timers.turn.collect()), await timers.list()

    assert run(actor, body) == (0, [])


# Too many of the same


def test_an_actor_with_more_than_ten_identical_recurring_tasks_is_warned_about_once(
    actor: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "scheduler.timers")
    for number in range(10):
        run(actor, lambda t: t.every(30, "tick", {"a": 1}))
        other = {"a": number + 100}
        run(actor, partial(Timers.every, seconds=30, method="tick", payload=other))
    assert not caplog.records
    run(actor, lambda t: t.every(30, "tick", {"a": 1}))
    assert len(caplog.records) == 1
    assert "11 identical" in caplog.text
    run(actor, lambda t: t.every(30, "tick", {"a": 1}))
    assert len(caplog.records) == 1


def test_a_recurring_task_with_an_id_is_one_however_often_it_is_scheduled(
    actor: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "scheduler.timers")

    async def body(timers: Timers) -> None:
        for _ in range(12):
            await timers.cron("0 * * * *", "maintenance", id="maintenance")
            await timers.every(30, "tick", id="tick")

    run(actor, body)
    run(actor, body)
    assert not caplog.records
    assert Task.objects.count() == 2
