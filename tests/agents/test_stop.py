"""Stop: names a turn, is set only while that turn runs, never queues behind what it stops."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agents import Agent, conf
from agents.exceptions import ActorStoppedError
from agents.models import Actor, TurnRecord
from agents.store import get_store
from agents.testing import advance, drain
from scheduler.dispatchers import local
from scheduler.models import Attempt, Task
from tests.agents.cast import Caller, Waiter, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def stopped_by_another_process(stub: object, turn_id: uuid.UUID | None = None) -> bool:
    """As the store of another process does it: this one's engine is not told."""
    return get_store().stop(row(stub).pk, turn_id) is not None


def test_a_stop_ends_the_turn_that_runs_at_once_and_its_caller_learns_it(monkeypatch):
    monkeypatch.setattr(get_store(), "stops", lambda actor_ids: {})  # no look from time to time is needed
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.sleep, 60)
        wait_until(lambda: outside)
        assert stub.sync.stop() is True
        with pytest.raises(ActorStoppedError) as caught:
            call.result(30)
    assert outside == ["begun slept"]  # stopped in its sleep, not behind it
    assert messages(stub) == []
    assert row(stub).token is None
    assert caught.value.code == "stopped"


def test_a_stop_from_another_process_is_seen_by_the_next_look_and_there_are_two_a_second(monkeypatch):
    assert conf.get("STOP_POLL") <= 0.5
    stub, store = Waiter.named("w"), get_store()
    stops = store.stops
    looks: list[dict[int, uuid.UUID]] = []

    def look(actor_ids: list[int]) -> dict[int, uuid.UUID]:
        looks.append({})
        looks[-1] = stops(actor_ids)
        return looks[-1]

    monkeypatch.setattr(store, "stops", look)
    for delay in (0.0, 0.3, 0.6):  # wherever between two looks it comes
        outside.clear()
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(stub.sync.sleep, 60)
            wait_until(lambda: outside)
            time.sleep(delay)
            turn_id = store.stop(row(stub).pk)
            begun = len(looks)  # of which the last may see it yet
            with pytest.raises(ActorStoppedError):
                call.result(30)
            assert next(n for n, seen in enumerate(looks) if turn_id in seen.values()) <= begun
            assert outside == ["begun slept"]


def test_a_stop_with_nothing_running_is_answered_and_not_kept():
    stub = Waiter.named("w")
    assert stub.sync.stop() is False
    assert not Actor.objects.exists()
    stub.sync.sleep(0)
    assert stub.sync.stop() is False
    assert row(stub).stop_turn_id is None
    assert stub.sync.sleep(0, "next") == "next"


def test_a_stop_names_its_turn_and_stops_no_other(agents_settings):
    agents_settings(STOP_POLL=0.1)
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.sleep, 60, until="one")
        wait_until(lambda: outside)
        running = row(stub).turn_id
        assert stub.sync.stop(uuid.uuid4()) is False
        assert not stopped_by_another_process(stub, uuid.uuid4())
        time.sleep(0.3)  # looks pass
        said.add("one")
        assert call.result() == "slept"
        # Too late for that one: the next is another turn.
        call = thread.submit(stub.sync.sleep, 60, "next", until="two")
        wait_until(lambda: "begun next" in outside)
        assert stub.sync.stop(running) is False
        assert not stopped_by_another_process(stub, running)
        time.sleep(0.3)
        said.add("two")
        assert call.result() == "next"
    assert messages(stub) == ["slept", "next"]


def test_a_stop_between_two_tasks_of_a_drain_stops_neither_the_wrong_one_nor_the_next(agents_settings):
    agents_settings(STOP_POLL=0.1)
    stub = Waiter.named("w")
    local.start(sweeping=False)
    stub.sync.tell("nap", {"seconds": 60, "mark": "first", "until": "one"})
    stub.sync.tell("nap", {"seconds": 60, "mark": "second", "until": "two"})
    wait_until(lambda: "begun first" in outside)
    first = row(stub).turn_id
    said.add("one")
    wait_until(lambda: "begun second" in outside)
    assert stub.sync.stop(first) is False  # it has just ended, under the same lease
    time.sleep(0.3)  # looks pass
    said.add("two")
    wait_until(lambda: tasks(stub) == [])
    assert attempts(stub) == ["done", "done"]

    outside.clear()
    stub.sync.tell("nap", {"seconds": 30, "mark": "third"})
    stub.sync.tell("nap", {"seconds": 0, "mark": "fourth"})
    wait_until(lambda: "begun third" in outside)
    assert stub.sync.stop() is True
    wait_until(lambda: tasks(stub) == [])
    assert attempts(stub)[2:] == ["stopped", "done"]
    assert messages(stub) == ["first", "second", "fourth"]


def test_a_stopped_task_is_not_retried_and_says_so():
    stub = Waiter.named("w")
    local.start(sweeping=False)
    stub.sync.tell("nap", {"seconds": 30})
    wait_until(lambda: outside)
    assert stopped_by_another_process(stub)
    wait_until(lambda: attempts(stub) == ["stopped"])
    wait_until(lambda: tasks(stub) == [])
    assert messages(stub) == []
    assert TurnRecord.objects.get().outcome == "stopped"
    assert Attempt.objects.get().error == "stopped"


def test_a_recurrence_goes_on_after_a_stop():
    class Ticker(Agent):
        kind = "test-ticker"

        async def set_up(self) -> None:
            await self.every(60, "tick", id="tick")

        async def tick(self) -> None:
            outside.append("tick")
            if len(outside) == 1:
                await asyncio.sleep(30)
            await self.messages.add("user", "tick")

    stub = Ticker.named("t")
    stub.sync.set_up()
    advance(61)
    with ThreadPoolExecutor(1) as thread:
        draining = thread.submit(drain)
        wait_until(lambda: outside)
        assert stub.sync.stop() is True
        draining.result()
    task = Task.objects.get()
    assert (task.status, task.attempts, attempts(stub)) == ("pending", 0, ["stopped"])
    advance(61)
    drain()
    assert messages(stub) == ["tick"]
    assert attempts(stub) == ["stopped", "done"]


def test_a_stop_does_not_wait_behind_callers_and_does_not_stop_them():
    stub = Waiter.named("w")
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(stub.sync.sleep, 30)
        wait_until(lambda: outside)
        others = [threads.submit(stub.sync.sleep, 0, f"other {n}") for n in range(3)]
        time.sleep(0.2)
        assert stub.sync.stop() is True
        with pytest.raises(ActorStoppedError):
            first.result()
        assert sorted(o.result() for o in others) == ["other 0", "other 1", "other 2"]


def test_a_body_that_will_not_stop_is_left_behind_after_its_grace(agents_settings):
    agents_settings(BUDGET_GRACE=0.3)
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.stubborn, "enough")
        wait_until(lambda: row_or_none(stub) and row(stub).token)
        time.sleep(0.1)
        began = time.monotonic()
        assert stub.sync.stop() is True
        with pytest.raises(ActorStoppedError):
            call.result(30)
        assert time.monotonic() - began > 0.25
    assert stub.sync.sleep(0, "next") == "next"
    assert "stubborn to the end" not in outside
    said.add("enough")
    wait_until(lambda: "stubborn to the end" in outside)
    assert messages(stub) == ["next"]


def row_or_none(stub: Any) -> Actor | None:
    return Actor.objects.filter(kind=stub.kind, name=stub.name).first()


def test_stopping_a_called_actor_fails_its_caller_and_does_not_stop_it():
    called, caller = Waiter.named("w"), Caller.named("c")
    local.start(sweeping=False)
    caller.sync.tell("call_and_wait", "w", max_retries=0)
    wait_until(lambda: outside)
    assert called.sync.stop() is True
    wait_until(lambda: attempts(caller) == ["failed"])
    wait_until(lambda: tasks(caller) == [("call_and_wait", "parked", 1)])
