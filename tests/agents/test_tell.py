"""``tell``: tasks for an actor's inbox, from outside and from turns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import transaction

from agents import conf
from agents.exceptions import (
    ActorPrivateMethodError,
    ActorUnknownMethodError,
    CodecError,
    InboxFullError,
    LimitError,
    OpenTransactionError,
    ReadOnlyTurnError,
    SynchronousCallError,
)
from agents.models import Actor
from agents.store import lock_actor
from agents.testing import drain
from scheduler.dispatchers import local
from scheduler.models import InboxKey, Task
from tests.agents.cast import Caller, Counter, Keeper, Waiter, outside, said
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_tell_returns_when_it_is_committed_and_does_not_wait_for_the_actor():
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        thinking = thread.submit(stub.sync.sleep, 60, until="enough")
        wait_until(lambda: outside)
        assert stub.sync.tell("nap", {"seconds": 0, "mark": "told"}) is True
        assert not thinking.done()
        assert Task.objects.count() == 1
        said.add("enough")
        thinking.result()
    drain()
    assert messages(stub) == ["slept", "told"]


async def test_it_can_be_awaited():
    assert await Keeper.named("k").tell("keep", "hello") is True


def test_the_same_key_again_changes_nothing():
    stub = Keeper.named("k")
    assert stub.sync.tell("keep", "one", key="event-1") is True
    assert stub.sync.tell("keep", "two", key="event-1") is False
    drain()
    assert stub.sync.tell("keep", "three", key="event-1") is False
    assert stub.sync.tell("keep", "four", key="event-2") is True
    assert Keeper.named("another").sync.tell("keep", "five", key="event-1") is True
    drain()
    assert messages(stub) == ["one", "four"]
    assert InboxKey.objects.count() == 3


def test_the_same_key_at_the_same_moment_is_accepted_once():
    stub = Keeper.named("k")
    with ThreadPoolExecutor(8) as threads:
        accepted = list(threads.map(lambda n: stub.sync.tell("keep", n, key="once"), range(16)))
    assert sorted(accepted) == [False] * 15 + [True]
    assert Task.objects.count() == 1


def test_a_key_has_1_to_255_characters():
    stub = Keeper.named("k")
    for key in ("", "x" * 256):
        with pytest.raises(LimitError) as caught:
            stub.sync.tell("keep", "x", key=key)
        assert caught.value.limit == "KEY_MAX_LENGTH"
    assert stub.sync.tell("keep", "x", key="x" * 255)
    assert stub.sync.tell("keep", "x", key="a\x00b")
    assert not stub.sync.tell("keep", "x", key="a\ufffdb")
    assert not Actor.objects.exclude(name="k").exists()


def test_the_inbox_keeps_the_order_of_arrival():
    stub = Keeper.named("k")
    for n in range(20):
        stub.sync.tell("keep", str(n))
    drain()
    assert messages(stub) == [str(n) for n in range(20)]


def test_what_cannot_be_a_task_is_refused_at_the_call_and_leaves_nothing(agents_settings):
    agents_settings(MAX_PAYLOAD_BYTES=100)
    stub = Keeper.named("k")
    with pytest.raises(ActorUnknownMethodError):
        stub.sync.tell("no_such_method")
    for name in ("_keep_privately", "set_state", "on_create", "alarm", "tell"):
        with pytest.raises(ActorPrivateMethodError):
            stub.sync.tell(name)
    with pytest.raises(CodecError):
        stub.sync.tell("keep", object())
    with pytest.raises(LimitError):
        stub.sync.tell("keep", "x" * 99)
    with pytest.raises(ValueError, match="max_retries"):
        stub.sync.tell("keep", "x", max_retries=-1)
    assert not Actor.objects.exists()
    stub.sync.tell("keep", "x" * 98)
    assert Task.objects.count() == 1


def test_an_inbox_takes_as_many_as_its_limit_and_no_more(agents_settings):
    agents_settings(MAX_INBOX=3)
    stub = Keeper.named("k")
    for n in range(3):
        stub.sync.tell("keep", str(n))
    with pytest.raises(InboxFullError) as caught:
        stub.sync.tell("keep", "one too many", key="again")
    assert (caught.value.limit, caught.value.maximum) == ("MAX_INBOX", 3)
    drain()
    assert stub.sync.tell("keep", "room again", key="again") is True
    assert conf.get("MAX_INBOX") == 3


def test_tells_that_wait_for_a_locked_actor_hold_up_no_turn_and_no_other_tell():
    """A row that somebody's transaction keeps: only who wants that actor waits."""
    if transaction.get_connection().vendor != "postgresql":
        pytest.skip("SQLite has one writer: everybody waits for it")
    held, other = Keeper.named("held"), Keeper.named("other")
    held.sync.keep("made")
    with ThreadPoolExecutor(10) as threads:
        with lock_actor(row(held).pk):
            waiting = [threads.submit(held.sync.tell, "keep", str(n)) for n in range(8)]
            time.sleep(0.2)
            for n in range(5):
                threads.submit(other.sync.tell, "keep", str(n)).result(30)
                threads.submit(other.sync.keep, "called").result(30)
            assert not any(w.done() for w in waiting)
        assert [w.result() for w in waiting] == [True] * 8
    assert Task.objects.count() == 13


def test_of_many_tells_at_once_only_those_beyond_the_limit_are_refused(agents_settings):
    agents_settings(MAX_INBOX=5)
    stub = Keeper.named("k")

    def tell(n: int) -> bool:
        try:
            return stub.sync.tell("keep", str(n))
        except InboxFullError:
            return False

    with ThreadPoolExecutor(12) as threads:
        assert sorted(threads.map(tell, range(12))) == [False] * 7 + [True] * 5
    assert Task.objects.count() == 5


# From turns


def test_a_tell_from_a_turn_is_part_of_its_commit():
    stub = Caller.named("c")
    to = [["test-keeper", "k", "keep", "one"], ["test-caller", "c", "pass_on", {"to": []}]]
    with pytest.raises(RuntimeError, match="after telling"):
        stub.sync.pass_on({"to": to, "fail": True})
    assert not Task.objects.exists()
    stub.sync.pass_on({"to": to})
    assert sorted(Task.objects.values_list("actor__name", "method")) == [("c", "pass_on"), ("k", "keep")]
    drain()
    assert messages(Keeper.named("k")) == ["one"]


def test_a_read_cannot_tell():
    from agents import Agent, reads

    class Telltale(Agent):
        kind = "test-telltale"

        @reads
        async def read(self) -> None:
            await Keeper.named("k").tell("keep", "x")

    with pytest.raises(ReadOnlyTurnError):
        Telltale.named("t").sync.read()


def test_what_was_told_by_a_turn_is_no_part_of_its_chain_of_calls():
    """A told task that calls back who told it is no deadlock."""
    local.start()
    caller = Caller.named("a")
    back = {"to": [["test-caller", "b", "call_back", "a"]]}
    caller.sync.pass_on(back)
    wait_until(lambda: messages(Caller.named("a")) == ["answered"])
    wait_until(lambda: attempts(Caller.named("b")) == ["done"])


# Inside transactions


def test_a_tell_in_an_open_transaction_joins_it():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    with transaction.atomic():
        assert stub.sync.tell("keep", "one", key="k") is True
        assert stub.sync.tell("keep", "two", key="k") is False
        time.sleep(0.3)  # a worker that is faster than the commit would find nothing
        with ThreadPoolExecutor(1) as another:
            if transaction.get_connection().vendor == "postgresql":
                assert another.submit(Task.objects.count).result() == 0
    wait_until(lambda: messages(stub) == ["one"])  # woken by the commit: nobody sweeps
    assert attempts(stub) == ["done"]


def test_and_vanishes_with_its_rollback():
    stub = Keeper.named("k")
    with pytest.raises(RuntimeError), transaction.atomic():
        stub.sync.tell("keep", "one", key="k")
        raise RuntimeError
    assert not Task.objects.exists()
    assert not Actor.objects.exists()
    assert stub.sync.tell("keep", "one", key="k") is True


def test_a_refused_tell_leaves_the_transaction_as_it_was(agents_settings):
    agents_settings(MAX_INBOX=1)
    stub = Keeper.named("k")
    with transaction.atomic():
        stub.sync.tell("keep", "one")
        with pytest.raises(InboxFullError):
            stub.sync.tell("keep", "two")
        with transaction.atomic():
            Keeper.named("another").sync.tell("keep", "three")
    assert sorted(Task.objects.values_list("actor__name", flat=True)) == ["another", "k"]


def test_a_call_in_an_open_transaction_is_refused():
    stub = Keeper.named("k")
    with transaction.atomic(), pytest.raises(OpenTransactionError):
        stub.sync.keep("x")
    assert not Actor.objects.exists()


async def test_sync_on_an_event_loop_raises():
    with pytest.raises(SynchronousCallError):
        Keeper.named("k").sync.tell("keep", "x")
    with pytest.raises(SynchronousCallError):
        Keeper.named("k").sync.keep("x")
    with pytest.raises(SynchronousCallError):
        Keeper.named("k").sync.stop()


# Waking


def test_a_tell_wakes_a_worker_of_its_process_at_once():
    local.start(sweeping=False)
    stub = Keeper.named("k")
    stub.sync.tell("keep", "one")
    wait_until(lambda: messages(stub) == ["one"])


def test_a_tell_to_a_thinking_actor_runs_when_its_turn_is_over():
    local.start(sweeping=False)
    stub = Waiter.named("w")
    with ThreadPoolExecutor(1) as thread:
        thinking = thread.submit(stub.sync.sleep, 60, until="enough")
        wait_until(lambda: outside)
        stub.sync.tell("nap", {"seconds": 0, "mark": "told"})
        said.add("enough")
        thinking.result()
    wait_until(lambda: messages(stub) == ["slept", "told"])
    wait_until(lambda: tasks(stub) == [])
    assert row(stub).alarm is None
    assert Counter.named("c").sync.add() == 1
