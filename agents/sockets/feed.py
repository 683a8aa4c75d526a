"""A feed: what one socket is shown of its actor, in order, each event once.

One task a socket sends everything the agent has to show: events in the order of their cursor, and signals in
between. It runs ahead of what the client has seen by a window and no further; what is behind the window lies
in the database and not in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agents import conf
from agents.exceptions import TooManyFramesError
from agents.sockets import frames, signals
from agents.sockets.backlog import Address, Start, StreamText, Wanted
from agents.sockets.complaints import Complaints
from agents.sockets.events import Event
from agents.sockets.frames import Attach
from agents.sockets.signals import Broadcast, Delta, Signal
from agents.sockets.topic import Topic

complain = Complaints(traces=True)

# Signals that wait while a client does not read; the oldest are dropped.
KEPT_SIGNALS, KEPT_CHARACTERS = 256, 1024 * 1024
# How long a read of the database that failed is left alone.
RETRY = 1.0  # seconds

Send = Callable[[str | bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose eyes a feed is for."""

    connection: str  # the connection's id
    is_operator: bool
    shares_state: bool
    # The class takes raw frames: broadcasts and what is sent to this connection, without an envelope.
    raw: bool


class Closed(Exception):  # noqa: N818 - how a feed ends, not an error
    """The agent closed the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Feed:
    """Sends on the hub's event loop. ``run`` ends with Closed or TooManyFramesError."""

    def __init__(
        self,
        topic: Topic,
        viewer: Viewer,
        send: Send,
        start: Callable[[Address, Wanted], Awaitable[Start]],
    ) -> None:
        self._topic = topic
        self._viewer = viewer
        self._send = send
        self._start = start
        self._awake = asyncio.Event()
        self._streams: frozenset[str] = frozenset()
        self._attach: Attach | None = None
        self._attached = False
        #: Set once the client has been told where it begins: from there on it misses nothing.
        self.begun = asyncio.Event()
        self._actor_id: int | None = None
        self._sent = 0  # the last event that was sent, or passed over
        # Sent, and not seen yet: (cursor, bytes).
        self._unseen: deque[tuple[int, int]] = deque()
        self._unseen_bytes = 0
        self._full_since: float | None = None
        self._signals: deque[Signal] = deque()
        self._characters = 0
        # Streams as this client has them: uid -> (take, index of the last piece).
        self._known: dict[str, tuple[int, int]] = {}
        self._behind: set[str] = set()

    # What others tell it

    def attach(self, frame: Attach) -> None:
        """Begins, or begins again, at a cursor."""
        self._attach = frame
        self.wake()

    def seen(self, cursor: int) -> None:
        """The client has everything up to this cursor."""
        moved = False
        while self._unseen and self._unseen[0][0] <= cursor:
            self._unseen_bytes -= self._unseen.popleft()[1]
            moved = True
        if moved:
            self._full_since = None
            self.wake()

    def wake(self) -> None:
        self._awake.set()

    def signal(self, signal: Signal) -> None:
        """Something that may be lost; it is, for clients that do not read."""
        if not self._attached or not self._wants(signal):
            return
        self._signals.append(signal)
        self._characters += signals.size(signal)
        while len(self._signals) > KEPT_SIGNALS or self._characters > KEPT_CHARACTERS:
            self._characters -= signals.size(self._signals.popleft())
        self.wake()

    def check_streams(self, before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> None:
        """What the database said of the streams in progress, at its last look and now.

        A piece that was there the last time and has not arrived is lost. So is the end of a stream that has
        been gone for as long.
        """
        if not self._attached or not self._shows("deltas"):
            return
        lost = {uid for uid, at in before.items() if uid in now and at > self._known.get(uid, (0, 0))}
        over = {uid for uid in self._known if uid not in before and uid not in now}
        if lost or over:
            self._behind |= lost | over
            self.wake()

    def _wants(self, signal: Signal) -> bool:
        if isinstance(signal, Broadcast):
            return self._shows("events") and signal.to in ("", self._viewer.connection)
        return not self._viewer.raw and self._shows("deltas")

    def _shows(self, stream: str) -> bool:
        return stream in self._streams

    # The task

    async def run(self) -> None:
        while True:
            self._awake.clear()
            try:
                await self._advance()
            except Closed:
                raise
            except Exception as error:
                complain("a socket could not be shown its events and tries again", error)
                await asyncio.sleep(RETRY)
            else:
                await self._rest()

    async def _advance(self) -> None:
        """Sends what can be sent now."""
        if self._attach is None and self._attached and self._moved():
            # Another actor under the same name, or a log that got shorter: the client begins anew.
            self._attach = Attach(streams=self._streams)
        if self._attach is not None:
            await self._begin()
        if not self._attached:
            return
        await self._send_signals()
        while self._sent < self._topic.head and self._attach is None and not self._moved():
            events = await self._topic.after(self._sent)
            if not events or events[0].cursor != self._sent + 1:
                # Older than the kept ones by now, or gone with its actor.
                if self._sent < self._topic.head:
                    self._attach = Attach(streams=self._streams)
                    self.wake()
                return
            for event in events:
                if self._attach is not None:
                    return
                if self._counts(event) and not self._fits(event):
                    self._full_since = self._full_since or asyncio.get_running_loop().time()
                    return
                await self._deliver(event)
                await self._send_signals()

    async def _rest(self) -> None:
        """Waits until there is more to do. A client that has seen nothing for too long is given up."""
        if self._full_since is None:
            await self._awake.wait()
            return
        patience = conf.get("SOCKET_SEEN_TIMEOUT")
        left = self._full_since + patience - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await self._awake.wait()
        except TimeoutError:
            raise TooManyFramesError(f"nothing was seen for {patience:g} s") from None

    def _moved(self) -> bool:
        if self._actor_id != self._topic.id:
            if self._actor_id is None:  # it exists now
                self._actor_id = self._topic.id
                return False
            return True
        return self._sent > self._topic.head

    # Beginning

    async def _begin(self) -> None:
        frame, self._attach = self._attach, None
        assert frame is not None
        raw, viewer = self._viewer.raw, self._viewer
        self._streams = frozenset({"events"}) if raw else frame.streams
        # From here on signals wait, so that none falls between what is read now and what comes.
        self._attached = True
        self._signals.clear()
        self._characters = 0
        self._known.clear()
        self._behind.clear()
        wanted = Wanted(
            frame.cursor,
            messages=self._shows("messages"),
            state=viewer.shares_state and self._shows("state"),
            deltas=self._shows("deltas"),
            private=viewer.is_operator,
        )
        try:
            start = await self._start(self._topic.address, wanted)
        except BaseException:
            self._attach = self._attach or frame
            raise
        if start.head.id is not None:
            self._topic.offer(start.head.id, (), start.head.cursor)
        self._actor_id = start.head.id
        self._sent = start.cursor
        self._unseen.clear()
        self._unseen_bytes = 0
        self._full_since = None
        if raw:
            self.begun.set()
            return
        await self._send(frames.build("attached", cursor=start.cursor, snapshot=start.snapshot))
        for stream in start.streams:
            await self._send_whole(stream)
        self.begun.set()

    # Events

    def _counts(self, event: Event) -> bool:
        """Whether the client gets this event at all."""
        if event.type in ("gone", "close"):
            return False
        if event.type == "direct" and event.addressed()["to"] != self._viewer.connection:
            return False
        if event.private and not self._viewer.is_operator:
            return False
        if self._viewer.raw and event.type not in ("broadcast", "direct"):
            return False
        return self._shows(event.subscription)

    def _fits(self, event: Event) -> bool:
        if self._viewer.raw or not self._unseen:
            return True  # clients of raw frames acknowledge nothing: what they read bounds them
        if len(self._unseen) >= conf.get("MAX_UNSEEN_EVENTS"):
            return False
        return self._unseen_bytes + event.size <= int(conf.get("MAX_UNSEEN_BYTES"))

    async def _deliver(self, event: Event) -> None:
        if event.type == "close":
            body = event.addressed()
            if body["to"] == self._viewer.connection:
                raise Closed(body["code"], body["reason"])
        if self._counts(event):
            if self._viewer.raw:
                await self._send(event.data())
            else:
                self._unseen.append((event.cursor, event.size))
                self._unseen_bytes += event.size
                await self._send(event.frame())
        if event.ends:
            self._known.pop(event.ends, None)
        self._sent = event.cursor

    # Signals

    async def _send_signals(self) -> None:
        while self._signals:
            signal = self._signals.popleft()
            self._characters -= signals.size(signal)
            if isinstance(signal, Delta):
                await self._send_delta(signal)
            elif isinstance(signal, Broadcast) and self._viewer.raw:
                await self._send(signal.raw())
            else:
                await self._send(signal.frame())
        while self._behind:
            await self._catch_up(self._behind.pop())

    async def _send_delta(self, delta: Delta) -> None:
        take, index = self._known.get(delta.uid, (0, -1))
        if delta.reset and delta.done and delta.take >= take:  # thrown away
            self._known.pop(delta.uid, None)
            await self._send(delta.frame())
        elif (delta.take, delta.index) <= (take, index):
            return  # it was in the text that the client was given whole
        elif delta.index == 0 or (delta.take == take and delta.index == index + 1):
            self._known[delta.uid] = (delta.take, delta.index)
            await self._send(delta.frame())
        else:
            await self._catch_up(delta.uid)

    async def _catch_up(self, uid: str) -> None:
        """Gives the client a stream's whole text: pieces of it were lost, or came before the client did."""
        stream = await self._topic.stream(uid)
        if stream is not None:
            await self._send_whole(stream)
        elif self._known.pop(uid, None) is not None:
            # Over, and it left no message that this client has not been shown or is about to be.
            await self._send(Delta(uid, 0, 0, "", reset=True, done=True).frame())

    async def _send_whole(self, stream: StreamText) -> None:
        self._known[stream.uid] = (stream.take, stream.index)
        await self._send(Delta(stream.uid, stream.take, stream.index, stream.text, reset=True).frame())

    # For the hub

    @property
    def facts(self) -> dict[str, Any]:
        """Where it stands, for a look from outside."""
        return {"sent": self._sent, "head": self._topic.head, "unseen": len(self._unseen)}
