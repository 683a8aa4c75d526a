"""Sends wake-ups to the broker from a thread of its own: a commit never waits for Redis.

What has gathered while the broker was being talked to goes in one message. A broker that fails or hangs
loses wake-ups, never commits: the sweep finds every due actor by itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable

from agents import conf

logger = logging.getLogger("scheduler.publisher")

# Actors that wait to be published; beyond this they are left to the sweep.
BACKLOG = 10_000
# A broker that failed is left alone for so long: what is due meanwhile is the sweep's.
OUTAGE_PAUSE = 1.0  # seconds
# Lines in the log about a broker that stays away.
COMPLAINT_PAUSE = 10.0  # seconds

#: (actor id, kind, the moment when it is due: seconds since 1970 by the database's clock)
Wake = tuple[int, str, float]
#: Called with wake-ups, the latest moment of the database's clock that is known, and whether texts wait.
Send = Callable[[list[Wake], float, bool], None]


class Publisher:
    """Gathers wake-ups and hands them, in lists, to ``send``, which raises what goes wrong."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pid = 0
        self._renew()

    def _renew(self) -> None:
        """A forked child has its own lock, list and thread."""
        self._pid = os.getpid()
        self._some = threading.Condition()
        self._wakes: dict[int, Wake] = {}
        self._said = 0.0
        self._texts = False
        self._sending = False
        self._thread: threading.Thread | None = None
        self._closed_until = 0.0
        self._complained_at = -COMPLAINT_PAUSE
        self._lost = 0

    def wake(self, wakes: list[Wake], said: float) -> None:
        """These are due now or soon, as the database said at the moment ``said``. Returns at once."""
        self._put(wakes, said, texts=False)

    def texts(self) -> None:
        """There are texts to send. Returns at once."""
        self._put([], 0.0, texts=True)

    def _put(self, wakes: list[Wake], said: float, texts: bool) -> None:
        if self._pid != os.getpid():
            self._renew()
        with self._some:
            if time.monotonic() < self._closed_until or len(self._wakes) >= BACKLOG:
                self._lost += len(wakes)
                return
            for wake in wakes:
                known = self._wakes.get(wake[0])
                if known is None or wake[2] < known[2]:
                    self._wakes[wake[0]] = wake
            self._said = max(self._said, said)
            self._texts = self._texts or texts
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="agents-publisher", daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._some.notify_all()

    def flush(self) -> None:
        """Waits until everything is with the broker, or PUBLISH_TIMEOUT is over."""
        if self._pid != os.getpid():
            return
        with self._some:
            self._some.wait_for(
                lambda: not (self._wakes or self._texts or self._sending), conf.get("PUBLISH_TIMEOUT")
            )

    def _loop(self) -> None:
        while True:
            with self._some:
                self._some.wait_for(lambda: self._wakes or self._texts)
                wakes, self._wakes = list(self._wakes.values()), {}
                texts, self._texts = self._texts, False
                self._sending = True
            try:
                self._send(wakes, self._said, texts)
            except Exception as error:
                self._closed_until = time.monotonic() + OUTAGE_PAUSE
                self._lost += len(wakes)
                self._complain(error)
            finally:
                with self._some:
                    self._sending = False
                    self._some.notify_all()

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._complained_at < COMPLAINT_PAUSE:
            return
        self._complained_at = now
        logger.warning(
            "the broker takes no wake-ups (%s: %s), %d were lost; the sweep finds what they were for",
            type(error).__name__,
            error,
            self._lost,
        )
        self._lost = 0
