"""Agents that the runtime's tests play with, in this process and in others."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

from agents import Agent, GiveUp, Retry, TaskContext, exposed, kinds, reads

#: What methods did to "the outside world", which no commit takes back. One list a process.
outside: list[Any] = []

#: What the test has said to those that wait for a word of it.
said: set[str] = set()


def remember(what: Any, path: str = "") -> Any:
    """Does something to the outside world: of this process, or, with its pid, in a file that others see."""
    if path:
        with Path(path).open("a") as file:
            file.write(f"{what} {os.getpid()}\n")
    else:
        outside.append(what)
    return what


async def meeting(path: str, turns: int) -> None:
    """Returns when so many have come, in whatever process: each leaves a line in the file."""
    remember("here", path)
    while Path(path).read_text().count("\n") < turns:  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.002)


async def hear(word: str, patience: float) -> None:
    """Returns when the test has said the word, or after so many seconds.

    A word that is a path is said to other processes: by making the file.
    """
    end = time.monotonic() + patience
    while not was_said(word) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def was_said(word: str) -> bool:
    return word in said or ("/" in word and Path(word).exists())


class Counter(Agent):
    kind = "test-counter"

    def initial_state(self):
        return {"count": 0}

    async def add(self, amount: int = 1) -> int:
        state = await self.get_state()
        next = await self.set_state({"count": state["count"] + amount})
        return next["count"]

    async def slow_add(self, word: str) -> int:
        """Adds one when the test has said the word."""
        state = await self.get_state()
        await hear(word, 60)
        return (await self.set_state({"count": state["count"] + 1}))["count"]

    @exposed
    @reads
    async def count(self) -> int:
        return (await self.get_state())["count"]

    async def nothing(self) -> str:
        return "nothing"

    async def echo(self, value: Any = None, *, more: Any = None) -> Any:
        return [value, more] if more is not None else value

    async def log(self, text: str) -> int:
        return await self.messages.add("user", text)

    async def _private(self) -> None: ...

    def helper(self) -> str:
        return "not a turn"


class Writer(Agent):
    """Writes one of everything, then fails as often as its state of the world says."""

    kind = "test-writer"

    async def everything(self, failures: int = 0) -> None:
        outside.append("everything")
        await self.messages.add("user", "hello")
        await self.set_state({"wrote": True})
        await self.schedule(3600, "later", id="later")
        await self.sms.send("hi", to="+15550001111", sender="+15550009999")
        await self.broadcast("news")
        if len(outside) <= failures:
            raise RuntimeError("after all that")

    async def later(self) -> None: ...

    async def retry_in(self, seconds: float) -> None:
        outside.append("retry_in")
        raise Retry(after=seconds)

    async def give_up(self) -> None:
        outside.append("give_up")
        raise GiveUp("no use")

    async def fails(self) -> None:
        outside.append("fails")
        raise ValueError("always")

    async def on_parked(self, task) -> None:
        outside.append(("parked", task.name, task.error))

    async def blocks(self, until: str = "", seconds: float = 60) -> None:
        """Keeps the whole event loop of its process, as no method should, until the test says the word."""
        await self.messages.add("user", "blocked")
        outside.append("blocks")
        end = time.monotonic() + seconds
        while not was_said(until) and time.monotonic() < end:
            time.sleep(0.005)  # noqa: ASYNC251


class Waiter(Agent):
    """Waits, in all the ways in which a body can."""

    kind = "test-waiter"

    async def sleep(self, seconds: float, mark: str = "slept", path: str = "", until: str = "") -> str:
        """Sleeps so long, or until the test says this word."""
        await self.messages.add("user", mark)
        remember(f"begun {mark}", path)
        await (hear(until, seconds) if until else asyncio.sleep(seconds))
        remember(f"ended {mark}", path)
        return mark

    async def nap(self, payload: dict[str, Any]) -> str:
        """The same as a task."""
        return await self.sleep(**payload)

    async def stubborn(self, until: str) -> str:
        """Will not be cancelled: goes on until the test says the word."""
        await self.messages.add("user", "stubborn")
        while not was_said(until):
            try:
                await hear(until, 60)
            except asyncio.CancelledError:
                remember("cancelled")
        remember("stubborn to the end")
        return "done"


class Caller(Agent):
    """Calls others."""

    kind = "test-caller"

    async def add_to(self, name: str) -> int:
        return await Counter.named(name).add()

    async def relay_failure(self, how: str) -> None:
        await kinds.get("test-broken").named("b").fails(how)

    async def relay(self, *names: str) -> int:
        """Calls the callers of these names one through the other; how many turns that made."""
        await self.messages.add("user", "relayed")
        if not names:
            return 1
        return 1 + await Caller.named(names[0]).relay(*names[1:])

    async def meet(self, path: str, turns: int, other: str) -> str:
        """Waits until so many turns have come to this meeting, then calls another of them."""
        await self.messages.add("user", "calling")
        await meeting(path, turns)
        return await Caller.named(other).answer()

    async def answer(self) -> str:
        await self.messages.add("user", "answered")
        return "answer"

    async def call_and_wait(self, name: str) -> str:
        return await Waiter.named(name).sleep(30)

    async def call_back(self, name: str) -> str:
        return await Caller.named(name).answer()

    async def pass_on(self, payload: dict[str, Any]) -> None:
        """Tells others, ``{"to": [[kind, name, method, payload], ...], "fail": bool}``."""
        for kind, name, method, value in payload["to"]:
            await kinds.get(kind).named(name).tell(method, value)
        if payload.get("fail"):
            raise RuntimeError("after telling")


class Keeper(Agent):
    """Keeps its inbox in its log, and fails where it is told to."""

    kind = "test-keeper"

    async def keep(self, text: str) -> None:
        await self.messages.add("user", text)

    async def keep_slowly(self, text: str) -> None:
        await asyncio.sleep(0.01)
        await self.messages.add("user", text)

    async def count(self, n: int) -> None:
        """The least that a task can do and be seen."""
        state = await self.get_state()
        await self.set_state({"count": state.get("count", 0) + 1})

    async def keep_unless(self, payload: dict[str, Any]) -> None:
        """``{"text": ..., "failures": n}``: fails the first n times."""
        outside.append(payload["text"])
        if outside.count(payload["text"]) <= payload["failures"]:
            raise ValueError(payload["text"])
        await self.messages.add("user", payload["text"])

    async def _keep_privately(self, text: str) -> None:
        await self.messages.add("user", text)

    async def plan(self, steps: list[list[Any]]) -> list[Any]:
        """Calls its own timers' methods, ``[[method, args, kwargs], ...]``, and returns what they return."""
        return [await getattr(self, name)(*args, **kwargs) for name, args, kwargs in steps]

    async def again(self, times: int) -> None:
        """Schedules itself."""
        await self.messages.add("user", f"again {times}")
        if times > 1:
            await self.queue("again", times - 1, id="again")

    async def once_only(self) -> None:
        """Cancels itself."""
        await self.messages.add("user", "once")
        assert await self.cancel_schedule("once")

    async def schedules(self) -> list[Any]:
        return [[t.id, t.name, t.payload] for t in await self.list_schedules()]

    async def on_task(self, name: str, payload: Any, ctx: TaskContext) -> None:
        if name != "from_the_future":
            await super().on_task(name, payload, ctx)
        await self.messages.add("user", f"{name} {payload} {ctx.attempt}")

    async def on_parked(self, task) -> None:
        await self.messages.add("system", f"parked {task.name} {task.attempts}")


class Mortal(Agent):
    """Kills the process that runs it."""

    kind = "test-mortal"

    async def exits(self, path: str) -> None:
        remember("here", path)
        os._exit(3)

    async def hoards(self, path: str) -> None:
        """Takes memory until there is none."""
        remember("here", path)
        hoard = []
        while True:
            hoard.append(bytearray(16 * 1024 * 1024))

    async def on_parked(self, task) -> None:
        await self.messages.add("system", f"parked {task.name} {task.attempts}")


class Newborn(Agent):
    """Has a first turn."""

    kind = "test-newborn"

    async def on_create(self) -> None:
        outside.append("created")
        await self.messages.add("system", "created")
        await self.every(3600, "hourly", id="hourly")

    async def hourly(self) -> None: ...

    async def greet(self, fail: bool = False) -> int:
        if fail:
            raise ValueError("not yet")
        return await self.messages.add("user", "hello")

    async def greet_as_told(self, failures: int) -> None:
        outside.append("told")
        if outside.count("told") <= failures:
            raise ValueError("not yet")
        await self.messages.add("user", "told")

    @reads
    async def peek(self) -> int:
        return await self.messages.count()


class Timely(Agent):
    """Lives by a clock of its own."""

    kind = "test-timely"
    time = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

    def now(self) -> dt.datetime:
        return Timely.time

    async def plan(self, seconds: float) -> str:
        return (await self.queue_in(seconds)).isoformat()

    async def queue_in(self, seconds: float) -> dt.datetime:
        await self.schedule(seconds, "strike", id="strike")
        return self.now()

    async def strike(self) -> None:
        await self.messages.add("user", "struck")
