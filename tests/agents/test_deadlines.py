"""Deadlines: many moments, one timer of the loop; what is dropped is never called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agents.deadlines import Deadlines


class Calls:
    """What was called, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._more = asyncio.Event()

    def later(self, name: str) -> Callable[[], None]:
        def call() -> None:
            self.seen.append(name)
            self._more.set()

        return call

    async def has(self, count: int) -> None:
        while len(self.seen) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)


async def test_what_is_due_is_called_in_its_time_and_once():
    calls = Calls()
    deadlines = Deadlines(asyncio.get_running_loop())
    deadlines.set("late", 0.06, calls.later("late"))
    deadlines.set("soon", 0.02, calls.later("soon"))
    await calls.has(2)
    assert calls.seen == ["soon", "late"]
    await asyncio.sleep(0.05)
    assert len(calls.seen) == 2


async def test_what_was_dropped_is_not_called_and_harms_no_other():
    calls = Calls()
    deadlines = Deadlines(asyncio.get_running_loop())
    deadlines.set("dropped", 0.01, calls.later("dropped"))
    deadlines.set("kept", 0.04, calls.later("kept"))
    deadlines.drop("dropped")
    deadlines.drop("never set")
    await calls.has(1)
    assert calls.seen == ["kept"]


async def test_one_that_is_set_anew_has_its_new_moment_alone():
    calls = Calls()
    deadlines = Deadlines(asyncio.get_running_loop())
    deadlines.set("it", 0.01, calls.later("at first"))
    deadlines.set("it", 0.03, calls.later("then"))
    await calls.has(1)
    await asyncio.sleep(0.02)
    assert calls.seen == ["then"]


async def test_what_raises_is_the_loops_to_tell_and_keeps_no_other_back():
    calls = Calls()
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    deadlines = Deadlines(loop)
    deadlines.set("bad", 0.01, lambda: 1 / 0)
    deadlines.set("good", 0.01, calls.later("good"))
    await calls.has(1)
    assert calls.seen == ["good"] and [type(e) for e in told] == [ZeroDivisionError]
