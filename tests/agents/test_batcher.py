"""Batches: whatever has gathered while the previous one was on its way; a lone request never waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents import batcher as batchers
from agents.batcher import WORTH, Batcher
from tests.waiting import wait_until


class Work:
    """Doubles numbers, in batches that it remembers; waits at its gate, if that is closed."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, numbers: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(numbers))
        self.gate.wait(30)
        if 13 in numbers:
            raise RuntimeError("the whole batch")
        return [ValueError(n) if n < 0 else n * 2 for n in numbers]


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


Passes = Callable[[], Awaitable[None]]


@pytest.fixture
async def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Makes the time pass after which a batch is slow; by itself, it takes a minute."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(batchers, "SLOW", 60.0)
    monkeypatch.setattr(loop, "time", lambda: now() + ahead)

    async def passes() -> None:
        nonlocal ahead
        ahead += batchers.SLOW
        await settled()

    return passes


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def has(work: Work, *batches: list[int]) -> None:
    await asyncio.to_thread(wait_until, lambda: work.batches == list(batches))


def batcher(work: Work, threads: ThreadPoolExecutor, size: int = 64, lanes: int = 1) -> Batcher[int, int]:
    return Batcher(work, threads, size=size, lanes=lanes)


async def test_a_lone_request_does_not_wait(threads, passes: Passes):
    work = Work()
    began = time.monotonic()
    assert await batcher(work, threads).submit(2) == 4
    assert time.monotonic() - began < batchers.SLOW / 2
    assert work.batches == [[2]]


async def test_what_is_ready_in_one_round_of_the_loop_goes_together_and_in_order(threads):
    work = Work()
    submit = batcher(work, threads).submit
    assert await asyncio.gather(*(submit(n) for n in range(5))) == [0, 2, 4, 6, 8]
    assert work.batches == [[0, 1, 2, 3, 4]]


async def test_what_comes_while_a_batch_is_on_its_way_goes_with_the_next(threads, passes: Passes):
    work = Work()
    submit = batcher(work, threads).submit
    work.gate.clear()
    first = submit(1)
    await has(work, [1])
    others = [submit(n) for n in (2, 3)]
    await settled()
    others.append(submit(4))
    await passes()
    assert work.batches == [[1]]  # one lane: nothing overtakes
    work.gate.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
    assert work.batches == [[1], [2, 3, 4]]


async def test_no_batch_is_larger_than_its_size(threads):
    work = Work()
    submit = batcher(work, threads, size=3).submit
    assert await asyncio.gather(*(submit(n) for n in range(7))) == [n * 2 for n in range(7)]
    assert [len(batch) for batch in work.batches] == [3, 3, 1]


async def test_a_slow_batch_lets_the_next_one_start_beside_it_where_there_are_lanes(threads, passes: Passes):
    work = Work()
    submit = batcher(work, threads, lanes=2).submit
    work.gate.clear()
    first = submit(1)
    await has(work, [1])
    second = submit(2)
    await settled()
    assert work.batches == [[1]]
    await passes()
    await has(work, [1], [2])
    third = submit(3)
    await passes()
    assert work.batches == [[1], [2]]  # no third lane
    work.gate.set()
    assert await asyncio.gather(first, second, third) == [2, 4, 6]


async def test_nothing_overtakes_what_is_on_its_way_under_the_same_key(threads, passes: Passes):
    work = Work()
    submit = Batcher(work, threads, size=64, lanes=2, key=lambda n: n % 10).submit
    work.gate.clear()
    waiting = [submit(1), submit(2)]
    await has(work, [1, 2])
    waiting += [submit(n) for n in (11, 3, 21, 4, 12)]
    await passes()
    await has(work, [1, 2], [3, 4])
    waiting += [submit(n) for n in (5, 31)]
    await passes()
    assert work.batches == [[1, 2], [3, 4]]
    work.gate.set()
    assert await asyncio.gather(*waiting) == [2, 4, 22, 6, 42, 8, 24, 10, 62]
    assert [n for batch in work.batches for n in batch if n % 10 == 1] == [1, 11, 21, 31]


async def test_what_waits_for_its_key_goes_as_soon_as_that_is_back(threads, passes: Passes):
    work = Work()
    submit = Batcher(work, threads, size=64, lanes=2, key=lambda n: n % 10).submit
    work.gate.clear()
    first = submit(1)
    await has(work, [1])
    second = submit(11)
    await passes()
    for _ in range(50):  # looking again and again would find nothing
        assert timers() == 0
        await asyncio.sleep(0)
    beside = submit(2)  # it waits for nobody, however slow the first batch is
    await has(work, [1], [2])
    work.gate.set()
    assert await asyncio.gather(first, second, beside) == [2, 22, 4]
    assert work.batches == [[1], [2], [11]]


async def test_requests_that_wait_for_a_slow_batch_wait_for_one_timer_together(threads):
    work = Work()
    submit = batcher(work, threads, lanes=3).submit
    work.gate.clear()
    waiting = []
    most = 0
    for n in range(1000, 1200):
        waiting.append(submit(n))
        await asyncio.sleep(0)  # each comes in a round of the loop of its own
        most = max(most, timers())
    await asyncio.to_thread(wait_until, lambda: len(work.batches) == 3)
    assert max(most, timers()) <= 1
    work.gate.set()
    assert await asyncio.gather(*waiting) == [2 * n for n in range(1000, 1200)]


def timers() -> int:
    """How many of the running loop's timers look at a batcher."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum("Batcher" in repr(timer) and not timer.cancelled() for timer in scheduled)


async def test_an_error_is_its_own_requests_and_one_of_the_work_is_all_of_theirs(threads):
    work = Work()
    submit = batcher(work, threads).submit
    results = await asyncio.gather(submit(1), submit(-1), submit(2), return_exceptions=True)
    assert [str(r) for r in results] == ["2", "-1", "4"]
    both = await asyncio.gather(submit(1), submit(13), return_exceptions=True)
    assert [str(r) for r in both] == ["the whole batch", "the whole batch"]
    assert await submit(3) == 6


async def test_a_request_that_nobody_waits_for_any_more_harms_no_other(threads):
    work = Work()
    submit = batcher(work, threads).submit
    work.gate.clear()
    gone, waits = submit(1), submit(2)
    await has(work, [1, 2])
    gone.cancel()
    work.gate.set()
    assert await waits == 4


async def test_no_batch_takes_more_than_half_of_the_turns_that_are_under_way(threads):
    work = Work()
    submit = Batcher(work, threads, size=64, under_way=lambda: 50).submit
    await asyncio.gather(*(submit(n) for n in range(100, 150)))
    assert [len(batch) for batch in work.batches] == [25, 25]


async def test_few_turns_are_not_parted_and_many_fill_no_more_than_a_batch(threads):
    work = Work()
    submit = Batcher(work, threads, size=64, under_way=lambda: WORTH).submit
    await asyncio.gather(*(submit(n) for n in range(100, 100 + WORTH)))
    assert [len(batch) for batch in work.batches] == [WORTH]
    work = Work()
    submit = Batcher(work, threads, size=64, under_way=lambda: 1000).submit
    await asyncio.gather(*(submit(n) for n in range(100, 200)))
    assert [len(batch) for batch in work.batches] == [64, 36]
