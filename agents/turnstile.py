"""Who is next: callers in one process queue for an actor, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable


class Turnstile:
    """One queue for each actor that somebody in this process holds or wants. Belongs to one event loop."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def enter(self, actor: Hashable) -> asyncio.Future[None] | None:
        """None: go ahead, the actor is yours in this process. Else a future for your turn in the queue."""
        queue = self._queues.get(actor)
        if queue is None:
            self._queues[actor] = deque()
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        return future

    def give_up(self, actor: Hashable, future: asyncio.Future[None]) -> None:
        """Leaves the queue; if the turn had just come, it goes to the next."""
        if future.done() and not future.cancelled():
            self.leave(actor)
        else:
            future.cancel()

    def leave(self, actor: Hashable) -> None:
        queue = self._queues[actor]
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(None)
                return
        del self._queues[actor]

    @property
    def held(self) -> int:
        """How many actors this process holds, or is taking."""
        return len(self._queues)

    @property
    def busy(self) -> bool:
        """Whether this process holds or wants any actor."""
        return bool(self._queues)

    def awaited(self, actor: Hashable) -> bool:
        """Whether somebody in this process queues for the actor."""
        queue = self._queues.get(actor)
        return queue is not None and any(not f.done() for f in queue)
