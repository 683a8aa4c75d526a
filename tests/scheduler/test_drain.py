"""The drain: which tasks run, when, in which order, and what becomes of each."""

from __future__ import annotations

import asyncio
import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agents import Agent, Retry, kinds
from agents.models import Actor, TurnRecord
from agents.store import lock_actor
from agents.testing import advance, drain
from scheduler import backoff, verbs
from scheduler.models import Attempt, Step, Task
from tests.agents.cast import Counter, Keeper, Writer, hear, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    outside.clear()
    said.clear()


def plan(stub: Any, *steps: list[Any]) -> list[Any]:
    return stub.sync.plan([[name, args, {}] for name, *args in steps])


def pause(task: Task) -> float:
    """Seconds from the end of the last attempt to the next."""
    ended = Attempt.objects.filter(task_pk=task.pk).latest("id").ended_at
    assert ended is not None
    return (task.due_at - ended).total_seconds()


# What a task calls


class Taker(Agent):
    """Methods of every shape that a task may call."""

    kind = "test-taker"

    async def takes_one(self, payload: Any) -> None:
        outside.append(["one", payload])

    async def takes_none(self) -> None:
        outside.append(["none"])

    async def takes_a_default(self, payload: Any = "default") -> None:
        outside.append(["default", payload])

    async def takes_any(self, *args: Any) -> None:
        outside.append(["any", *args])

    async def takes_keywords(self, *, payload: Any = "keyword") -> None:
        outside.append(["keywords", payload])

    async def plan(self, steps: list[list[Any]]) -> list[Any]:
        return [await getattr(self, name)(*args, **kwargs) for name, args, kwargs in steps]


def test_a_task_calls_the_method_it_names_with_the_payload_where_it_takes_one():
    for method in ("takes_one", "takes_none", "takes_a_default", "takes_any", "takes_keywords"):
        Taker.named("t").sync.tell(method, {"when": dt.date(2026, 1, 2)})
    drain()
    payload = {"when": dt.date(2026, 1, 2)}
    assert outside == [
        ["one", payload],
        ["none"],
        ["default", payload],
        ["any", payload],
        ["keywords", "keyword"],
    ]


def test_a_method_with_a_leading_underscore_can_be_scheduled_though_not_called():
    stub = Keeper.named("k")
    plan(stub, ["queue", "_keep_privately", "secret"])
    drain()
    assert messages(stub) == ["secret"]


def test_a_task_of_a_method_that_is_missing_goes_to_on_task_with_its_attempt():
    stub = Keeper.named("k")
    plan(stub, ["queue", "from_the_future", 5])
    drain()
    assert messages(stub) == ["from_the_future 5 1"]


def test_and_fails_by_default_so_that_an_old_worker_swallows_nothing():
    stub = Keeper.named("k")
    plan(stub, ["queue", "from_elsewhere", 5])
    drain()
    assert tasks(stub) == [("from_elsewhere", "pending", 1)]
    assert Task.objects.get().error.startswith("ActorUnknownMethodError")


def test_kinds_that_are_not_installed_are_not_claimed(monkeypatch):
    stub = Keeper.named("k")
    stub.sync.tell("keep", "x")
    with monkeypatch.context() as patched:
        patched.delitem(kinds._classes, "test-keeper")
        assert drain() == 0
        assert Attempt.objects.count() == 0
    assert drain() == 1


def test_the_payload_of_an_attempt_is_kept_with_its_outcome():
    stub = Keeper.named("k")
    stub.sync.tell("keep", "hello")
    drain()
    attempt = Attempt.objects.get()
    assert (attempt.method, attempt.payload, attempt.number, attempt.outcome) == ("keep", "hello", 1, "done")
    assert attempt.ended_at is not None
    assert attempt.ended_at >= attempt.started_at >= attempt.due_at
    assert TurnRecord.objects.get().turn_id == attempt.turn_id
    assert TurnRecord.objects.get().origin == "task"


# Ids


def test_scheduling_an_id_replaces_the_pending_task_of_that_id():
    stub = Keeper.named("k")
    for text in ("one", "two", "three"):
        stub.sync.plan([["schedule", [60, "keep", text], {"id": "same"}]])
    assert Task.objects.count() == 1
    advance(61)
    drain()
    assert messages(stub) == ["three"]


def test_and_a_parked_one():
    stub = Keeper.named("k")
    stub.sync.plan([["queue", ["from_elsewhere"], {"id": "same", "max_retries": 0}]])
    drain()
    assert tasks(stub) == [("from_elsewhere", "parked", 1)]
    stub.sync.plan([["queue", ["keep", "anew"], {"id": "same"}]])
    assert tasks(stub) == [("keep", "pending", 0)]
    drain()
    assert messages(stub)[-1] == "anew"


def test_without_an_id_every_call_makes_a_task_of_its_own():
    stub = Keeper.named("k")
    ids = plan(stub, ["queue", "keep", "x"], ["queue", "keep", "x"])
    assert len(set(ids)) == 2
    assert drain() == 2
    assert messages(stub) == ["x", "x"]


def test_the_same_id_of_two_actors_is_two_tasks():
    for name in "ab":
        Keeper.named(name).sync.plan([["queue", ["keep", name], {"id": "same"}]])
    drain()
    assert [messages(Keeper.named(n)) for n in "ab"] == [["a"], ["b"]]


# Failures


def test_a_failure_is_retried_after_1_2_4_8_seconds_with_up_to_a_tenth_more_then_parked():
    stub = Writer.named("w")
    stub.sync.tell("fails", max_retries=4)
    pauses = []
    for _ in range(4):
        drain()
        pauses.append(pause(Task.objects.get(method="fails")))
        advance(pauses[-1])
    assert drain() == 2  # the last attempt, and the hook
    for seconds, expected in zip(pauses, (1, 2, 4, 8), strict=True):
        assert expected - 0.01 <= seconds <= expected * 1.1 + 0.1
    assert attempts(stub)[:5] == ["failed"] * 5
    assert [a.number for a in Attempt.objects.filter(method="fails").order_by("id")] == [1, 2, 3, 4, 5]
    parked = Task.objects.get()
    assert (parked.status, parked.attempts, parked.error) == ("parked", 5, "ValueError: always")
    assert parked.parked_at is not None
    assert Actor.objects.get().alarm is None
    assert outside == [*["fails"] * 5, ("parked", "fails", "ValueError: always")]


def test_a_pause_is_never_longer_than_five_minutes():
    assert backoff.delay(30) <= 300


def test_give_up_parks_at_once():
    stub = Writer.named("w")
    stub.sync.tell("give_up", max_retries=5)
    drain()
    assert tasks(stub) == [("give_up", "parked", 1)]
    assert outside == ["give_up", ("parked", "give_up", "GiveUp: no use")]


def test_retry_sets_the_pause_and_counts():
    stub = Writer.named("w")
    stub.sync.tell("retry_in", 100, max_retries=1)
    drain()
    assert 99.9 < pause(Task.objects.get()) < 100.5
    advance(50)
    assert drain() == 0
    advance(50)
    drain()
    assert tasks(stub)[0] == ("retry_in", "parked", 2)


def test_no_retries_means_one_delivery():
    stub = Writer.named("w")
    stub.sync.tell("fails", max_retries=0)
    drain()
    assert tasks(stub) == [("fails", "parked", 1)]


def test_on_parked_is_a_task_of_its_own_that_sees_the_task_and_is_not_retried():
    class Mourner(Agent):
        kind = "test-mourner"

        async def fails(self, payload: Any) -> None:
            raise ValueError("always")

        async def on_parked(self, task: Any) -> None:
            outside.append(task)
            raise RuntimeError("in the hook")

    stub = Mourner.named("m")
    stub.sync.tell("fails", {"a": (1,)}, max_retries=0)
    drain()
    (task,) = outside
    assert (task.name, task.payload, task.attempts, task.max_retries) == ("fails", {"a": (1,)}, 1, 0)
    assert task.error == "ValueError: always"
    assert task.parked_at.tzinfo is not None
    assert sorted(tasks(stub)) == [("fails", "parked", 1), ("on_parked", "parked", 1)]
    assert drain() == 0


def test_a_class_without_the_hook_gets_no_task_for_it():
    stub = Counter.named("c")
    stub.sync.tell("add", "not a number", max_retries=0)
    drain()
    assert tasks(stub) == [("add", "parked", 1)]


def test_a_waiting_retry_holds_up_no_other_task():
    stub = Keeper.named("k")
    plan(stub, ["queue", "from_elsewhere"], ["schedule", 60, "keep", "later"], ["queue", "keep", "now"])
    drain()
    assert messages(stub) == ["now"]
    Task.objects.filter(method="from_elsewhere").update(due_at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    advance(60)
    drain()
    assert messages(stub) == ["now", "later"]


# The inbox


def test_the_inbox_is_strictly_in_order_its_head_holds_it_up_until_it_succeeds():
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "head", "failures": 2})
    for text in ("second", "third"):
        stub.sync.tell("keep", text)
    plan(stub, ["queue", "keep", "a timer"])
    drain()
    assert messages(stub) == ["a timer"]  # timers don't wait for the inbox
    advance(2)
    drain()
    assert messages(stub) == ["a timer"]
    advance(3)
    drain()
    assert messages(stub) == ["a timer", "head", "second", "third"]


def test_or_until_it_is_parked():
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "head", "failures": 9}, max_retries=1)
    stub.sync.tell("keep", "second")
    drain()
    assert messages(stub) == []
    advance(2)
    drain()
    assert messages(stub) == ["second", "parked keep_unless 2"]


def test_while_its_head_waits_the_alarm_says_when_that_may_run_and_nothing_spins():
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "head", "failures": 1})
    stub.sync.tell("keep", "second")
    drain()
    head = Task.objects.get(method="keep_unless")
    advance(-60)  # its pause lasts, however long the test takes
    assert row(stub).alarm == head.due_at
    assert drain() == 0
    stub.sync.tell("keep", "third")
    assert row(stub).alarm == head.due_at
    assert drain() == 0


def test_what_is_told_while_the_head_waits_keeps_its_place():
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "head", "failures": 1})
    drain()
    for n in range(3):
        stub.sync.tell("keep", str(n))
    advance(2)
    drain()
    assert messages(stub) == ["head", "0", "1", "2"]


# Recurrence


def test_a_recurring_task_starts_its_attempts_anew_after_each_success():
    class Flaky(Agent):
        kind = "test-flaky"

        async def set_up(self) -> None:
            await self.every(3600, "tick", id="tick", max_retries=1)

        async def tick(self) -> None:
            outside.append("tick")
            if len(outside) % 2:
                raise ValueError("every other time")

    stub = Flaky.named("f")
    stub.sync.set_up()
    for _ in range(4):
        advance(3601)
        drain()
        assert tasks(stub) == [("tick", "pending", 1)]
        advance(2)
        drain()
        assert tasks(stub) == [("tick", "pending", 0)]
    assert attempts(stub) == ["failed", "done"] * 4
    assert [a.number for a in Attempt.objects.order_by("id")] == [1, 2] * 4


def test_a_recurring_task_that_uses_up_its_retries_is_parked_and_fires_again_when_replayed():
    class Broken(Agent):
        kind = "test-broken-ticker"

        async def set_up(self) -> None:
            await self.every(60, "tick", id="tick", max_retries=0)

        async def tick(self) -> None:
            outside.append("tick")
            if len(outside) == 1:
                raise ValueError("once")

    stub = Broken.named("b")
    stub.sync.set_up()
    advance(61)
    drain()
    assert tasks(stub) == [("tick", "parked", 1)]
    advance(600)
    assert drain() == 0
    verbs.replay(Task.objects.get())
    drain()
    assert tasks(stub) == [("tick", "pending", 0)]
    assert outside == ["tick", "tick"]


def test_the_next_fire_counts_from_the_start_of_the_drain():
    stub = Keeper.named("k")
    stub.sync.plan([["every", [100, "keep", "tick"], {"id": "tick"}]])
    first = Task.objects.get().due_at
    advance(150)
    drain()
    began = Attempt.objects.get().started_at
    due = Task.objects.get().due_at
    assert 49 < (began - first).total_seconds() < 90
    assert abs((due - began).total_seconds() - 100) < 20


def test_after_an_outage_it_has_run_once_not_once_per_time_that_was_missed():
    stub = Keeper.named("k")
    stub.sync.plan(
        [
            ["every", [60, "keep", "minute"], {"id": "m"}],
            ["cron", ["*/5 * * * *", "keep", "five"], {"id": "c"}],
        ]
    )
    advance(3 * 3600)
    assert drain() == 2
    assert sorted(messages(stub)) == ["five", "minute"]
    advance(61)
    drain()
    assert messages(stub).count("minute") == 2


def test_a_recurring_task_never_overlaps_itself():
    class Slow(Agent):
        kind = "test-slow"

        async def set_up(self) -> None:
            await self.every(0.05, "tick", id="tick")

        async def tick(self) -> None:
            outside.append("in")
            await asyncio.sleep(0.2)
            outside.append("out")

    from scheduler.dispatchers import local

    local.start()
    stub = Slow.named("s")
    stub.sync.set_up()
    wait_until(lambda: len(outside) >= 8)
    local.stop()
    assert outside[:8] == ["in", "out"] * 4


# Due


def test_a_task_that_is_due_exactly_now_runs():
    from agents.store import get_store

    stub = Keeper.named("k")
    plan(stub, ["schedule", 3600, "keep", "x"])
    due = Task.objects.get().due_at
    advance(due - get_store().sql.now())
    assert drain() == 1


def test_tasks_run_in_the_order_in_which_they_are_due():
    stub = Keeper.named("k")
    plan(stub, *(["schedule", seconds, "keep", str(seconds)] for seconds in (30, 10, 20, 0)))
    advance(60)
    drain()
    assert messages(stub) == ["0", "10", "20", "30"]


def test_a_drain_takes_what_was_due_when_it_began():
    """What its tasks make due meanwhile is the next drain's: who always queues itself starves nobody."""
    stub = Keeper.named("k")
    plan(stub, ["queue", "again", 3], ["queue", "keep", "other"])
    drain()
    assert messages(stub) == ["again 3", "other", "again 2", "again 1"]


def test_a_task_may_schedule_its_own_id_anew_while_it_runs():
    stub = Keeper.named("k")
    stub.sync.plan([["queue", ["again", 3], {"id": "again"}]])
    assert drain() == 3
    assert tasks(stub) == []


def test_a_task_may_cancel_itself_while_it_runs():
    stub = Keeper.named("k")
    stub.sync.plan([["every", [60, "once_only"], {"id": "once"}]])
    advance(61)
    assert drain() == 1
    assert tasks(stub) == []
    assert messages(stub) == ["once"]
    assert attempts(stub) == ["done"]


@pytest.mark.parametrize("then", ["replaces", "cancels"])
def test_a_task_that_fails_behind_a_checkpoint_that_has_replaced_or_cancelled_it_is_not_retried(then):
    class Hasty(Agent):
        kind = "test-hasty-task"

        async def set_up(self, then: str) -> None:
            await self.queue("run", then, id="run", max_retries=0)

        async def run(self, then: str) -> None:
            if then == "replaces":
                await self.schedule(60, "other", id="run")
            else:
                await self.cancel_schedule("run")
            await self.checkpoint()
            raise ValueError("after the checkpoint")

        async def other(self) -> None:
            await self.messages.add("user", "other")

        async def on_parked(self, task: Any) -> None:
            outside.append("parked")

    stub = Hasty.named("h")
    stub.sync.set_up(then)
    drain()
    assert attempts(stub) == ["failed"]
    assert tasks(stub) == ([("other", "pending", 0)] if then == "replaces" else [])
    advance(61)
    drain()
    assert messages(stub) == (["other"] if then == "replaces" else [])
    assert outside == []


def test_a_task_that_is_cancelled_before_it_is_due_does_not_run():
    stub = Keeper.named("k")
    stub.sync.plan([["schedule", [60, "keep", "x"], {"id": "x"}]])
    assert stub.sync.plan([["cancel_schedule", ["x"], {}], ["cancel_schedule", ["x"], {}]]) == [True, False]
    advance(61)
    assert drain() == 0
    assert row(stub).alarm is None


def test_a_later_task_of_the_drain_that_an_earlier_one_cancels_or_replaces_does_not_run_as_it_was():
    class Fickle(Agent):
        kind = "test-fickle"

        async def set_up(self) -> None:
            await self.queue("change", id="a")
            await self.queue("keep", "cancelled", id="b")
            await self.queue("keep", "replaced", id="c")
            await self.queue("keep", "kept", id="d")

        async def change(self) -> None:
            await self.cancel_schedule("b")
            await self.queue("keep", "new", id="c")

        async def keep(self, text: str) -> None:
            await self.messages.add("user", text)

    stub = Fickle.named("f")
    stub.sync.set_up()
    drain()
    assert messages(stub) == ["kept", "new"]


def test_a_task_that_is_cancelled_by_an_operator_while_the_drain_runs_is_passed_over():
    class Sleeper(Agent):
        kind = "test-drain-sleeper"

        async def sleep(self, until: str) -> None:
            outside.append("begun")
            await hear(until, 60)

        async def keep(self, text: str) -> None:
            await self.messages.add("user", text)

    stub = Sleeper.named("s")
    stub.sync.tell("sleep", "cancelled")
    for text in ("one", "two", "three"):
        stub.sync.tell("keep", text)
    with ThreadPoolExecutor(1) as thread:
        draining = thread.submit(drain)
        wait_until(lambda: outside)
        assert verbs.cancel(Task.objects.get(payload="two"))
        said.add("cancelled")
        draining.result()
    assert messages(stub) == ["one", "three"]


def test_more_tasks_than_one_drain_looks_at_run_all_the_same():
    stub = Keeper.named("k")
    plan(stub, *(["queue", "keep", str(n)] for n in range(300)))
    assert drain() == 300
    assert messages(stub) == [str(n) for n in range(300)]


# Leftovers


def test_an_attempt_that_a_dead_process_left_open_is_recorded_as_lost_and_retried():
    stub = Keeper.named("k")
    stub.sync.tell("keep", "x", max_retries=1)
    die(stub)
    drain()
    assert attempts(stub) == ["lost"]
    assert tasks(stub) == [("keep", "pending", 1)]
    advance(2)
    drain()
    assert attempts(stub) == ["lost", "done"]
    assert messages(stub) == ["x"]


def test_a_task_that_kills_its_worker_is_parked_after_its_retries():
    stub = Keeper.named("k")
    stub.sync.tell("keep", "x", max_retries=1)
    for _ in range(2):
        die(stub)
        drain()
        advance(3)
    drain()
    assert attempts(stub)[:2] == ["lost", "lost"]
    assert tasks(stub) == [("keep", "parked", 2)]
    assert messages(stub) == ["parked keep 2"]


def test_a_call_that_takes_over_from_a_dead_process_recovers_its_task_too():
    stub = Keeper.named("k")
    stub.sync.tell("keep", "x")
    die(stub)
    stub.sync.keep("the call")
    assert attempts(stub) == ["lost"]
    advance(2)
    drain()
    assert messages(stub) == ["the call", "x"]


def die(stub: Any) -> None:
    """Begins the actor's first due task as a process does that dies then, long ago."""
    import uuid

    from agents.store import get_store
    from agents.store.requests import Claim, Claimed

    claimed = get_store().claim([Claim(row(stub).pk, uuid.uuid4(), drain=True)])[0]
    assert isinstance(claimed, Claimed)
    assert claimed.task is not None
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    Actor.objects.filter(pk=claimed.actor.id).update(lease_expires_at=long_ago)


def test_steps_outlive_the_process_that_saved_them():
    stub = Keeper.named("k")
    stub.sync.tell("keep", "x")
    die(stub)
    Step.objects.create(actor=row(stub), task_pk=Task.objects.get().pk, name="s", use=1, result=1)
    drain()
    assert Step.objects.count() == 1
    advance(2)
    drain()
    assert not Step.objects.exists()


def test_a_drain_of_an_actor_whose_row_is_locked_for_a_while_waits_and_runs_then():
    from django.db import connection

    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    from scheduler.dispatchers import local

    stub = Keeper.named("k")
    stub.sync.keep("made")
    local.start(sweeping=False)
    with lock_actor(row(stub).pk) as actor:
        Task.objects.create(
            actor=actor, task_id="x", lane="inbox", method="keep", payload="x", due_at=actor.created_at
        )
        import time

        time.sleep(0.3)
    wait_until(lambda: messages(stub) == ["made", "x"])


def test_retry_without_a_pause_backs_off_as_ever():
    class Again(Agent):
        kind = "test-again"

        async def again(self) -> None:
            raise Retry("not yet")

    stub = Again.named("a")
    stub.sync.tell("again")
    drain()
    task = Task.objects.get()
    assert task.error == "Retry: not yet"
    assert 0.9 < pause(task) < 1.3


def test_what_is_kept_of_an_attempt_is_bounded_however_much_its_error_says():
    class LongWinded(Agent):
        kind = "test-long-winded"

        async def fails(self) -> None:
            raise ValueError("x" * 5_000_000)

    stub = LongWinded.named("l")
    stub.sync.tell("fails", max_retries=0)
    drain(stub)
    attempt = Attempt.objects.get(actor__kind="test-long-winded")
    assert attempt.outcome == "failed" and attempt.traceback.startswith("Traceback")
    assert len(attempt.traceback) < 25_000
