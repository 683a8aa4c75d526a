"""Calls for another thread's event loop, gathered.

To wake a loop costs a system call, and the interpreter's lock on the way: turns and sockets live on two
loops, and a frame crosses over several times. What is handed over while the other loop is busy goes together,
in order.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Handover:
    """What is on its way to one loop; ``put`` from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._due = False
        # Not that of whoever happens to come first.
        self._context = contextvars.Context()

    def put(self, fn: Callable[..., object], *args: Any) -> None:
        """Calls ``fn`` on the loop, soon. Raises RuntimeError when the loop is closed."""
        self._calls.append((fn, args))
        if not self._due or self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._run, context=self._context)

    def _run(self) -> None:
        # First: whatever is put from here on is seen below, or wakes the loop again.
        self._due = False
        for _ in range(len(self._calls)):
            fn, args = self._calls.popleft()
            try:
                fn(*args)
            except Exception as error:
                self._loop.call_exception_handler({"message": f"{fn!r} failed", "exception": error})
        if self._calls and not self._due:
            self._due = True
            self._loop.call_soon(self._run, context=self._context)


_all: dict[asyncio.AbstractEventLoop, Handover] = {}
_lock = threading.Lock()


def hand_over(loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: Any) -> None:
    """Calls ``fn`` on ``loop``, soon, behind what was handed over before.

    Raises RuntimeError when the loop is closed.
    """
    handover = _all.get(loop)
    if handover is None:
        with _lock:
            for other in [other for other in _all if other.is_closed()]:
                del _all[other]
            handover = _all.setdefault(loop, Handover(loop))
    handover.put(fn, *args)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _all.clear()


os.register_at_fork(after_in_child=_after_fork)
