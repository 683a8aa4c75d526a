"""The embedded dispatcher: drains run in this process, on its runtime's loop.

Started by the command that serves the site or by ``manage.py run_scheduler``, never by an import.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Sequence

from agents import conf, store
from agents.engine import Engine
from agents.runtime import Runtime, get_runtime
from agents.store.requests import Alarm
from agents.threads import with_connection
from conversations import outbox
from scheduler.dispatchers.drains import Drains
from scheduler.dispatchers.sender import Sender
from scheduler.dispatchers.sweeper import Sweeper
from scheduler.retention import keep_house

logger = logging.getLogger("scheduler.dispatchers.local")

# Old records are deleted this often.
PRUNE_INTERVAL = 3600.0  # seconds


class LocalDispatcher:
    """Sweeps for due actors every SWEEP_INTERVAL, listens to this process's commits, sends its texts."""

    def __init__(self, runtime: Runtime, *, sweeping: bool = True) -> None:
        self._runtime = runtime
        self._sweeping = sweeping
        self._drains: Drains | None = None
        self._sender: Sender | None = None
        self._sweeper: Sweeper | None = None
        self._pruner: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runtime.start(self._begin, contextvars.Context()).result()
        store.on_alarms.append(self._alarms)
        outbox.on_wake.append(self._texts_wait)

    def stop(self) -> None:
        """No new drains; those that run are the runtime's to end."""
        if self._alarms in store.on_alarms:
            store.on_alarms.remove(self._alarms)
        if self._texts_wait in outbox.on_wake:
            outbox.on_wake.remove(self._texts_wait)
        self._runtime.start(self._end, contextvars.Context()).result()

    async def _begin(self, engine: Engine) -> None:
        self._drains = Drains(engine)
        self._sender = Sender(engine)
        self._sender.start()
        if self._sweeping:
            self._sweeper = Sweeper(
                engine, self._drains, patience=conf.get("SWEEP_INTERVAL"), swept=self._sender.wake
            )
            self._sweeper.start()
            self._pruner = engine.loop.create_task(self._prune(), name="agents-pruner")

    async def _end(self, engine: Engine) -> None:
        if self._drains is not None:
            self._drains.stop()
        if self._sweeper is not None:
            await self._sweeper.stop()
        if self._sender is not None:
            self._sender.stop()
        if self._pruner is not None:
            self._pruner.cancel()
            await asyncio.wait([self._pruner])

    # Wake-ups: from whatever thread committed

    def _alarms(self, alarms: Sequence[Alarm]) -> None:
        if self._runtime.pid != os.getpid():
            return  # a forked child: the dispatcher is its parent's
        self._runtime.loop.call_soon_threadsafe(self._wake, alarms)

    def _texts_wait(self) -> None:
        if self._runtime.pid != os.getpid():
            return
        assert self._sender is not None
        self._sender.wake()

    def _wake(self, alarms: Sequence[Alarm]) -> None:
        assert self._drains is not None
        soon = 2 * conf.get("SWEEP_INTERVAL")
        for alarm in alarms:
            if alarm.due:
                self._drains.wake(alarm.actor_id, alarm.kind)
            elif alarm.at is not None and alarm.seconds <= soon:
                self._drains.wake_in(alarm.seconds, alarm.actor_id, alarm.kind)

    # Old records

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_INTERVAL)
            try:
                await asyncio.to_thread(with_connection, keep_house)
            except Exception:
                logger.exception("pruning failed; the next hour tries again")


_dispatcher: LocalDispatcher | None = None
_lock = threading.Lock()


def start(*, sweeping: bool = True) -> None:
    """Starts this process's dispatcher, once."""
    global _dispatcher
    with _lock:
        if _dispatcher is None:
            _dispatcher = LocalDispatcher(get_runtime(), sweeping=sweeping)
            _dispatcher.start()


def stop() -> None:
    """Stops it: nothing new is drained; what runs goes on until the runtime is shut down."""
    global _dispatcher
    with _lock:
        dispatcher, _dispatcher = _dispatcher, None
    if dispatcher is not None:
        dispatcher.stop()
