"""The turnstile: one at a time for each actor in a process, first come, first served."""

from __future__ import annotations

import asyncio
import random

import pytest

from agents.turnstile import Turnstile


async def test_the_first_goes_ahead_and_the_others_come_in_order():
    turnstile = Turnstile()
    assert turnstile.enter("a") is None
    places = [turnstile.enter("a") for _ in range(3)]
    assert turnstile.enter("b") is None  # another actor, another queue
    for place in places:
        assert place is not None
        assert not place.done()
        turnstile.leave("a")
        assert place.done()
    assert turnstile.busy
    turnstile.leave("a")
    turnstile.leave("b")
    assert not turnstile.busy


async def test_who_gives_up_is_passed_over():
    turnstile = Turnstile()
    turnstile.enter("a")
    first, second = turnstile.enter("a"), turnstile.enter("a")
    assert first is not None
    assert second is not None
    turnstile.give_up("a", first)
    assert turnstile.awaited("a")
    turnstile.leave("a")
    assert second.done()
    assert not turnstile.awaited("a")
    turnstile.leave("a")
    assert not turnstile.busy


async def test_who_gives_up_as_its_turn_comes_hands_it_on():
    turnstile = Turnstile()
    turnstile.enter("a")
    first, second = turnstile.enter("a"), turnstile.enter("a")
    assert first is not None
    assert second is not None
    turnstile.leave("a")
    assert first.done()  # but it has not noticed yet
    turnstile.give_up("a", first)
    assert second.done()
    turnstile.give_up("a", second)
    assert not turnstile.busy


async def test_whoever_is_cancelled_whenever_no_two_are_through_at_once_and_nobody_is_forgotten():
    turnstile = Turnstile()
    inside = through = 0
    rng = random.Random(5)

    async def pass_through() -> None:
        nonlocal inside, through
        place = turnstile.enter("a")
        if place is not None:
            try:
                await place
            except BaseException:
                turnstile.give_up("a", place)
                raise
        try:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
        finally:
            inside -= 1
            through += 1
            turnstile.leave("a")

    tasks = [asyncio.create_task(pass_through()) for _ in range(500)]
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [r for r in results if isinstance(r, AssertionError)]
    assert through > 50
    assert not turnstile.busy


@pytest.mark.parametrize("key", [1, "a", ("kind", "name")])
async def test_any_name_will_do(key):
    turnstile = Turnstile()
    assert turnstile.enter(key) is None
    assert turnstile.enter(key) is not None
