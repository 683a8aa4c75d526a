"""The Celery dispatcher: commits publish wake-ups, workers drain, beat asks for sweeps.

In a worker the process's own drains come first: what its turns tell runs in the same process while it has
free slots. Everything else goes through the broker, which may lose it: the sweep alone suffices.

Moments go over the broker by the database's clock, never by a machine's: a machine whose clock is wrong takes
part like any other. So wake-ups carry no expiry of Celery's, which compares the clocks of two machines.
Beat's sweeps do (there is nobody else to tell the time); a worker that believes them all expired, or gets
none because beat or the broker is away, sweeps by itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from agents import conf, runtime, store
from agents.engine import Engine
from agents.runtime import get_runtime
from agents.store.requests import Alarm
from conversations import outbox
from scheduler.dispatchers.broker import Broker
from scheduler.dispatchers.drains import Drains
from scheduler.dispatchers.publisher import Publisher, Wake
from scheduler.dispatchers.sender import Sender
from scheduler.dispatchers.sweeper import Sweeper
from scheduler.models import PulseName

logger = logging.getLogger("scheduler.dispatchers.celery")

# Actors in one message: a commit of the store's has 64 turns at most. A turn that tells thousands is spread
# over workers.
MESSAGE = 100
# How long a task of Celery's waits for a free slot of its process.
PATIENCE = 5.0  # seconds
# A worker that has been asked for no sweep for so many intervals sweeps by itself.
UNASKED = 5
# What the database's clock says is asked for again after so long.
CLOCK_AGE = 60.0  # seconds


# In every process


_broker = Broker()


def _send(wakes: list[Wake], said: float, texts: bool) -> None:
    from scheduler import tasks

    enough = time.monotonic() + conf.get("PUBLISH_TIMEOUT")
    for at in range(0, len(wakes), MESSAGE):
        if at and time.monotonic() > enough:
            raise TimeoutError(f"the broker is slow: {len(wakes) - at} of {len(wakes)} left to the sweep")
        _broker.send(tasks.drain, wakes[at : at + MESSAGE], said)
    if texts:
        _broker.send(tasks.send_texts)


_publisher = Publisher(_send)


def connect() -> None:
    """Publishes this process's alarms from now on. Starts nothing by itself."""
    if _publish not in store.on_alarms:
        store.on_alarms.append(_publish)
        outbox.on_wake.append(_texts_wait)


def disconnect() -> None:
    if _publish in store.on_alarms:
        store.on_alarms.remove(_publish)
        outbox.on_wake.remove(_texts_wait)


def _publish(alarms: Sequence[Alarm]) -> None:
    """Those that are due, and those so near that a sweep might come too late. Others wait in the database."""
    soon = 2 * conf.get("SWEEP_INTERVAL")
    near = [alarm for alarm in alarms if alarm.at is not None and alarm.seconds <= soon]
    if not near:
        return
    if (worker := _here()) is not None:
        worker.loop.call_soon_threadsafe(worker.wake_or_publish, near)
    else:
        _publisher.wake([_wake(alarm) for alarm in near], _seconds(near[0].now))


def _texts_wait() -> None:
    if (worker := _here()) is not None and worker.stopping_since is None:
        worker.sender.wake()
    else:
        _publisher.texts()


def _wake(alarm: Alarm) -> Wake:
    assert alarm.at is not None
    return alarm.actor_id, alarm.kind, _seconds(alarm.at)


def _seconds(moment: dt.datetime) -> float:
    return round(moment.timestamp(), 6)


# In a worker


class Worker:
    """What a worker's process runs on its engine's loop."""

    def __init__(self, engine: Engine) -> None:
        self.pid = os.getpid()
        self.loop = engine.loop
        self.engine = engine
        self.drains = Drains(engine, self._elsewhere)
        self.sender = Sender(engine)
        self.sweeper = Sweeper(
            engine, self.drains, patience=UNASKED * conf.get("SWEEP_INTERVAL"), swept=self.sender.wake
        )
        # What the database's clock is ahead of ours that never jumps, and when it was asked.
        self._ahead = 0.0
        self._asked_at = -CLOCK_AGE
        self.stopping_since: float | None = None

    async def start(self) -> None:
        self.sender.start()
        self.sweeper.start()

    def stop(self) -> None:
        """Begins nothing any more: what is due from now on is other workers'."""
        if self.stopping_since is None:
            self.stopping_since = time.monotonic()
            self.drains.stop()
            self.sender.stop()

    async def end(self) -> None:
        self.stop()
        await self.sweeper.stop()

    # Wake-ups

    def wake_or_publish(self, alarms: Sequence[Alarm]) -> None:
        """What this process's own commits left behind."""
        for alarm in alarms:
            if alarm.due:
                self.drains.wake(alarm.actor_id, alarm.kind)
            elif self.drains.over:
                self._elsewhere(alarm.actor_id, alarm.kind, alarm.seconds)
            else:
                self.drains.wake_in(alarm.seconds, alarm.actor_id, alarm.kind)

    def _elsewhere(self, actor_id: int, kind: str, seconds: float = 0.0) -> None:
        now = self._now()
        _publisher.wake([(actor_id, kind, now + seconds)], now)

    async def take(self, wakes: Sequence[Wake], said: float) -> None:
        # It was said before now: what was due then is due, however late the clock's answer came to us.
        now = max(await self._clock(), said)
        if now - said > 2 * conf.get("SWEEP_INTERVAL") + 1:
            return  # there have been sweeps since, and will be
        deadline = time.monotonic() + PATIENCE
        for actor_id, kind, at in wakes:
            if at > now:
                self.drains.wake_in(at - now, actor_id, kind)
                continue
            if not await self.drains.room(deadline - time.monotonic()):
                return  # the sweep gives them to whoever has room
            self.drains.wake(actor_id, kind)

    # The database's clock

    async def _clock(self) -> float:
        if time.monotonic() - self._asked_at >= CLOCK_AGE:
            now = await self.engine.in_store(self.engine.store.sql.now)
            self._asked_at = time.monotonic()
            self._ahead = now.timestamp() - self._asked_at
        return self._now()

    def _now(self) -> float:
        return self._ahead + time.monotonic()


_worker: Worker | None = None


def _here() -> Worker | None:
    """This process's worker, if it is one and goes on."""
    worker = _worker
    if worker is None or worker.pid != os.getpid() or worker.engine.closing:
        return None
    return worker


async def _start(engine: Engine) -> Worker:
    global _worker
    if _worker is None or _worker.engine is not engine:
        _worker = Worker(engine)
        await _worker.start()
    return _worker


def start() -> Worker:
    """Makes this process a worker: it drains, sends texts, and sweeps if nobody asks it to."""
    return _on_runtime(_start)


def stop() -> None:
    """Begins nothing any more. Safe in a signal's handler: waits for nothing, takes no lock."""
    if (worker := _here()) is not None:
        worker.loop.call_soon_threadsafe(worker.stop)


def end() -> None:
    """Running turns get what is left of their grace; the rest are given back, to run elsewhere at once."""
    global _worker
    worker, _worker = _here(), None
    left = conf.get("SHUTDOWN_GRACE")
    if worker is not None:
        if worker.stopping_since is not None:
            left = max(0.0, left - (time.monotonic() - worker.stopping_since))
        asyncio.run_coroutine_threadsafe(worker.end(), worker.loop).result()
    runtime.shutdown(left)
    _publisher.flush()


def take(wakes: Sequence[Wake], said: float) -> None:
    """Hands actors to this process's runtime; waits for free slots, not for the turns."""
    _on_runtime(lambda engine: _take(engine, wakes, said))


async def _take(engine: Engine, wakes: Sequence[Wake], said: float) -> None:
    await (await _start(engine)).take(wakes, said)


def sweep() -> bool:
    """Asks this process for a sweep, in beat's name; False where all its slots are taken."""
    worker = start()
    if not worker.drains.free:
        return False
    worker.loop.call_soon_threadsafe(worker.sweeper.ask, PulseName.BEAT)
    return True


def sweep_expiry() -> float:
    """Seconds after which a sweep that no worker took is worth nothing: there are newer ones."""
    return 2 * conf.get("SWEEP_INTERVAL")


def send_texts() -> None:
    """Lets this process send the texts that wait."""
    start().sender.wake()


def _on_runtime(work: Any) -> Any:
    return get_runtime().start(work, contextvars.Context()).result()
