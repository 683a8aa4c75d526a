"""A topic: one actor that this process has sockets for, as far as the process knows it.

Keeps the newest events, so that a commit is read by all of its sockets without a query each, and says when
there is more. What it keeps is an unbroken piece that ends at the newest event that it was told; everything
else is read from the database, once for all sockets that ask for the same page.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from agents.sockets.backlog import Address, Head, StreamText
from agents.sockets.company import Company
from agents.sockets.events import Event

if TYPE_CHECKING:
    from agents.sockets.signals import Signal

# Events kept for sockets that are up to date.
KEPT_EVENTS, KEPT_BYTES = 64, 128 * 1024


class Listener(Protocol):
    """What a topic tells its news to: a socket's feed, a request that waits."""

    def wake(self) -> None:
        """There is more, or another actor."""

    def signal(self, signal: Signal) -> None:
        """Something that is no event and goes out at once, or not at all."""

    def check_streams(self, before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> None:
        """What the database said of the streams in progress, at its last look and now."""


class Topic:
    """Belongs to the hub's event loop."""

    def __init__(
        self,
        address: Address,
        read_page: Callable[[int, int], Awaitable[list[Event]]],
        read_stream: Callable[[int, str], Awaitable[list[StreamText]]],
    ) -> None:
        self.address = address
        #: The actor's row; None while it has none.
        self.id: int | None = None
        #: The newest cursor that is known to be committed.
        self.head = 0
        #: Sockets of this actor, and whoever else waits for its news; and those of them that have begun.
        self.followers = 0
        self.feeds: set[Listener] = set()
        #: Whether the hub's channel is in the actor's group, as far as the hub knows.
        self.joined = False
        self.doubted_at = float("-inf")  # time.monotonic()
        self.company = Company()
        #: Streams in progress as the database last said, and as it said before.
        self.streams: dict[str, tuple[int, int]] = {}
        self._tail: deque[Event] = deque()
        self._bytes = 0
        self._read_page = read_page
        self._read_stream = read_stream
        self._reading: dict[int | str, asyncio.Future[list[Event] | list[StreamText]]] = {}

    # What the process learns

    def offer(self, id: int, events: Sequence[Event], head: int) -> bool:
        """What a commit wrote (``events``, where they were sent along), and the cursor that it reached.

        False where there is a gap before them: something that was committed has not been told.
        """
        if id != self.id:
            self._become(id)
        known = self.head
        for event in events:
            if self._tail and event.cursor != self._tail[-1].cursor + 1:
                if event.cursor <= self._tail[-1].cursor:
                    continue
                self._forget()
            self._tail.append(event)
            self._bytes += event.size
        while len(self._tail) > KEPT_EVENTS or (self._bytes > KEPT_BYTES and len(self._tail) > 1):
            self._bytes -= self._tail.popleft().size
        if head > self.head:
            self.head = head
            self.wake()
        first = events[0].cursor if events else head
        return first <= known + 1

    def checked(self, head: Head, known: int) -> bool:
        """What the database says; ``known`` is the head that was known before it was asked.

        True where it knows more than the process was told.
        """
        behind = False
        if head.id != self.id:
            behind = head.cursor > 0
            self._become(head.id)
            self.head = head.cursor
            self.wake()
        elif head.cursor > self.head:
            behind = True
            self.head = head.cursor
            self.wake()
        elif head.cursor < known:  # a database that was restored
            self._forget()
            self.head = head.cursor
            self.wake()
        # A stream counts as behind when it was so at two looks: deltas may be on their way.
        for feed in self.feeds:
            feed.check_streams(self.streams, head.streams)
        self.streams = head.streams
        return behind

    def signal(self, signal: Signal) -> None:
        """Something that is no event and goes out at once, or not at all."""
        for feed in self.feeds:
            feed.signal(signal)

    def wake(self) -> None:
        for feed in self.feeds:
            feed.wake()

    def end(self) -> None:
        """Nobody follows it any more. Who still has hold of it reads from the database."""
        self._forget()

    def _become(self, id: int | None) -> None:
        """The address means another actor: it was made, or erased and made anew."""
        self.id = id
        self.head = 0
        self._forget()

    def _forget(self) -> None:
        self._tail.clear()
        self._bytes = 0

    # What sockets read

    async def after(self, cursor: int) -> list[Event]:
        """The next events behind a cursor; none when the actor is gone."""
        if self._tail and self._tail[0].cursor <= cursor + 1 <= self._tail[-1].cursor:
            return list(islice(reversed(self._tail), self._tail[-1].cursor - cursor))[::-1]
        id = self.id
        if id is None:
            return []
        events: list[Event] = await self._once(cursor, lambda: self._read_page(id, cursor))  # type: ignore[assignment]
        if events and id == self.id:
            # More may be committed than anybody has told of.
            self.head = max(self.head, events[-1].cursor)
        return events

    async def stream(self, uid: str) -> StreamText | None:
        """A stream's text so far; None when it is no longer in progress."""
        id = self.id
        if id is None:
            return None
        found = await self._once(uid, lambda: self._read_stream(id, uid))
        return found[0] if found else None  # type: ignore[return-value]

    async def _once(
        self, key: int | str, read: Callable[[], Awaitable[list[Event]] | Awaitable[list[StreamText]]]
    ) -> list[Event] | list[StreamText]:
        """One read for all who ask for the same meanwhile; one of them that leaves takes it from nobody."""
        if (reading := self._reading.get(key)) is None:
            reading = self._reading[key] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(reading)
