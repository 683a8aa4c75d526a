"""Gathers requests for the store into batches: whatever has come while the previous batch was on its way.

Turns that went in one batch come back together, so their next requests come together, too. Were all turns
of a process in step like that, the process would wait while the database works, and the database while their
methods run. So no batch takes more than half of the turns that are under way: the one half runs here while
the other is at the database.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

# A batch that takes longer than this lets the next one start beside it.
SLOW = 0.05  # seconds
# Fewer requests than this are not worth a batch of their own: what it costs is mostly not by the request.
WORTH = 8


class Batcher(Generic[Request, Result]):
    """Hands batches of requests to a synchronous function in a thread; a lone request never waits.

    ``work`` takes a list of requests and returns as many results, in order; a result that is an exception
    is raised to its own caller. What ``work`` itself raises is raised to all callers of the batch.
    ``under_way`` says how many there are who ask again and again: a batch takes half of them at most.
    ``told`` hears of each batch, in its thread: how many requests, how many seconds.
    ``key`` says which requests keep their order: those of a key that is on its way wait until it is back.
    Belongs to one event loop.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Request]], Sequence[Result | BaseException]],
        executor: Executor,
        *,
        size: int,
        lanes: int = 1,
        under_way: Callable[[], int] | None = None,
        told: Callable[[int, float], None] | None = None,
        key: Callable[[Request], Hashable] | None = None,
    ) -> None:
        self._work = work
        self._executor = executor
        self._size = size
        self._lanes = lanes
        self._under_way = under_way
        self._told = told
        self._key = key
        self._away: set[Hashable] = set()  # keys that are on their way
        self._loop = asyncio.get_running_loop()
        self._gathered: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._flying = 0
        self._flush_due = False
        self._departed = 0.0
        # Looks whether the batch on its way has become a slow one; there is one at most.
        self._later: asyncio.TimerHandle | None = None

    def submit(self, request: Request) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self._loop.create_future()
        self._gathered.append((request, future))
        if not self._flush_due:
            # At the end of this round of the loop, so that everything that is ready now goes together.
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flush_due = False
        while self._gathered and self._may_depart():
            batch = self._next()
            if not batch:
                return  # all of it waits for what is on its way
            self._flying += 1
            self._departed = self._loop.time()
            self._executor.submit(self._fly, batch)
        if self._gathered and self._flying < self._lanes and self._later is None:
            self._later = self._loop.call_at(self._departed + SLOW, self._look)

    def _next(self) -> list[tuple[Request, asyncio.Future[Result]]]:
        most = self._most()
        if self._key is None:
            return [self._gathered.popleft() for _ in range(min(len(self._gathered), most))]
        batch: list[tuple[Request, asyncio.Future[Result]]] = []
        waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        for entry in self._gathered:
            goes = len(batch) < most and self._key(entry[0]) not in self._away
            (batch if goes else waiting).append(entry)
        self._gathered = waiting
        self._away.update(self._key(request) for request, _ in batch)
        return batch

    def _look(self) -> None:
        self._later = None
        self._flush()

    def _most(self) -> int:
        if self._under_way is None:
            return self._size
        return min(self._size, max(WORTH, (self._under_way() + 1) // 2))

    def _may_depart(self) -> bool:
        if self._flying == 0:
            return True
        return self._flying < self._lanes and self._loop.time() - self._departed >= SLOW

    def _fly(self, batch: list[tuple[Request, asyncio.Future[Result]]]) -> None:
        """In the executor's thread."""
        results: Sequence[Result | BaseException]
        began = time.monotonic()
        try:
            results = self._work([request for request, _ in batch])
        except BaseException as error:
            results = [error] * len(batch)
        took = time.monotonic() - began
        self._loop.call_soon_threadsafe(self._land, batch, results)
        if self._told is not None:
            self._told(len(batch), took)

    def _land(
        self,
        batch: list[tuple[Request, asyncio.Future[Result]]],
        results: Sequence[Result | BaseException],
    ) -> None:
        self._flying -= 1
        if self._key is not None:
            self._away.difference_update(self._key(request) for request, _ in batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.cancelled():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._flush()
