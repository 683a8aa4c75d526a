"""The drain that follows another under one lease: what a turn makes due at once begins in its commit."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from agents import Agent
from agents.models import Actor, TurnRecord
from agents.testing import crash_at, on_runtime
from scheduler.dispatchers.drains import Drains
from scheduler.drain import drain
from scheduler.models import Attempt, Task
from tests.agents.cast import outside
from tests.agents.facts import tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    outside.clear()


begun, called = asyncio.Event(), asyncio.Event()


class Receptionist(Agent):
    """Queues what it is told, and notes what runs."""

    kind = "test-receptionist"

    async def receive(self, methods: list[str]) -> None:
        outside.append("receive")
        for method in methods:
            await self.queue(method)

    async def answer(self) -> None:
        outside.append("answer")

    async def fail(self) -> None:
        outside.append("fail")
        raise ValueError("no")

    async def queue_and_fail(self) -> None:
        await self.queue("answer")
        raise ValueError("no")

    async def again(self) -> None:
        outside.append("again")
        await self.queue("again")

    async def tick(self) -> None:
        outside.append("tick")

    async def hurry(self) -> None:
        await self.every(0.05, "tick", id="tick")
        await asyncio.sleep(0.1)
        await self.queue("answer")

    async def wait_for_the_call(self) -> None:
        await self.queue("answer")
        begun.set()
        await called.wait()
        await asyncio.sleep(0.1)  # until the caller is in the queue

    async def note_the_call(self) -> None:
        outside.append("called")


def one_drain(stub: Any, room: bool = True) -> int:
    """One claim's: how many tasks ran."""
    actor_id = Actor.objects.get(kind=stub.kind, name=stub.name).pk
    return on_runtime(lambda engine: drain(engine, actor_id, stub.kind, room=lambda: room)).ran


def test_what_a_turn_queues_begins_in_its_commit_under_the_same_lease():
    stub = Receptionist.named("r")
    stub.sync.tell("receive", ["answer"])
    assert one_drain(stub) == 2
    assert outside == ["receive", "answer"]
    first, second = Attempt.objects.order_by("id")
    assert (first.outcome, second.outcome) == ("done", "done")
    assert second.started_at == first.ended_at  # one commit
    assert tasks(stub) == []
    assert Actor.objects.get().token is None
    assert Actor.objects.get().alarm is None
    assert [r.version for r in TurnRecord.objects.order_by("version")] == [1, 2]


def test_all_that_is_due_by_then_runs_in_its_order():
    stub = Receptionist.named("r")
    stub.sync.tell("receive", ["answer", "fail", "answer"])
    stub.sync.tell("receive", ["tick"])
    assert one_drain(stub) == 6
    assert outside == ["receive", "receive", "answer", "fail", "answer", "tick"]


def test_not_where_somebody_waits_for_the_place():
    stub = Receptionist.named("r")
    stub.sync.tell("receive", ["answer"])
    assert one_drain(stub, room=False) == 1
    assert Attempt.objects.count() == 1
    assert tasks(stub) == [("answer", "pending", 0)]
    assert one_drain(stub, room=False) == 1


def test_an_attempt_that_fails_begins_nothing_that_it_has_not_queued():
    stub = Receptionist.named("r")
    stub.sync.tell("queue_and_fail")
    assert one_drain(stub) == 1
    assert tasks(stub) == [("queue_and_fail", "pending", 1)]


def test_a_caller_is_let_through_before_it():
    stub = Receptionist.named("r")
    stub.sync.tell("wait_for_the_call")
    actor_id = Actor.objects.get().pk

    async def both(engine: Any) -> int:
        drained = asyncio.ensure_future(drain(engine, actor_id, stub.kind, room=lambda: True))
        await begun.wait()
        call = asyncio.ensure_future(stub.note_the_call())
        called.set()
        await call
        return (await drained).ran

    assert on_runtime(both) == 1
    assert outside == ["called"]
    assert one_drain(stub) == 1


def test_the_next_fire_of_a_recurring_task_counts_from_the_start_of_the_drain_that_follows():
    stub = Receptionist.named("r")
    stub.sync.tell("hurry")
    assert one_drain(stub) == 3
    assert outside == ["tick", "answer"]
    began = Attempt.objects.get(method="tick").started_at
    assert Task.objects.get().due_at == began + dt.timedelta(seconds=0.05)


def test_a_commit_that_does_not_happen_begins_nothing_and_counts_no_attempt():
    stub = Receptionist.named("r")
    stub.sync.tell("receive", ["answer"])
    with crash_at("commit.written"):
        one_drain(stub)
    assert outside == ["receive"]
    assert [(a.method, a.outcome) for a in Attempt.objects.all()] == [("receive", "failed")]
    assert tasks(stub) == [("receive", "pending", 1)]


def test_one_that_always_queues_itself_leaves_its_place_to_whoever_waits_for_it(settings):
    settings.AGENTS = {**settings.AGENTS, "TURNS": 1}
    busy, other = Receptionist.named("busy"), Receptionist.named("other")
    busy.sync.tell("again")
    other.sync.tell("answer")
    ids = {a.name: a.pk for a in Actor.objects.all()}

    async def start(engine: Any) -> Drains:
        drains = Drains(engine)
        drains.wake(ids["busy"], busy.kind)
        return drains

    async def wake(engine: Any) -> None:
        drains.wake(ids["other"], other.kind)

    async def stop(engine: Any) -> None:
        drains.stop()

    drains = on_runtime(start)
    wait_until(lambda: outside.count("again") > 3)
    on_runtime(wake)
    wait_until(lambda: "answer" in outside)
    on_runtime(stop)
    wait_until(lambda: not drains._woken)
