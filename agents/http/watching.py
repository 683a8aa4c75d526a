"""Waiting for an actor's news without holding anything: no thread, no connection to the database.

Under an ASGI server the hub of the sockets tells (own commits, the channel layer, a look at the database
every two seconds). Under WSGI, whose event loops live as long as one request, somebody has to look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from agents.sockets.backlog import Address
from agents.sockets.hub import get_hub

# How often a request that waits sees whether its server stops; and how often it looks, where nobody tells it.
STOP_POLL = 0.5  # seconds
LOOK = 0.25  # seconds


class Watch:
    """Says when there may be something new. It may say so for nothing, and is never silent for long."""

    def __init__(self, request: HttpRequest, *, is_told: bool) -> None:
        self._awake = asyncio.Event()
        self._is_told = is_told
        self._server = getattr(request, "scope", {}).get("agents.work")

    @property
    def stopping(self) -> bool:
        """Whether the server ends: whoever waits is answered with what there is."""
        return self._server is not None and self._server.stopping

    async def news(self, deadline: float) -> bool:
        """Waits for news; False when the moment (of the loop's clock) has come, or the server stops.

        Read what there is after this, not before: what comes meanwhile is said the next time.
        """
        loop = asyncio.get_running_loop()
        while not self.stopping:
            left = deadline - loop.time()
            if left <= 0:
                return False
            if not self._is_told:
                await asyncio.sleep(min(LOOK, left))
                return True
            try:
                async with asyncio.timeout(min(STOP_POLL, left)):
                    await self._awake.wait()
            except TimeoutError:
                continue
            self._awake.clear()
            return True
        return False

    # What the topic tells

    def wake(self) -> None:
        self._awake.set()

    def signal(self, signal: Any) -> None:
        """Streams and statuses are not waited for."""

    def check_streams(self, before: Any, now: Any) -> None:
        """The same."""


@asynccontextmanager
async def watching(request: HttpRequest, address: Address) -> AsyncIterator[Watch]:
    """News of one actor, from here on: begin it before you look whether there is anything to wait for."""
    if not isinstance(request, ASGIRequest):
        yield Watch(request, is_told=False)
        return
    watch = Watch(request, is_told=True)
    hub = get_hub()
    topic = hub.follow(address)
    topic.feeds.add(watch)
    try:
        yield watch
    finally:
        topic.feeds.discard(watch)
        hub.unfollow(address)
