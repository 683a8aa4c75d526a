"""Lanes: what a socket's client asked for, in order, one at a time, while the socket goes on receiving.

A socket has a few: what is said does not wait for calls, and a stop waits for neither. What waits in all of
them together is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agents import conf
from agents.exceptions import TooManyFramesError
from agents.work import Work

T = TypeVar("T")


class Waiting:
    """How much of one socket waits for its turn: MAX_WAITING_FRAMES, MAX_WAITING_BYTES."""

    def __init__(self) -> None:
        self.frames = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        """Raises TooManyFramesError, and adds nothing, where that would be too much."""
        frames, most = conf.get("MAX_WAITING_FRAMES"), conf.get("MAX_WAITING_BYTES")
        if self.frames + 1 > frames or self.bytes + size > most:
            raise TooManyFramesError(f"{self.frames} frames wait, {self.bytes} bytes")
        self.frames += 1
        self.bytes += size

    def take(self, size: int) -> None:
        self.frames -= 1
        self.bytes -= size


class Lane(Generic[T]):
    """Works off what is put into it. A task runs only as long as there is something."""

    def __init__(
        self, name: str, work: Callable[[T], Awaitable[None]], waiting: Waiting, server: Work
    ) -> None:
        self._name = name
        self._work = work
        self._waiting = waiting
        self._server = server
        self._queue: deque[tuple[T, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, item: T, size: int) -> None:
        """Raises TooManyFramesError."""
        self._waiting.add(size)
        self._queue.append((item, size))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"agents-{self._name}")

    def drop(self) -> None:
        """Drops what waits."""
        self._queue.clear()

    def end(self) -> None:
        """Drops what waits, and stops waiting for what is being worked on."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._queue and not self._server.stopping:
                item, size = self._queue.popleft()
                self._waiting.take(size)
                self._server.busy += 1
                try:
                    await self._work(item)
                finally:
                    self._server.busy -= 1
        finally:
            self._task = None
