"""Waiting for an actor, and what waits for nothing: connections, other actors, operators."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from agents import runtime
from agents.exceptions import ActorBusyError, ActorStoppedError
from agents.models import Actor
from agents.store import get_store, lock_actor
from agents.store.requests import Claim, Claimed, Commit
from agents.testing import on_runtime
from conversations.models import Message
from scheduler.dispatchers import local
from scheduler.models import Task
from tests.agents.cast import Caller, Counter, Keeper, Waiter, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import somebody_waits_for_a_lock, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


# Turns of one actor


def test_callers_of_a_busy_actor_are_served_first_come_first_served():
    stub = Waiter.named("w")
    with ThreadPoolExecutor(10) as threads:
        calls = [threads.submit(stub.sync.sleep, 60, "0", until="all are here")]
        wait_until(lambda: outside)
        queue = on_runtime(_turnstile)._queues[row(stub).pk]
        for n in range(1, 8):
            calls.append(threads.submit(stub.sync.sleep, 0, str(n)))
            wait_until(lambda: len(queue) == n)  # noqa: B023
        said.add("all are here")
        assert [c.result() for c in calls] == [str(n) for n in range(8)]
    assert messages(stub) == [str(n) for n in range(8)]


def test_a_caller_that_gives_up_leaves_its_place_to_the_next():
    stub = Waiter.named("w")
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(stub.sync.sleep, 60, until="enough")
        wait_until(lambda: outside)
        queue = on_runtime(_turnstile)._queues[row(stub).pk]
        impatient = threads.submit(stub.sync.call, "sleep", (0, "never"), patience=0.3)
        wait_until(lambda: queue or impatient.done())
        patient = threads.submit(stub.sync.sleep, 0, "next")
        with pytest.raises(ActorBusyError):
            impatient.result()
        said.add("enough")
        assert (first.result(), patient.result()) == ("slept", "next")
    assert messages(stub) == ["slept", "next"]
    assert not on_runtime(_turnstile).busy


def test_a_caller_whose_patience_ends_as_its_turn_comes_holds_nobody_up():
    stub = Waiter.named("w")
    with ThreadPoolExecutor(24) as threads:
        for _ in range(5):
            outside.clear()
            calls = [threads.submit(stub.sync.sleep, 0.1)]
            wait_until(lambda: outside)
            left = 0.1
            calls += [
                threads.submit(stub.sync.call, "sleep", (0,), patience=left + (n - 10) * 0.002)
                for n in range(20)
            ]
            for call in calls:
                try:
                    call.result(60)
                except ActorBusyError:
                    pass
    assert not on_runtime(_turnstile).busy
    assert Counter.named("c").sync.add() == 1


async def _turnstile(engine):
    return engine.turnstile


def test_a_drain_of_many_tasks_lets_a_call_through():
    stub = Keeper.named("k")
    for n in range(200):
        stub.sync.tell("keep", str(n))
    local.start(sweeping=True)
    wait_until(lambda: Message.objects.count() > 20)
    actor_id = row(stub).pk
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(stub.sync.keep, "the call")
        # Counted when the call is in the queue: how long it takes to get there is not the drain's doing.
        wait_until(lambda: call.done() or on_runtime(_turnstile).awaited(actor_id))
        before = Message.objects.count()
        call.result(30)
    log = messages(stub)
    assert log.index("the call") - before <= 5
    wait_until(lambda: tasks(stub) == [], 60)
    assert [m for m in messages(stub) if m != "the call"] == [str(n) for n in range(200)]


def test_a_drain_of_many_tasks_stands_back_for_a_caller_of_another_process():
    """The other process's part played by the store: it polls, and marks the row."""
    stub = Keeper.named("k")
    for n in range(200):
        stub.sync.tell("keep", str(n))
    actor_id = row(stub).pk
    local.start(sweeping=True)
    wait_until(lambda: Message.objects.count() > 20)
    store = get_store()
    # Counted from the mark: a row that is locked just then takes none, and its caller tries again.
    wait_until(lambda: store.mark_waiting(actor_id))
    before = Message.objects.count()
    while (claimed := store.claim([Claim(actor_id, uuid.uuid4())])[0]) is None:
        store.mark_waiting(actor_id)
        time.sleep(0.005)
    assert isinstance(claimed, Claimed)
    ran = Message.objects.count() - before
    store.commit([Commit(actor_id, claimed.token, claimed.turn_id, claimed.actor.version, dirty=False)])
    assert ran <= 50  # as a rule 5; not all of them
    wait_until(lambda: tasks(stub) == [], 60)
    assert attempts(stub) == ["done"] * 200


# Thinking turns


def test_what_others_do_succeeds_while_an_actor_thinks():
    """No row lock and no transaction is held while a model is waited for."""
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        thinking = thread.submit(stub.sync.sleep, 60, until="enough")
        wait_until(lambda: outside)
        stub.sync.tell("nap", {"seconds": 0, "mark": "told"})
        Counter.named("c").sync.add()
        with lock_actor(row(stub).pk) as actor:
            assert actor.token is not None
        if connection.vendor == "postgresql":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '30s'")
                cursor.execute("ALTER TABLE agents_actor ADD COLUMN passing int")
                cursor.execute("ALTER TABLE agents_actor DROP COLUMN passing")
        assert not thinking.done()
        said.add("enough")
        assert thinking.result() == "slept"


def sessions() -> list[int]:
    """The sessions of the database, but for the one that asks."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return [pid for (pid,) in cursor.fetchall()]
    finally:
        connection.close()


@pytest.mark.postgres
async def test_200_turns_that_wait_for_a_model_hold_few_connections_and_no_transaction():
    most: list[int] = []
    idle: list[int] = []
    done = threading.Event()
    # What threads of earlier tests hold is not counted.
    await asyncio.to_thread(runtime.shutdown, 0)
    others = await asyncio.to_thread(sessions)

    def watch() -> None:
        try:
            while not done.wait(0.05):
                with connection.cursor() as cursor:
                    cursor.execute(
                        """SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%')
                             FROM pg_stat_activity
                            WHERE datname = current_database() AND pid <> pg_backend_pid()
                              AND pid <> ALL (%s)""",
                        [others],
                    )
                    count, in_transaction = cursor.fetchone()
                    most.append(count)
                    idle.append(in_transaction)
        finally:
            connection.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        stubs = [Waiter.named(f"w{n}") for n in range(200)]
        calls = asyncio.gather(*(stub.sleep(60, until="enough") for stub in stubs))
        await asyncio.to_thread(wait_until, lambda: len(outside) == 200)
        looks = len(idle) + 1  # the one that is under way may have begun earlier
        # All of them wait. A renewal of their leases is over in no time; what a turn holds would stay.
        await asyncio.to_thread(wait_until, lambda: 0 in idle[looks:])
        said.add("enough")
        assert await calls == ["slept"] * 200
    finally:
        done.set()
        await asyncio.to_thread(watcher.join)
    assert max(most) <= 10
    assert await Message.objects.acount() == 200


# Rows that an application holds


@pytest.mark.postgres
def test_a_row_that_an_application_holds_keeps_its_own_turns_waiting_and_nobody_elses():
    held = [Waiter.named(f"held{n}") for n in range(6)]
    with ThreadPoolExecutor(12) as threads:
        calls = [threads.submit(stub.sync.sleep, 60, f"s{n}", until="locked") for n, stub in enumerate(held)]
        wait_until(lambda: len(outside) == 6)
        with transaction.atomic():
            names = [stub.name for stub in held]
            assert len(Actor.objects.select_for_update(no_key=True).filter(name__in=names)) == 6
            said.add("locked")
            wait_until(lambda: len(outside) == 12)  # their bodies have ended; they commit
            tells = [threads.submit(stub.sync.tell, "nap", {"seconds": 0}) for stub in held[:2]]
            for _ in range(20):
                threads.submit(Counter.named("free").sync.add).result(30)
                assert threads.submit(Keeper.named("free").sync.tell, "keep", "told").result(30)
            assert not any(call.done() for call in calls + tells)
        assert [call.result(30) for call in calls] == [f"s{n}" for n in range(6)]
        for told in tells:
            assert told.result(30)
    assert [messages(stub) for stub in held] == [[f"s{n}"] for n in range(6)]
    assert len(tasks(held[0])) == 1
    assert len(tasks(Keeper.named("free"))) == 20


@pytest.mark.postgres
def test_actors_that_an_open_transaction_makes_keep_those_waiting_who_want_them_and_nobody_else():
    new = [f"new{n}" for n in range(6)]
    Counter.named("free").sync.add()
    Keeper.named("free").sync.keep("made")
    telling = [Caller.named(f"c{n}") for n in range(6)]
    with ThreadPoolExecutor(24) as threads:
        with transaction.atomic():
            for name in new:
                Keeper.named(name).sync.tell("keep", "told in it")
            calls = [threads.submit(Keeper.named(name).sync.keep, "called") for name in new]
            tells = [threads.submit(Keeper.named(name).sync.tell, "keep", "told") for name in new]
            to = [[["test-keeper", name, "keep", "told by a turn"]] for name in new]
            calls += [threads.submit(c.sync.pass_on, {"to": t}) for c, t in zip(telling, to, strict=True)]
            wait_until(somebody_waits_for_a_lock)
            for _ in range(5):
                threads.submit(Counter.named("free").sync.add).result(30)
                assert threads.submit(Keeper.named("free").sync.tell, "keep", "told").result(30)
            assert not any(work.done() for work in calls + tells)
        for work in calls + tells:
            work.result(30)
    for name in new:
        assert messages(Keeper.named(name)) == ["called"]
        assert len(tasks(Keeper.named(name))) == 3
    assert len(tasks(Keeper.named("free"))) == 5


@pytest.mark.postgres
def test_a_row_that_an_application_holds_keeps_stops_and_notes_of_its_turns_waiting_and_nobody_elses():
    held = [Caller.named(f"held{n}") for n in range(4)]
    Counter.named("free").sync.add()
    with ThreadPoolExecutor(16) as threads:
        busy = threads.submit(Counter.named("busy").sync.slow_add, "enough")
        wait_until(lambda: Actor.objects.filter(name="busy").exclude(token=None))
        for caller in held:
            caller.sync.answer()
        with transaction.atomic():
            ids = [row(caller).pk for caller in held]
            calls = [threads.submit(caller.sync.add_to, "busy") for caller in held]
            wait_until(lambda: Actor.objects.filter(pk__in=ids).exclude(token=None).count() == 4)
            assert len(Actor.objects.select_for_update(no_key=True).filter(pk__in=ids)) == 4
            stops = [threads.submit(caller.sync.stop) for caller in held]
            wait_until(somebody_waits_for_a_lock)
            for _ in range(5):
                threads.submit(Counter.named("free").sync.add).result(30)
            assert not any(work.done() for work in calls + stops)
        assert [stop.result(30) for stop in stops] == [True] * 4
        for call in calls:
            with pytest.raises(ActorStoppedError):
                call.result(30)
        said.add("enough")
        assert busy.result(30) == 1


# Bulk


def test_a_transaction_that_reads_and_then_writes_waits_for_others_as_any_does():
    """SQLite refuses at once to let a deferred transaction write that has read: ours begin immediate."""
    stub = Counter.named("c")
    stub.sync.add()

    def read_and_write(n: int) -> None:
        try:
            for _ in range(10):
                with lock_actor(row(stub).pk) as actor:
                    time.sleep(0.005)
                    Task.objects.create(
                        actor=actor,
                        task_id=uuid.uuid4().hex,
                        method="add",
                        payload=n,
                        due_at=actor.created_at,
                    )
                with transaction.atomic():
                    count = Task.objects.count()
                    time.sleep(0.005)
                    Task.objects.filter(payload=n).update(max_retries=count)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_and_write, range(4)))
    assert Task.objects.count() == 40


def test_two_ways_through_the_same_rows_never_deadlock():
    """Turns that tell the same twenty actors in opposite orders, at the same moment, many times."""
    names = [f"k{n}" for n in range(20)]
    for name in names:
        Keeper.named(name).sync.keep("made")
    to = [["test-keeper", name, "keep", "told"] for name in names]
    with ThreadPoolExecutor(8) as threads:
        calls = [
            threads.submit(Caller.named(f"c{n}").sync.pass_on, {"to": to if n % 2 else to[::-1]})
            for n in range(40)
        ]
        for call in calls:
            call.result(30)
    assert Task.objects.count() == 800
    assert not Actor.objects.exclude(token=None).exists()
