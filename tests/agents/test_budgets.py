"""Budgets and leases: how long a body may run, and what becomes of one that doesn't end."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import transaction

from agents import Agent, conf
from agents.exceptions import ActorMethodTimeoutError, TurnLostError
from agents.leases import Lease
from agents.models import Actor
from agents.runtime import get_runtime
from agents.store import get_store, lock_actor
from agents.store.requests import Claim
from agents.testing import advance, drain, on_runtime
from scheduler.models import Attempt, Task
from tests.agents.cast import Counter, Waiter, Writer, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_defaults_are_those_that_are_promised():
    assert (conf.get("CALL_BUDGET"), conf.get("TASK_BUDGET")) == (30.0, 900.0)
    assert (conf.get("LEASE"), conf.get("LEASE_RENEWAL")) == (15.0, 5.0)


def test_a_call_past_its_budget_is_cancelled_and_leaves_nothing(agents_settings):
    agents_settings(CALL_BUDGET=0.3)
    stub = Waiter.named("w")
    began = time.monotonic()
    with pytest.raises(ActorMethodTimeoutError) as caught:
        stub.sync.sleep(60)
    assert 0.3 <= time.monotonic() - began < 30
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.code == "method_timeout"
    assert messages(stub) == []
    assert row(stub).token is None


def test_a_class_has_budgets_of_its_own(agents_settings):
    class Hasty(Agent):
        kind = "test-hasty"
        call_budget = 0.2
        task_budget = 900.0

        async def sleep(self, seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "slept"

    class Leisurely(Hasty):
        kind = "test-leisurely"
        call_budget = 900.0
        task_budget = 0.2

    agents_settings(CALL_BUDGET=30.0, TASK_BUDGET=30.0)
    hasty, leisurely = Hasty.named("h"), Leisurely.named("l")
    with pytest.raises(ActorMethodTimeoutError):
        hasty.sync.sleep(60)
    assert leisurely.sync.sleep(0.5) == "slept"
    hasty.sync.tell("sleep", 0.5)
    leisurely.sync.tell("sleep", 60, max_retries=0)
    drain()
    assert (attempts(hasty), attempts(leisurely)) == (["done"], ["failed"])
    assert Attempt.objects.get(outcome="failed").error.startswith("ActorMethodTimeoutError")


def test_a_task_past_its_budget_is_a_failed_attempt_that_is_retried(agents_settings):
    agents_settings(TASK_BUDGET=0.2)
    stub = Waiter.named("w")
    stub.sync.tell("nap", {"seconds": 30})
    drain()
    assert attempts(stub) == ["failed"]
    assert tasks(stub) == [("nap", "pending", 1)]
    assert Task.objects.get().error.startswith("ActorMethodTimeoutError")
    assert messages(stub) == []


def test_a_timeout_of_the_bodys_own_is_its_own():
    class Impatient(Agent):
        kind = "test-impatient"

        async def waits(self) -> str:
            try:
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(20)
            except TimeoutError:
                await self.messages.add("user", "gave up waiting")
            return "went on"

    assert Impatient.named("i").sync.waits() == "went on"
    assert messages(Impatient.named("i")) == ["gave up waiting"]


def test_a_body_that_runs_longer_than_a_lease_keeps_it(agents_settings):
    agents_settings(LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    stub = Waiter.named("w")
    assert keeps(stub, stub.sync.sleep, 60, until="enough") == "slept"
    assert messages(stub) == ["slept"]


def keeps(stub: Any, *call: Any, **arguments: Any) -> Any:
    """What a call returns that ends when its lease has been renewed twice, on its row and here."""
    leases = on_runtime(_heartbeat)._leases
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(*call, **arguments)
        wait_until(lambda: leases)
        ends_at = lease_of(stub)
        wait_until_renewed_twice(list(leases.values()))
        assert lease_of(stub) > ends_at
        said.add("enough")
        return running.result()


def lease_of(stub: Any) -> dt.datetime:
    """Until when the actor is held."""
    ends_at = row(stub).lease_expires_at
    assert ends_at is not None
    return ends_at


def wait_until_renewed_twice(leases: list[Lease]) -> None:
    for _ in range(2):
        before = [lease.renewed for lease in leases]
        wait_until(lambda: all(lease.renewed > b for lease, b in zip(leases, before, strict=True)))  # noqa: B023


def test_a_body_that_blocks_its_loop_keeps_its_lease_as_long_as_its_budget_lasts(agents_settings):
    """The heartbeat needs no event loop."""
    agents_settings(LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    stub = Writer.named("w")
    keeps(stub, stub.sync.blocks, "enough")
    assert messages(stub) == ["blocked"]


def test_a_body_that_blocks_its_thread_past_budget_and_grace_loses_its_lease_and_cannot_commit(
    agents_settings,
):
    agents_settings(LEASE=60.0, LEASE_RENEWAL=0.3, STOP_POLL=0.1, CALL_BUDGET=0.3, BUDGET_GRACE=0.3)
    stub = Writer.named("w")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.blocks, "enough")
        wait_until(lambda: outside)
        # Another process, whose loop nobody blocks, finds the actor free, with its process still at work.
        claimed = wait_until(lambda: claim(stub))
        assert not call.done()
        said.add("enough")
        with pytest.raises((ActorMethodTimeoutError, TurnLostError)):
            call.result()
    assert messages(stub) == []
    assert row(stub).token == claimed.token  # and what it did at its end harmed nobody


def test_a_task_that_blocks_its_thread_past_budget_and_grace_counts_as_lost(agents_settings):
    agents_settings(LEASE=60.0, LEASE_RENEWAL=0.3, STOP_POLL=0.1, TASK_BUDGET=0.3, BUDGET_GRACE=0.3)
    stub = Writer.named("w")
    stub.sync.tell("blocks", "enough", max_retries=1)
    drain_until_void(stub)
    assert attempts(stub) == ["lost"]  # by whoever took the actor over
    assert tasks(stub) == [("blocks", "pending", 1)]
    advance(2)
    drain_until_void(stub)
    assert attempts(stub)[:2] == ["lost", "lost"]
    assert tasks(stub)[0] == ("blocks", "parked", 2)
    assert messages(stub) == []


def drain_until_void(stub: Any) -> None:
    """A drain whose task blocks until its lease is void."""
    outside.clear()
    said.clear()
    with ThreadPoolExecutor(1) as thread:
        draining = thread.submit(drain)
        wait_until(lambda: outside)
        wait_until(lambda: lease_of(stub) < dt.datetime.now(dt.UTC))  # of a minute
        said.add("enough")
        draining.result()


def claim(stub: Any) -> Any:
    return get_store().claim([Claim(row(stub).pk, uuid.uuid4())])[0]


def test_a_turn_whose_lease_was_taken_is_ended_and_commits_nothing(agents_settings):
    agents_settings(LEASE=60.0, LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.sleep, 60)
        wait_until(lambda: outside)
        Actor.objects.update(token=None, lease_expires_at=None)  # as if it had been frozen for long
        with pytest.raises(TurnLostError):
            call.result(30)
    assert outside == ["begun slept"]
    assert messages(stub) == []


def test_a_turn_whose_database_is_out_of_reach_for_a_lease_ends(agents_settings, monkeypatch):
    """Somebody else may hold the actor by then: to go on would be two at once."""
    agents_settings(LEASE=3.0, LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    stub = Waiter.named("w")
    store = get_store()

    def out_of_reach(leases: object) -> None:
        raise ConnectionError("no route to host")

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.sleep, 60)
        wait_until(lambda: outside)
        monkeypatch.setattr(store, "renew", out_of_reach)
        with pytest.raises(TurnLostError):
            call.result(30)
    assert outside == ["begun slept"]
    monkeypatch.undo()


def test_an_actors_row_that_somebody_keeps_locked_costs_no_other_turn_its_lease(agents_settings):
    """An open transaction (a request's, an operator's) on one actor while many turns run."""
    if transaction.get_connection().vendor != "postgresql":
        pytest.skip("SQLite has one writer: nothing is renewed while somebody else writes")
    agents_settings(LEASE=60.0, LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    held, other = Waiter.named("held"), Waiter.named("other")
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(stub.sync.sleep, 60, stub.name, until="enough") for stub in (held, other)]
        wait_until(lambda: len(outside) == 2)
        leases = {lease.actor_id: lease for lease in on_runtime(_heartbeat)._leases.values()}
        lease_held, lease_other = leases[row(held).pk], leases[row(other).pk]
        with lock_actor(row(held).pk) as actor:
            ends_at = lease_of(other)
            wait_until(lambda: lease_of(other) > ends_at)
            assert lease_of(held) == actor.lease_expires_at
            # As if it were locked for a lease.
            Actor.objects.filter(pk=actor.pk).update(lease_expires_at=dt.datetime.now(dt.UTC))
        wait_until(lambda: lease_held.void)
        assert not lease_other.void
        said.add("enough")
        assert calls[1].result() == "other"
        with pytest.raises(TurnLostError):
            calls[0].result()


def test_the_claim_of_a_dead_lease_takes_the_actor_over():
    stub = Counter.named("c")
    stub.sync.add()
    Actor.objects.update(
        token="0" * 32, turn_id="1" * 32, lease_expires_at=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    )
    assert stub.sync.call("add", patience=0) == 2  # it waits for nobody


def test_the_heartbeat_rests_when_nothing_runs():
    Counter.named("c").sync.add()
    heartbeat = on_runtime(_heartbeat)
    wait_until(lambda: not heartbeat._awake.is_set())
    assert not heartbeat._leases
    assert [t.name for t in threading.enumerate()].count("agents-heartbeat") == 1


async def _heartbeat(engine):
    return engine.heartbeat


def test_turns_keep_their_actors_through_slow_commits_of_neighbours(agents_settings):
    """Turns of one process share the store's threads, not what renews their leases."""
    agents_settings(LEASE_RENEWAL=0.2, STOP_POLL=0.1)
    stubs, committed = [Waiter.named(f"w{n}") for n in range(20)], threading.Event()
    leases = on_runtime(_heartbeat)._leases
    with ThreadPoolExecutor(20) as threads:
        calls = [threads.submit(stub.sync.sleep, 60, until="enough") for stub in stubs]
        wait_until(lambda: len(outside) == 20)
        for _ in range(conf.get("STORE_THREADS")):
            get_runtime().engine._store_threads.submit(committed.wait, 60)
        wait_until_renewed_twice(list(leases.values()))
        committed.set()
        said.add("enough")
        assert [call.result() for call in calls] == ["slept"] * 20
    assert not Attempt.objects.exists()
