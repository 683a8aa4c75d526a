"""The sweep: finds actors with a due alarm. It alone suffices, if everything that wakes workers is lost."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable

from agents import conf, kinds
from agents.engine import Engine
from agents.store.requests import Alarm
from agents.threads import with_connection
from scheduler import replays
from scheduler.dispatchers.drains import Drains
from scheduler.models import Pulse, PulseName

logger = logging.getLogger("scheduler.dispatchers")

# Actors that one sweep takes at most.
LIMIT = 1000
# A backlog is swept on as soon as there is room, but not for each single slot.
GATHERING = 0.005  # seconds


class Sweeper:
    """Sweeps when it is asked to, and by itself when nobody has asked for ``patience`` seconds.

    Belongs to the engine's loop. By itself it goes on every SWEEP_INTERVAL until somebody asks again.
    ``swept`` is called after each sweep: a moment to look for whatever else may be due.
    """

    def __init__(
        self,
        engine: Engine,
        drains: Drains,
        *,
        patience: float,
        swept: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._drains = drains
        self._patience = patience
        self._swept = swept
        self._asked = asyncio.Event()
        self._asked_by: PulseName | None = None
        self._pulses: dict[PulseName, float] = {}
        self._task: asyncio.Task[None] | None = None
        # A sweep that saw as many as it may is followed by one at the moment of the last that it saw.
        self._cut = False
        self._following: asyncio.TimerHandle | None = None
        self._replaying: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._engine.loop.create_task(self._run(), name="agents-sweeper")

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if tasks := [task for task in (self._task, self._replaying) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def ask(self, name: PulseName) -> None:
        """Asks for a sweep, in the name of whoever sends them."""
        self._asked_by = name
        self._asked.set()

    async def _run(self) -> None:
        # At once for whom nobody will ask; else those who ask may be on their way.
        pause = 0.0 if self._patience <= conf.get("SWEEP_INTERVAL") else self._patience
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._asked.wait()
                if self._asked_by is not None:  # else a sweep of its own goes on
                    pause = self._patience
            except TimeoutError:
                if pause > conf.get("SWEEP_INTERVAL"):
                    logger.warning("no sweep was asked for in %g s: sweeping unasked", pause)
                pause = conf.get("SWEEP_INTERVAL")
            self._asked.clear()
            by, self._asked_by = self._asked_by, None
            try:
                await self.sweep()
                self._swept()
                self._replay()
                await self._beat(*([PulseName.SWEEP] if by is None else [PulseName.SWEEP, by]))
            except Exception:
                logger.exception("a sweep failed; the next one follows")

    def _replay(self) -> None:
        """A look at replay jobs, beside the sweeps: what it waits for, they don't."""
        if self._replaying is None or self._replaying.done():
            self._replaying = self._engine.loop.create_task(self._advance(), name="agents-replays")

    async def _advance(self) -> None:
        try:
            await asyncio.to_thread(with_connection, replays.advance)
        except Exception:
            logger.exception("a look at replay jobs failed; another follows the next sweep")

    async def sweep(self) -> None:
        """Wakes the drains of due actors, as many as there is room for, until none is left or no slot.

        Those that are due within two intervals are woken at their exact moment. What is leased is skipped:
        whoever frees a lease wakes a worker, and a lease that runs out is no lease.
        """
        interval = conf.get("SWEEP_INTERVAL")
        if self._cut:
            self._cut = False
            await self._drains.room(interval)
        enough = time.monotonic() + interval
        while free := self._drains.free:
            # The first may be some that were woken a moment ago and have no lease yet.
            limit = min(LIMIT, free + self._drains.begun)
            alarms = await self._engine.in_store(
                self._engine.store.sweep, kinds.installed(), limit, dt.timedelta(seconds=2 * interval)
            )
            new, left = self._wake(alarms, free)
            if len(alarms) == limit and not alarms[-1].due:
                self._follow(alarms[-1].seconds)
            if not left and (len(alarms) < limit or not alarms[-1].due or not new):
                return
            # A backlog. Whoever is asked next may be another worker: this one goes on while it has room.
            if time.monotonic() >= enough:
                self._asked.set()
                return
            if not await self._drains.room(interval):
                return
            await asyncio.sleep(GATHERING)

    def _follow(self, seconds: float) -> None:
        """Sweeps again then: there may be more that are due at that moment, with nobody to wake them."""
        if self._following is not None:
            self._following.cancel()
        self._following = self._engine.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._cut = True
        self._asked.set()

    def _wake(self, alarms: list[Alarm], most: int) -> tuple[int, bool]:
        """Wakes those that are due and not known here, so many at most: how many, and if some are left."""
        new = 0
        for alarm in alarms:
            if not alarm.due:
                self._drains.wake_in(alarm.seconds, alarm.actor_id, alarm.kind)
            elif not self._drains.has(alarm.actor_id):
                if new == most:
                    return new, True
                new += 1
                self._drains.wake(alarm.actor_id, alarm.kind)
        return new, False

    async def _beat(self, *names: PulseName) -> None:
        now = time.monotonic()
        late = [name for name in names if now - self._pulses.get(name, -Pulse.INTERVAL) >= Pulse.INTERVAL]
        if late:
            await asyncio.to_thread(with_connection, Pulse.objects.beat, late)
            self._pulses.update(dict.fromkeys(late, now))
