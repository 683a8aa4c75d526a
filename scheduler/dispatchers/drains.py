"""The drains of one process: at most so many at once, one an actor, and none forgotten."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable

from agents import conf, kinds
from agents.engine import Engine
from agents.env import env
from agents.exceptions import UnknownKindError
from scheduler.drain import drain

logger = logging.getLogger("scheduler.dispatchers")

#: Told an actor and its kind: what is due there should run in another process.
Elsewhere = Callable[[int, str], None]


class Drains:
    """Runs drains on the engine's loop. All methods belong to that loop.

    ``elsewhere`` gets the actors whose moment comes while every slot is taken, or after the end. Without it
    they wait here for a slot, and after the end for whoever sweeps.
    """

    def __init__(self, engine: Engine, elsewhere: Elsewhere | None = None) -> None:
        self.engine = engine
        self._elsewhere = elsewhere
        self._slots = asyncio.Semaphore(conf.get("TURNS"))
        # Actors whose drain waits for a slot or runs; True: woken again meanwhile.
        self._woken: dict[int, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._room = asyncio.Event()
        # Importing a provider's SDK takes up to two seconds: not on the loop, in the first turn with it.
        threading.Thread(target=env.warm, name="agents-warm", daemon=True).start()
        self._stopped = False

    def stop(self) -> None:
        """No drain begins any more, and none that runs begins another task."""
        self._stopped = True
        self._room.set()  # nobody need wait for it
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    @property
    def over(self) -> bool:
        return self._stopped or self.engine.closing

    @property
    def free(self) -> int:
        """How many more drains could begin now."""
        return 0 if self.over else max(0, conf.get("TURNS") - len(self._woken))

    @property
    def begun(self) -> int:
        """How many run, or are about to."""
        return len(self._woken)

    async def room(self, seconds: float) -> bool:
        """Waits until a drain could begin, so long at most; False where none can."""
        if not self.free and not self.over:
            self._room.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._room.wait()
            except TimeoutError:
                pass
        return self.free > 0

    def has(self, actor_id: int) -> bool:
        """Whether a drain of this actor runs here, or is about to."""
        return actor_id in self._woken

    def wake(self, actor_id: int, kind: str) -> None:
        """Drains an actor now, or once more if its drain may already have looked."""
        if actor_id in self._woken:
            self._woken[actor_id] = True
            return
        if not self.free and (self.over or self._elsewhere is not None):
            if self._elsewhere is not None:
                self._elsewhere(actor_id, kind)
            return
        try:
            kinds.get(kind)
        except UnknownKindError:
            return  # a kind that isn't installed here is not claimed here
        self._woken[actor_id] = False
        # A context of its own: the commit that woke us is no caller of what runs here.
        task = self.engine.loop.create_task(
            self._drain(actor_id, kind), context=contextvars.Context(), name=f"drain-{actor_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wake_in(self, seconds: float, actor_id: int, kind: str) -> None:
        """Drains an actor at an exact moment that is near.

        Of several moments the first counts: if it was taken back meanwhile, the sweep hands over the next.
        """
        if self.over:
            return
        at = self.engine.loop.time() + seconds
        if (timer := self._timers.get(actor_id)) is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[actor_id] = self.engine.loop.call_at(at, self._ring, actor_id, kind)

    def _goes_on(self) -> bool:
        return not self._stopped

    def _has_room(self) -> bool:
        return not self._slots.locked()

    def _ring(self, actor_id: int, kind: str) -> None:
        self._timers.pop(actor_id, None)
        self.wake(actor_id, kind)

    async def _drain(self, actor_id: int, kind: str) -> None:
        more = False
        try:
            async with self._slots:
                self._woken[actor_id] = False
                more = (await drain(self.engine, actor_id, kind, self._goes_on, self._has_room)).more
        except Exception:
            logger.exception("the drain of actor %d failed; the sweep finds it again", actor_id)
        finally:
            again = self._woken.pop(actor_id) or more
            self._room.set()
        if again:
            self.wake(actor_id, kind)
