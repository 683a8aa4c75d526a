"""Lanes: one at a time, in order, bounded together."""

from __future__ import annotations

import asyncio

import pytest

from agents import conf
from agents.exceptions import TooManyFramesError
from agents.sockets.lanes import Lane, Waiting
from agents.work import Work


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_lane_works_in_order_one_at_a_time_and_says_so() -> None:
    begun: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]

    async def work(n: int) -> None:
        begun.append(n)
        await gates[n].wait()

    server = Work()
    lane = Lane("test", work, Waiting(), server)
    for n in range(3):
        lane.put(n, 1)
    await settle()
    assert (begun, server.busy) == ([0], 1)
    gates[0].set()
    await settle()
    assert begun == [0, 1]
    gates[1].set()
    gates[2].set()
    await settle()
    assert (begun, server.busy) == ([0, 1, 2], 0)
    gates.append(asyncio.Event())
    lane.put(3, 1)  # a lane that had nothing to do begins again
    await settle()
    assert begun == [0, 1, 2, 3]
    lane.end()
    await settle()
    assert server.busy == 0


async def test_lanes_share_what_may_wait_and_what_runs_does_not_count() -> None:
    gate = asyncio.Event()

    async def work(n: int) -> None:
        await gate.wait()

    waiting, server = Waiting(), Work()
    one, other = Lane("one", work, waiting, server), Lane("other", work, waiting, server)
    one.put(0, 1)
    other.put(0, 1)
    await settle()
    assert waiting.frames == 0
    frames = conf.get("MAX_WAITING_FRAMES")
    for n in range(frames):
        (one if n % 2 else other).put(n, 1)
    with pytest.raises(TooManyFramesError):
        one.put(1, 1)
    gate.set()
    for _ in range(frames):
        await settle()
    assert (waiting.frames, waiting.bytes) == (0, 0)


def test_the_bytes_that_wait_are_bounded_at_the_edge() -> None:
    waiting = Waiting()
    waiting.add(conf.get("MAX_WAITING_BYTES") - 1)
    waiting.add(1)
    with pytest.raises(TooManyFramesError):
        waiting.add(1)
    assert waiting.frames == 2


async def test_a_server_that_stops_lets_what_runs_end_and_begins_nothing() -> None:
    done: list[int] = []
    gate = asyncio.Event()

    async def work(n: int) -> None:
        await gate.wait()
        done.append(n)

    server = Work()
    lane = Lane("test", work, Waiting(), server)
    lane.put(1, 1)
    lane.put(2, 1)
    await settle()
    server.stopping = True
    gate.set()
    await settle()
    assert (done, server.busy) == ([1], 0)
