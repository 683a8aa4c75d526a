"""Announcing: signals go out after what they tell of, in a thread of their own.

A receiver may be slow, hang or raise: the turn that it hears of is over by then. Those that hang hold up the
announcements behind them, never a turn; past ``WAITING`` of these the newest are dropped, and counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import Any

from django.db import transaction
from django.dispatch import Signal

from agents.observing import metrics
from agents.threads import with_connection

logger = logging.getLogger("agents.signals")

#: Announcements that wait for their receivers. Past this many, new ones are dropped.
WAITING = 10_000
#: How long the end of a process waits for receivers.
CLOSING = 5.0  # seconds


class Announcer:
    """The thread of one process; started when there is something to say to somebody."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Signal, Any, dict[str, Any]]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._dropping = False
        self._thread: threading.Thread | None = None

    def put(self, signal: Signal, sender: Any, facts: dict[str, Any]) -> None:
        """Waits for nobody. Any thread may call it, an event loop too."""
        with self._changed:
            if len(self._waiting) >= WAITING:
                metrics.signals_dropped.inc()
                if not self._dropping:
                    self._dropping = True
                    logger.error("%d signals wait for slow receivers: new ones are dropped", WAITING)
                return
            self._dropping = False
            self._waiting.append((signal, sender, facts))
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="agents-signals", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until everything that was announced has been heard; False where that took too long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._waiting or self._busy), timeout=max(0.0, deadline - time.monotonic())
            )

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                signal, sender, facts = self._waiting.popleft()
                self._busy = True
            try:
                with_connection(self._send, signal, sender, facts)
            except BaseException:
                logger.exception("a signal was not sent")

    def _send(self, signal: Signal, sender: Any, facts: dict[str, Any]) -> None:
        for receiver, answer in signal.send_robust(sender, **facts):
            if isinstance(answer, Exception):
                metrics.signal_errors.inc()
                logger.error("the receiver %r failed", receiver, exc_info=answer)


_announcer = Announcer()


def announce(signal: Signal, sender: Any, **facts: Any) -> None:
    """Tells the receivers of a signal, if there are any, soon and elsewhere."""
    if signal.receivers:
        _announcer.put(signal, sender, facts)


def announce_on_commit(signal: Signal, sender: Any, **facts: Any) -> None:
    """The same once the transaction that is open on this thread has committed; never if it rolls back."""
    if signal.receivers:
        transaction.on_commit(lambda: _announcer.put(signal, sender, facts))


def flush(seconds: float = CLOSING) -> bool:
    """Waits until everything that was announced has been heard; False where that took too long."""
    return _announcer.flush(seconds)


def _after_fork() -> None:
    """What the parent announced is the parent's to send."""
    global _announcer
    _announcer = Announcer()


os.register_at_fork(after_in_child=_after_fork)
