"""Daphne's side of a WebSocket, with a bound on what comes in and a measure of what cannot go out.

Autobahn, below Daphne, knows one limit for both directions, and drops the connection past it without a word.
Here a message that is too large is refused while it comes in, with a close code that the client can read; and
whoever sends can wait until the client has read, so that slow clients cost no memory.
"""

from __future__ import annotations

import asyncio

from daphne.ws_protocol import WebSocketProtocol

from agents import conf

TOO_BIG = 1009
TOO_BIG_PATIENCE = 10  # seconds


class SocketProtocol(WebSocketProtocol):
    """One connection. It is a push producer to its own transport: that says when its buffer is full."""

    _room: asyncio.Event | None = None

    async def room(self) -> None:
        """Returns when what was sent has left for the most part, or the connection is gone."""
        if self._room is not None:
            await self._room.wait()

    def onOpen(self) -> None:  # noqa: N802 - names of Autobahn and Twisted
        super().onOpen()
        self._room = asyncio.Event()
        self._room.set()
        # HTTP's channel was it so far, and would stop reading from a client that reads slowly.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:  # noqa: N802, N803
        self.resumeProducing()
        # Daphne makes itself known to it in onConnect: a handshake that Autobahn refused has not come so far.
        if hasattr(self, "server"):
            super().onClose(wasClean, code, reason)

    def onMessageFrameBegin(self, length: int) -> None:  # noqa: N802
        super().onMessageFrameBegin(length)
        maximum = conf.get("MAX_FRAME_BYTES")
        # A message may come in pieces; what follows once it has failed is not kept.
        if not self.failedByMe and self.message_data_total_length > maximum:
            # The client is still sending; if the connection were gone before it has done so, it would not
            # get to read why.
            self.closeHandshakeTimeout = TOO_BIG_PATIENCE
            self._fail_connection(TOO_BIG, f"a frame may have {maximum} bytes")

    # Twisted's IPushProducer

    def pauseProducing(self) -> None:  # noqa: N802
        if self._room is not None:
            self._room.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        if self._room is not None:
            self._room.set()

    def stopProducing(self) -> None:  # noqa: N802
        self.resumeProducing()
