"""Sends the texts that wait in the outbox, one call of the outbox at a time in a process."""

from __future__ import annotations

import asyncio
import logging

from agents.engine import Engine
from agents.threads import with_connection
from conversations import conf, outbox

logger = logging.getLogger("scheduler.dispatchers")


class Sender:
    """Belongs to the engine's loop; only ``wake`` may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._loop = engine.loop
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="agents-outbox")

    def stop(self) -> None:
        """Gives providers nothing more. What they have is recorded before the runtime ends, or in its thread
        before the process does: a text that nobody recorded may have been sent, and is not sent again."""
        self._stopping = True
        self._some.set()

    def wake(self) -> None:
        """There may be texts to send."""
        self._loop.call_soon_threadsafe(self._some.set)

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            try:
                # Talks to providers: not in the few threads that the agents' ORM work has. A few texts at a
                # time, so that the end need not wait for many.
                while not self._stopping and await asyncio.to_thread(self._send):
                    pass
            except Exception:
                logger.exception("sending texts failed; the next sweep tries again")
            if self._stopping:
                return

    def _send(self) -> bool:
        return with_connection(outbox.send_due, conf.get("SMS_CONCURRENCY"), lambda: not self._stopping) > 0
