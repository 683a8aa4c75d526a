"""Actors that call each other: a chain that comes back fails at once, a circle fails one of its turns."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agents import Agent, taking
from agents.exceptions import ActorDeadlockError
from agents.models import Actor
from tests.agents.cast import Caller, Counter, hear, meeting, outside, said
from tests.agents.facts import messages, row
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30.0  # seconds: so long waits a call that nothing ends earlier


async def heard_of(name: str) -> None:
    await asyncio.to_thread(wait_until, lambda: name in outside)


@pytest.mark.parametrize("chain", [("a",), ("b", "a"), ("b", "c", "d", "a"), ("b", "c", "b")])
def test_a_chain_of_calls_that_comes_back_fails_at_once(chain):
    began = time.monotonic()
    with pytest.raises(ActorDeadlockError):
        Caller.named("a").sync.relay(*chain)
    assert time.monotonic() - began < PATIENCE / 2
    assert not Actor.objects.exclude(token=None).exists()
    assert messages(Caller.named("a")) == []
    assert Caller.named("a").sync.relay() == 1


def test_a_chain_that_does_not_come_back_is_none():
    assert Caller.named("a").sync.relay("b", "c", "d", "e") == 5
    assert [messages(Caller.named(n)) for n in "abcde"] == [["relayed"]] * 5


async def test_two_that_call_each_other_at_the_same_moment_one_of_them_fails_and_it_is_the_younger(tmp_path):
    a, b = Caller.named("a"), Caller.named("b")
    await asyncio.gather(a.relay(), b.relay())
    assert taking.DEADLOCK_LOOK <= 0.1  # a few looks find it: in less than a second
    slowest = 0.0
    for round in range(100):
        place = str(tmp_path / str(round))
        first, second = (a, b) if round % 2 else (b, a)
        older = asyncio.create_task(first.meet(place, 2, second.name))
        await asyncio.to_thread(wait_until, Path(place).exists)
        younger = asyncio.create_task(second.meet(place, 2, first.name))
        began = time.monotonic()
        results = await asyncio.gather(older, younger, return_exceptions=True)
        slowest = max(slowest, time.monotonic() - began)
        assert results[0] == "answer", round
        assert isinstance(results[1], ActorDeadlockError), round
    assert slowest < PATIENCE / 2


class Ring(Agent):
    kind = "test-ring"

    async def through(self, plan: list[list[Any]], linger: str = "") -> str:
        """Calls actors one through the other, ``[[word, name], ...]``, each when its word was said."""
        outside.append(self.name)
        if plan:
            (word, name), *rest = plan
            await hear(word, PATIENCE)
            await Ring.named(name).through(rest)
        await hear(linger, PATIENCE)
        return "through"


@pytest.mark.parametrize("first", ["a", "c"])
async def test_a_circle_is_found_of_which_one_turn_runs_for_another_already(first):
    """a waits for b's turn, which waits for c's, which waits for a: only two of them stand in a queue."""
    said.add("")
    for name in "abc":
        await Ring.named(name).through([])
    outside.clear()
    calls = {
        "a": Ring.named("a").through([["", "b"], ["go", "c"]]),
        "c": Ring.named("c").through([["go", "a"]]),
    }
    tasks = {first: asyncio.create_task(calls.pop(first))}
    await heard_of({"a": "b", "c": "c"}[first])
    ((other, call),) = calls.items()
    tasks[other] = asyncio.create_task(call)
    await heard_of({"a": "b", "c": "c"}[other])
    said.add("go")
    began = time.monotonic()
    results = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
    assert time.monotonic() - began < PATIENCE / 2
    # The youngest fails: c's turn, or b's, which began for a when c's ran already.
    assert isinstance(results[other], ActorDeadlockError)
    assert results[first] == "through"
    assert not [a async for a in Actor.objects.exclude(waits_for_id=None, token=None)]


async def test_circles_of_more_turns_are_found_too(tmp_path):
    names = ["a", "b", "c", "d"]
    await asyncio.gather(*(Caller.named(n).relay() for n in names))
    for round in range(5):
        place = str(tmp_path / str(round))
        began = time.monotonic()
        results = await asyncio.gather(
            *(Caller.named(n).meet(place, 4, names[(i + 1) % 4]) for i, n in enumerate(names)),
            return_exceptions=True,
        )
        assert time.monotonic() - began < PATIENCE / 2
        failed = [r for r in results if isinstance(r, Exception)]
        assert len(failed) == 1, results
        assert isinstance(failed[0], ActorDeadlockError)


class Gatherer(Agent):
    kind = "test-gatherer"

    async def call_all(self, path: str, names: list[str]) -> list[Any]:
        await meeting(path, 2)
        calls = (Gatherer.named(n).answer() for n in names)
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [type(r).__name__ if isinstance(r, BaseException) else r for r in results]

    async def answer(self) -> str:
        return "answer"


async def test_a_turn_that_waits_for_several_at_once_is_found_in_a_circle_through_any_of_them(tmp_path):
    await asyncio.gather(*(Gatherer.named(n).answer() for n in "abc"))
    for round in range(5):
        path = str(tmp_path / str(round))
        older = asyncio.create_task(Gatherer.named("a").call_all(path, ["b", "c"]))
        await asyncio.to_thread(wait_until, Path(path).exists)
        younger = asyncio.create_task(Gatherer.named("b").call_all(path, ["a"]))
        began = time.monotonic()
        results = await asyncio.gather(older, younger)
        assert time.monotonic() - began < PATIENCE / 2
        assert results[0] == ["answer", "answer"]
        assert results[1] == ["ActorDeadlockError"]


async def test_a_wait_that_is_over_is_forgotten():
    """What a turn had to wait for earlier closes no circle later."""
    said.add("")
    a, b = Ring.named("a"), Ring.named("b")
    await asyncio.gather(a.through([]), b.through([]))
    outside.clear()
    busy = asyncio.create_task(b.through([], "b is free"))
    await heard_of("b")
    waited = asyncio.create_task(a.through([["", "b"]], "a is free"))
    await asyncio.to_thread(wait_until, lambda: row(a).waits_for_id == row(b).pk)
    said.add("b is free")
    await busy
    await asyncio.to_thread(wait_until, lambda: row(a).waits_for_id is None)
    outside.clear()
    back = asyncio.create_task(b.through([["", "a"]]))  # b waits for a, which waits for nobody
    await asyncio.to_thread(wait_until, lambda: row(b).waits_for_id == row(a).pk)
    await asyncio.sleep(3 * taking.DEADLOCK_LOOK)
    said.add("a is free")
    assert await asyncio.gather(waited, back) == ["through", "through"]


def test_waiting_for_a_busy_actor_is_no_deadlock():
    with ThreadPoolExecutor(3) as threads:
        slow = threads.submit(Counter.named("c").sync.slow_add, "enough")
        wait_until(lambda: Actor.objects.filter(name="c", token__isnull=False))
        calls = [threads.submit(Caller.named(n).sync.add_to, "c") for n in "ab"]
        wait_until(lambda: Actor.objects.filter(waits_for_id=row(Counter.named("c")).pk).count() == 2)
        time.sleep(3 * taking.DEADLOCK_LOOK)
        said.add("enough")
        assert slow.result() == 1
        assert sorted(c.result() for c in calls) == [2, 3]
    assert not Actor.objects.exclude(waits_for_id=None).exists()
