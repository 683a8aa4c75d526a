"""Calls for another thread's event loop: in order, none lost, many in one go."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from agents.handover import Handover, hand_over

mark = contextvars.ContextVar("mark", default="nobody's")


async def test_what_threads_put_runs_on_the_loop_each_once_and_in_its_threads_order() -> None:
    loop, ran = asyncio.get_running_loop(), list[tuple[int, int]]()
    done = asyncio.Event()

    def note(thread: int, n: int) -> None:
        assert asyncio.get_running_loop() is loop
        ran.append((thread, n))
        if len(ran) == 4000:
            done.set()

    def put(thread: int) -> None:
        for n in range(1000):
            hand_over(loop, note, thread, n)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(done.wait(), 60)
    for thread in threads:
        thread.join()
    for thread_number in range(4):
        assert [n for number, n in ran if number == thread_number] == list(range(1000))


async def test_what_gathers_while_the_loop_is_busy_wakes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, ran = asyncio.get_running_loop(), list[int]()
    handover, woken = Handover(loop), list[Any]()
    wake = loop.call_soon_threadsafe

    def counted(callback: Any, *args: Any, **context: Any) -> Any:
        woken.append(callback)
        return wake(callback, *args, **context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for n in range(100):
        handover.put(ran.append, n)
    await asyncio.sleep(0)
    assert (ran, len(woken)) == (list(range(100)), 1)


async def test_what_is_put_by_what_runs_comes_in_the_next_round() -> None:
    handover, ran = Handover(asyncio.get_running_loop()), list[str]()

    def first() -> None:
        ran.append("first")
        handover.put(ran.append, "second")

    handover.put(first)
    await asyncio.sleep(0)
    assert ran == ["first"]
    await asyncio.sleep(0)
    assert ran == ["first", "second"]


async def test_a_call_that_fails_is_reported_and_holds_up_no_other() -> None:
    loop, reported, ran = asyncio.get_running_loop(), list[Any](), list[int]()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    handover = Handover(loop)
    handover.put(int, "no number")
    handover.put(ran.append, 1)
    await asyncio.sleep(0)
    assert ran == [1]
    assert isinstance(reported[0], ValueError)


async def test_calls_see_nothing_of_the_context_they_were_put_in() -> None:
    handover, seen = Handover(asyncio.get_running_loop()), list[str]()
    mark.set("mine")
    handover.put(lambda: seen.append(mark.get()))
    await asyncio.sleep(0)
    assert seen == ["nobody's"]


def test_a_loop_that_is_closed_takes_nothing() -> None:
    loop = asyncio.new_event_loop()
    hand_over(loop, int)  # never run
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            hand_over(loop, int)
