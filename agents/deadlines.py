"""Deadlines that are hardly ever reached: one timer of the loop for all of them.

A timer of the loop's own is made, put in order and taken out again for each turn, mostly for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class Deadlines:
    """Calls what was set, once its time has come, unless it was dropped before. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set: dict[Hashable, tuple[float, Callable[[], object]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: Hashable, seconds: float, call: Callable[[], object]) -> None:
        at = self._loop.time() + seconds
        self._set[key] = at, call
        if self._timer is None or at < self._timer.when():
            self._arm(at)

    def drop(self, key: Hashable) -> None:
        # The timer stays: it looks for what is due and finds nothing.
        self._set.pop(key, None)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        assert self._timer is not None
        # What the timer was set for is due now, though the loop may call it a tick of its clock too early.
        now = max(self._loop.time(), self._timer.when())
        self._timer = None
        due = sorted(
            (key for key, (at, _) in self._set.items() if at <= now), key=lambda key: self._set[key][0]
        )
        calls = [self._set.pop(key)[1] for key in due]
        if self._set:
            self._arm(min(at for at, _ in self._set.values()))
        for call in calls:
            try:
                call()
            except Exception as error:
                self._loop.call_exception_handler({"message": f"{call!r} failed", "exception": error})
