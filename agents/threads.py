"""Threads for synchronous code that uses the ORM, with connections that are healthy and given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import close_old_connections, connections

T = TypeVar("T")

# The executor that the running thread belongs to.
_here = threading.local()

# How long the threads of an executor have to come together and close their connections.
CLOSING = 5.0  # seconds


def with_connection(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs ``fn`` on a healthy connection, if it asks for one, and gives that back."""
    close_old_connections()
    try:
        return fn(*args, **kwargs)
    finally:
        close_old_connections()


class OrmExecutor(ThreadPoolExecutor):
    """A bounded pool: the connection is healthy before each use and given back after.

    No more than ``threads`` pieces of work run at once, however many threads ``blocking`` made necessary:
    those stay, since a pool of Python's never ends one.
    """

    def __init__(self, threads: int, thread_name_prefix: str) -> None:
        super().__init__(threads, thread_name_prefix)
        self._busy = 0  # threads that have a piece of work
        self._room = threading.Semaphore(threads)  # taken by those that run one, but for its blocking()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._work, fn, *args, **kwargs)

    def _work(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        _here.executor = self
        with self._shutdown_lock:
            self._busy += 1
        try:
            with self._room:
                return with_connection(fn, *args, **kwargs)
        finally:
            with self._shutdown_lock:
                self._busy -= 1

    def _adjust_thread_count(self) -> None:
        # Before Python 3.12 each thread that has done a piece of work is counted as idle, even if it took the
        # next at once: none is then started for work that only another could do. So they are counted here.
        if self._work_queue.qsize() <= len(self._threads) - self._busy:
            return
        while self._idle_semaphore.acquire(blocking=False):
            pass
        super()._adjust_thread_count()

    def close(self) -> None:
        """Takes no more work, and doesn't wait for what runs."""
        self.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        # ThreadPoolExecutor starts threads when work comes in and knows no other moment.
        with self._shutdown_lock:
            self._max_workers += 1
            if not self._work_queue.empty():
                self._adjust_thread_count()
        self._room.release()
        try:
            yield
        finally:
            self._room.acquire()
            with self._shutdown_lock:
                self._max_workers -= 1


@contextmanager
def blocking() -> Iterator[None]:
    """Around waiting for something that may need a thread of the pool in which we are: it gets another.

    A synchronous helper that calls an actor with ``.sync`` waits for a turn that may use the same pool. With
    as many such helpers as threads, each would wait for a thread that another of them keeps. Whoever has
    waited goes on when the pool has room again.
    """
    executor = getattr(_here, "executor", None)
    if executor is None or getattr(_here, "blocked", False):
        yield
        return
    _here.blocked = True
    try:
        with executor._one_more():
            yield
    finally:
        _here.blocked = False


def close_connections(executor: ThreadPoolExecutor) -> None:
    """Closes the connections of all of an executor's threads."""
    threads = len(executor._threads)
    if not threads:
        return
    together = threading.Barrier(threads)

    def close() -> None:
        try:
            together.wait(CLOSING)  # so that no thread does it twice in place of another
        except threading.BrokenBarrierError:
            pass  # a thread is held up in somebody's code
        connections.close_all()

    closed = [ThreadPoolExecutor.submit(executor, close) for _ in range(threads)]
    for future in closed:
        try:
            future.result(CLOSING)
        except TimeoutError:
            return
