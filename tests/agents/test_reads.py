"""``@reads``: without a lease, without waiting, on one committed version."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agents import Agent, reads
from agents.exceptions import (
    ActorDeadlockError,
    ActorMethodError,
    ActorMethodTimeoutError,
    ReadOnlyTurnError,
)
from agents.models import Actor, TurnRecord
from agents.testing import drain
from scheduler.models import Attempt, Task
from tests.agents.cast import Counter, hear, outside, said, was_said
from tests.agents.facts import messages, row
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


#: One for each write of a test that keeps writing.
written: list[None] = []


class Book(Agent):
    """Its state, its log and its timers all say the same number."""

    kind = "test-book"

    def initial_state(self):
        return {"n": 0}

    async def write(self) -> None:
        n = (await self.get_state())["n"] + 1
        await self.set_state({"n": n})
        await self.messages.add("user", str(n))
        await self.schedule(3600, "turn_page", n, id="page")

    async def turn_page(self, n: int) -> None: ...

    async def think_and_write(self, until: str) -> None:
        await self.write()
        outside.append("thinking")
        await hear(until, 60)

    @reads
    async def look(self) -> list[Any]:
        n = (await self.get_state())["n"]
        last = await self.messages.last()
        schedules = await self.list_schedules()
        return [
            n,
            await self.messages.count(),
            int(last.content) if last else 0,
            schedules[0].payload if schedules else 0,
            len([m async for m in self.messages.all()]),
        ]

    @reads
    async def look_slowly(self, until: str) -> list[int]:
        """Looks, waits and looks again: at the same version, or from the start."""
        outside.append("look")
        seen = [len(await self.messages.all())]
        await hear(until, 60)
        seen.append(len(await self.messages.all()))
        return seen

    @reads
    async def look_while_it_moves(self, times: int) -> list[int]:
        """Looks, and again each time when somebody else has written."""
        outside.append("look")
        seen = [len(await self.messages.all())]
        for _ in range(times):
            before = len(written)
            while len(written) < before + 2:  # noqa: ASYNC110 (of the two one began later)
                await asyncio.sleep(0.005)
            seen.append(len(await self.messages.all()))
        return seen

    @reads
    async def stumble(self) -> None:
        """Makes an error of what it read together."""
        outside.append("look")
        n = await self.messages.count()
        await hear("moved", 60)
        try:
            last = await self.messages.last()
        except BaseException as error:  # no method should
            raise ValueError("half old, half new") from error
        assert last is not None
        assert int(last.content) == n

    @reads
    async def swallow(self) -> list[Any]:
        outside.append("look")
        seen: list[Any] = [len(await self.messages.all())]
        await hear("moved", 60)
        try:
            seen.append(len(await self.messages.all()))
        except BaseException:  # no method should
            seen.append("swallowed")
        return seen

    @reads
    async def try_to(self, how: str) -> None:
        match how:
            case "message":
                await self.messages.add("user", "x")
            case "state":
                await self.set_state({"x": 1})
            case "replace":
                await self.replace_state({"x": 1})
            case "timer":
                await self.queue("turn_page", 1)
            case "cancel":
                await self.cancel_schedule("page")
            case "text":
                await self.sms.send("x", to="+15550001111", sender="+15550009999")
            case "event":
                await self.broadcast("x")
            case "tell":
                await Counter.named("c").tell("add")
            case "step":
                await self.step("x", print)
            case "own row":
                await Actor.objects.aget()

    @reads
    async def add_elsewhere(self, name: str) -> int:
        return await Counter.named(name).add()

    @reads
    async def exits(self) -> None:
        raise SystemExit(3)

    @reads
    async def sleeps(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @reads
    async def stubborn(self) -> None:
        while not was_said("enough"):
            try:
                await hear("enough", 60)
            except asyncio.CancelledError:
                outside.append("cancelled")
        outside.append("stubborn to the end")


def test_a_read_does_not_wait_while_another_turn_thinks_and_sees_what_was_committed():
    stub = Book.named("b")
    stub.sync.write()
    with ThreadPoolExecutor(1) as thread:
        thinking = thread.submit(stub.sync.think_and_write, "enough")
        wait_until(lambda: outside)
        for _ in range(5):
            assert stub.sync.look() == [1, 1, 1, 1, 1]
        assert not thinking.done()
        said.add("enough")
        thinking.result()
    assert stub.sync.look() == [2, 2, 2, 2, 2]


def test_a_read_sees_one_version_whole_while_twenty_writers_commit():
    stub = Book.named("b")
    seen: list[list[int]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(stub.sync.look())

    def write(_: int) -> None:
        for _ in range(3):
            stub.sync.write()

    with ThreadPoolExecutor(24) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        list(threads.map(write, range(20)))
        writes = 60
        while len(seen) <= 10 or len({numbers[0] for numbers in seen}) <= 3:  # readers may be slow
            stub.sync.write()
            writes += 1
        done.set()
        for reader in readers:
            reader.result()
    torn = [numbers for numbers in seen if len(set(numbers)) != 1]
    assert torn == []
    assert stub.sync.look() == [writes] * 5


def test_a_read_starts_again_when_the_version_moves_under_it():
    stub = Book.named("b")
    stub.sync.write()
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(stub.sync.look_slowly, "moved")
        wait_until(lambda: outside)
        stub.sync.write()
        said.add("moved")
        assert looking.result() == [2, 2]
    assert outside == ["look", "look"]


@pytest.mark.parametrize("method", ["stumble", "swallow"])
def test_and_nothing_that_its_method_makes_of_two_versions_gets_out(method):
    stub = Book.named("b")
    stub.sync.write()
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(getattr(stub.sync, method))
        wait_until(lambda: outside)
        stub.sync.write()
        said.add("moved")
        assert looking.result() in (None, [2, 2])
    assert outside == ["look", "look"]


def test_an_actor_that_keeps_moving_is_read_in_one_snapshot():
    stub = Book.named("b")
    stub.sync.write()
    done = threading.Event()

    def keep_writing() -> None:
        while not done.is_set():
            stub.sync.write()
            written.append(None)

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(keep_writing)
        first, *others = stub.sync.look_while_it_moves(2)
        done.set()
        writing.result()
    assert others == [first, first]
    assert outside == ["look"] * 5  # four tries, then the snapshot
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("agents-snapshot")])


def test_more_reads_at_once_than_snapshots_are_made_at_once():
    stub = Book.named("b")
    done = threading.Event()

    def keep_writing() -> None:
        while not done.is_set():
            stub.sync.write()
            written.append(None)

    stub.sync.write()
    with ThreadPoolExecutor(9) as threads:
        writing = threads.submit(keep_writing)
        looks = list(threads.map(lambda _: stub.sync.look_while_it_moves(1), range(8)))
        done.set()
        writing.result()
    assert all(a == b for a, b in looks)


@pytest.mark.parametrize(
    "how", ["message", "state", "replace", "timer", "cancel", "text", "event", "tell", "step"]
)
def test_a_write_in_a_read_raises(how):
    stub = Book.named("b")
    stub.sync.write()
    with pytest.raises(ReadOnlyTurnError):
        stub.sync.try_to(how)
    assert row(stub).version == 1
    assert not Actor.objects.exclude(kind="test-book").exists()


def test_a_read_creates_no_actor_and_leaves_no_record():
    assert Book.named("b").sync.look() == [0, 0, 0, 0, 0]
    assert not Actor.objects.exists()
    Book.named("b").sync.write()
    Book.named("b").sync.look()
    assert TurnRecord.objects.count() == 1
    assert row(Book.named("b")).version == 1


def test_a_read_may_call_other_actors():
    assert Book.named("b").sync.add_elsewhere("c") == 1
    assert Counter.named("c").sync.count() == 1


def test_a_call_through_a_read_back_into_its_caller_is_a_deadlock():
    """The read holds nothing, but the turn that waits for it does."""

    class Outer(Agent):
        kind = "test-outer"

        async def begin(self) -> None:
            await Inner.named("i").look_back(self.name)

        async def again(self) -> None: ...

    class Inner(Agent):
        kind = "test-inner"

        @reads
        async def look_back(self, name: str) -> None:
            await Outer.named(name).again()

    began = time.monotonic()
    with pytest.raises(ActorDeadlockError):
        Outer.named("o").sync.begin()
    assert time.monotonic() - began < 15  # not after its patience


def test_a_turn_may_read_its_own_actor_and_sees_what_was_committed():
    class Own(Agent):
        kind = "test-own"

        async def write(self) -> int:
            await self.messages.add("user", "x")
            return await Own.named(self.name).count()

        @reads
        async def count(self) -> int:
            return await self.messages.count()

    assert Own.named("o").sync.write() == 0
    assert Own.named("o").sync.write() == 1


def test_a_read_has_a_budget_also_if_it_swallows_its_end(agents_settings):
    agents_settings(CALL_BUDGET=0.2)
    for method, args in (("sleeps", (60,)), ("stubborn", ())):
        began = time.monotonic()
        with pytest.raises(ActorMethodTimeoutError):
            getattr(Book.named("b").sync, method)(*args)
        assert time.monotonic() - began < 30
    wait_until(lambda: "cancelled" in outside)
    assert "stubborn to the end" not in outside
    said.add("enough")
    wait_until(lambda: "stubborn to the end" in outside)


def test_an_exit_in_a_read_ends_only_the_read():
    with pytest.raises(ActorMethodError):
        Book.named("b").sync.exits()
    assert Book.named("b").sync.look() == [0, 0, 0, 0, 0]


def test_a_read_as_a_task_is_an_ordinary_turn():
    stub = Book.named("b")
    stub.sync.write()
    stub.sync.tell("look")
    drain()
    assert Attempt.objects.get().outcome == "done"
    assert messages(stub) == ["1"]
    assert Task.objects.count() == 1
