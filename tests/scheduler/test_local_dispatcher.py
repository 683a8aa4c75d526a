"""The embedded dispatcher: wakes at once, at exact moments, and by its sweep alone."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.db import transaction

from agents import Agent, conf, runtime, store
from agents.runtime import get_runtime
from agents.store import get_store
from agents.testing import on_runtime
from agents.turn import Tell
from conversations import outbox
from conversations.models import OutboundText
from scheduler.dispatchers import local
from scheduler.models import Attempt, Task
from tests.agents.cast import Keeper, Waiter, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh():
    outside.clear()
    said.clear()


def told_by_another_process(stub, method, payload=None) -> None:
    """In the database, and nobody here is woken."""
    get_store().tell([Tell(stub.kind, stub.name, method, payload)])


def test_a_commit_wakes_it_at_once_without_a_sweep():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    stub.sync.plan([["queue", ["keep", "x"], {}]])
    wait_until(lambda: messages(stub) == ["x"])


def test_a_near_alarm_rings_at_its_moment_without_a_sweep():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    stub.sync.plan([["schedule", [0.7, "keep", "x"], {}]])
    wait_until(lambda: messages(stub) == ["x"])
    attempt = Attempt.objects.get()
    assert attempt.started_at >= attempt.due_at


def test_of_two_near_alarms_of_an_actor_each_rings():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    stub.sync.plan([["schedule", [s, "keep", str(s)], {}] for s in (0.6, 0.3, 0.9)])
    wait_until(lambda: messages(stub) == ["0.3", "0.6", "0.9"])


def test_the_sweep_alone_suffices(agents_settings_here):
    agents_settings_here(SWEEP_INTERVAL=0.2)
    local.start()
    stub = Keeper.named("k")
    told_by_another_process(stub, "keep", "x")
    wait_until(lambda: messages(stub) == ["x"])


def test_without_a_sweep_and_without_a_wake_up_nothing_runs():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    told_by_another_process(stub, "keep", "x")
    time.sleep(0.3)
    assert messages(stub) == []


def test_a_retry_comes_at_its_moment():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "x", "failures": 1})
    wait_until(lambda: messages(stub) == ["x"])
    assert attempts(stub) == ["failed", "done"]


def test_many_actors_drain_side_by_side():
    local.start(sweeping=False)
    for n in range(20):
        Waiter.named(f"w{n}").sync.tell("nap", {"seconds": 60, "until": "all are here"})
    wait_until(lambda: len(outside) == 20)
    assert not Attempt.objects.filter(outcome="done").exists()
    said.add("all are here")
    wait_until(lambda: Attempt.objects.filter(outcome="done").count() == 20)


def test_no_more_drains_than_its_slots_run_at_once_and_none_is_forgotten(agents_settings_here):
    agents_settings_here(TURNS=3, SWEEP_INTERVAL=0.2)
    runtime.shutdown(0)  # slots are counted when the dispatcher starts
    local.start()
    for n in range(12):
        Waiter.named(f"w{n}").sync.tell("nap", {"seconds": 60, "mark": f"{n}", "until": f"end {n}"})
    begun: list[int] = []
    for n in range(12):
        wait_until(lambda: len(outside) >= min(12, n + 3) + n)  # noqa: B023
        if n == 0:
            time.sleep(0.3)  # a fourth would begin now
        assert Attempt.objects.filter(outcome="running").count() <= 3
        begun = [int(mark.removeprefix("begun ")) for mark in outside if mark.startswith("begun")]
        said.add(f"end {begun[n]}")
    wait_until(lambda: Attempt.objects.filter(outcome="done").count() == 12)
    assert sorted(begun) == list(range(12))


def test_the_same_actor_woken_many_times_runs_each_task_once():
    local.start()
    stub = Keeper.named("k")
    for n in range(50):
        stub.sync.tell("keep", str(n))
    wait_until(lambda: len(messages(stub)) == 50)
    assert messages(stub) == [str(n) for n in range(50)]
    wait_until(lambda: tasks(stub) == [])
    assert attempts(stub) == ["done"] * 50


def test_what_a_turn_tells_others_begins_in_a_context_of_its_own():
    from agents.turn import current_turn
    from agents.waits import call_chain

    class Curious(Agent):
        kind = "test-curious"

        async def begin(self) -> None:
            await self.queue("look")

        async def look(self) -> None:
            outside.append((len(call_chain.get()), current_turn.get() is self._turn))

    local.start(sweeping=False)
    Curious.named("c").sync.begin()
    wait_until(lambda: outside)
    assert outside == [(1, True)]


def test_a_task_that_started_something_with_the_context_of_a_request_does_not_keep_it():
    import contextvars

    request: contextvars.ContextVar[str | None] = contextvars.ContextVar("request", default=None)

    class Leaky(Agent):
        kind = "test-leaky"

        async def look(self) -> None:
            outside.append(request.get())

    local.start(sweeping=False)
    request.set("a request")
    Leaky.named("l").sync.tell("look")
    wait_until(lambda: outside)
    assert outside == [None]
    Leaky.named("l").sync.look()  # a call does run in its caller's context
    assert outside == [None, "a request"]


def test_texts_of_a_turn_are_sent_once_it_has_committed(settings):
    settings.AGENTS = {**settings.AGENTS, "SMS_PROVIDER": "console"}

    class Texter(Agent):
        kind = "test-texter"

        async def text(self) -> None:
            await self.sms.send("hello", to="+15550001111", sender="+15550009999")

    local.start(sweeping=False)
    Texter.named("t").sync.text()
    wait_until(lambda: OutboundText.objects.filter(status="sent").count() == 1)


def test_a_sweep_that_fails_is_followed_by_another(agents_settings_here, monkeypatch, caplog):
    agents_settings_here(SWEEP_INTERVAL=0.1)
    db = get_store()
    sweep, failures = db.sweep, [1, 2]

    def fail_twice(*args):
        if failures:
            raise ConnectionError(failures.pop())
        return sweep(*args)

    monkeypatch.setattr(db, "sweep", fail_twice)
    stub = Keeper.named("k")
    told_by_another_process(stub, "keep", "x")
    local.start()
    wait_until(lambda: messages(stub) == ["x"])
    assert caplog.text.count("a sweep failed") == 2


# Its end


def test_once_stopped_it_begins_nothing_and_lets_what_runs_go_on():
    stub = Waiter.named("w")
    local.start()
    stub.sync.tell("nap", {"seconds": 60, "mark": "one", "until": "stopped"})
    stub.sync.tell("nap", {"seconds": 0, "mark": "two"})
    wait_until(lambda: outside)
    local.stop()
    said.add("stopped")
    wait_until(lambda: messages(stub) == ["one"])
    time.sleep(0.2)
    assert messages(stub) == ["one"]
    assert attempts(stub) == ["done"]
    assert store.on_alarms == []
    assert outbox.on_wake == []
    wait_until(lambda: row(stub).token is None)


def test_a_shutdown_gives_its_deliveries_back_uncounted_and_frees_the_actors():
    stub = Waiter.named("w")
    local.start()
    stub.sync.tell("nap", {"seconds": 60, "mark": "one"})
    stub.sync.tell("nap", {"seconds": 0, "mark": "two"})
    wait_until(lambda: outside)
    local.stop()
    began = time.monotonic()
    runtime.shutdown(0.2)
    assert time.monotonic() - began < 30
    assert attempts(stub) == ["released"]
    assert tasks(stub) == [("nap", "pending", 0), ("nap", "pending", 0)]
    assert row(stub).token is None
    assert row(stub).alarm is not None
    assert messages(stub) == []


def test_a_shutdown_lets_turns_end_that_need_less_than_the_grace():
    stub = Waiter.named("w")
    local.start()
    stub.sync.tell("nap", {"seconds": 0.5})
    wait_until(lambda: outside)
    local.stop()
    runtime.shutdown(30)
    assert attempts(stub) == ["done"]
    assert messages(stub) == ["slept"]


def test_a_shutdown_refuses_callers_that_wait_and_lets_those_that_run_call_others():
    from concurrent.futures import ThreadPoolExecutor

    from agents.exceptions import RuntimeShutdownError
    from tests.agents.cast import Caller

    class Slow(Agent):
        kind = "test-slow-caller"

        async def call_in_the_grace(self) -> str:
            outside.append("begun")
            while not engine.closing:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return await Caller.named("other").answer()

    stub, engine = Slow.named("s"), get_runtime().engine
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(stub.sync.call_in_the_grace)
        wait_until(lambda: outside)
        waiting = threads.submit(stub.sync.call_in_the_grace)
        wait_until(lambda: engine.turnstile.awaited(row(stub).pk))
        runtime.shutdown(30)
        assert running.result() == "answer"
        with pytest.raises(RuntimeShutdownError):
            waiting.result()
    assert len(outside) == 1


def test_a_shutdown_ends_bodies_that_swallow_it_and_the_thread_with_them(agents_settings_here):
    from concurrent.futures import ThreadPoolExecutor

    from agents.exceptions import RuntimeShutdownError

    agents_settings_here(BUDGET_GRACE=0.3)
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(stub.sync.stubborn, "enough")
        wait_until(lambda: Task.objects.count() == 0 and get_runtime().engine.runs)
        time.sleep(0.1)
        runtime.shutdown(0)
        said.add("enough")
        with pytest.raises(RuntimeShutdownError):
            call.result()
    assert messages(stub) == []
    assert row(stub).token is None
    names = [t.name for t in threading.enumerate()]
    assert not [
        n for n in names if n in ("agents-runtime", "agents-heartbeat") or n.startswith("agents-store")
    ]


def test_a_runtime_that_was_shut_down_is_followed_by_another():
    stub = Keeper.named("k")
    stub.sync.keep("one")
    first = get_runtime()
    runtime.shutdown(0)
    stub.sync.keep("two")
    assert get_runtime() is not first
    assert messages(stub) == ["one", "two"]
    runtime.shutdown(0)
    runtime.shutdown(0)  # nothing to do


def test_a_dispatcher_is_started_once_and_can_be_started_again():
    local.start(sweeping=False)
    local.start(sweeping=False)
    assert len(store.on_alarms) == 1
    local.stop()
    local.stop()
    local.start(sweeping=False)
    stub = Keeper.named("k")
    with transaction.atomic():
        stub.sync.tell("keep", "x")
    wait_until(lambda: messages(stub) == ["x"])
    assert conf.get("DISPATCHER") == "local"
    assert on_runtime(_closing) is False


async def _closing(engine):
    return engine.closing


@pytest.fixture
def agents_settings_here(settings):
    def change(**values):
        settings.AGENTS = {**settings.AGENTS, **values}

    return change
