"""Plain HTTP, by uvicorn, on the port on which Daphne's WebSockets come in, too.

A request costs uvicorn's parser, which is llhttp, a fraction of what it costs Twisted. A client that asks for
a WebSocket is handed to Daphne with its connection and with the request in which it asked.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from daphne.http_protocol import HTTPFactory
from daphne.server import reactor  # installed by Daphne, on asyncio
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BACKLOG = 512  # connections that wait to be accepted; a burst of webhooks arrives at once
# Proxies keep idle connections for a minute, and may send a request on one while we close it.
KEEP_ALIVE = 75  # seconds
#: How long a request's head may take, and how long a client may leave off in the middle of a body.
PATIENCE = 60.0  # seconds
LOOK_TICKS = 10  # of uvicorn's main loop, each 0.1 s: how often slow clients are looked for
#: The request line and the headers: llhttp itself knows no end of them.
MAX_HEAD_BYTES = 64 * 1024


class Front(uvicorn.Server):
    """Serves ``application`` (ASGI, of type "http"); WebSockets go to ``upgrades``.

    ``serve(sockets=[bound])`` calls ``started`` when connections are accepted, and returns when ``end()`` has
    been called. Signals are whoever starts it to handle.
    """

    def __init__(
        self,
        application: Any,
        upgrades: HTTPFactory,
        *,
        started: Callable[[], None] = lambda: None,
        access_log: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        # uvicorn makes one with its own arguments, a connection.
        def upgraded(**_: Any) -> asyncio.Protocol:
            return Upgraded(upgrades)

        super().__init__(
            uvicorn.Config(
                self._run,
                http=BoundedProtocol,
                ws=upgraded,  # type: ignore[arg-type]
                interface="asgi3",
                lifespan="off",
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                log_config=None,
                access_log=access_log,
                proxy_headers=False,  # whom to believe is for the site's settings to say (NUM_PROXIES)
                server_header=False,
            )
        )
        self._application, self._started, self._patience = application, started, patience
        self._cut = False

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._application(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cut:
                raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_TICKS == 0:
            before = asyncio.get_running_loop().time() - self._patience
            for connection in self._connections():
                if connection.waits_since() < before:
                    connection.transport.abort()
        return await super().on_tick(counter)

    # Stopping

    async def close(self) -> None:
        """Accepts nobody more.

        Whoever was accepted a moment ago is made a connection first: of a server that is closed asyncio
        cannot make one, and loses the socket.
        """
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        for server in self.servers:
            server.close()

    def close_idle(self) -> None:
        """Closes connections without a request; the others as soon as theirs is answered."""
        for connection in self._connections():
            connection.shutdown()

    def running(self) -> list[Any]:
        """Requests without a whole answer, applications that clean up, and answers on their way."""
        unsent = [c for c in self._connections() if c.transport.get_write_buffer_size()]
        return [*self.server_state.tasks, *unsent]

    def cut(self) -> list[asyncio.Task[None]]:
        """Hangs up on everybody and cancels what runs, which it returns."""
        self._cut = True
        for connection in self._connections():
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def end(self) -> None:
        self.should_exit = self.force_exit = True

    def _connections(self) -> list[Any]:
        return list(self.server_state.connections)


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with bounds on a request's head and on how slow its client may be."""

    _head = 0  # bytes that came before it had ended
    _in_head = True
    _began = _heard = 0.0  # when a head began, or the connection; when something came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._began = self._heard = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0
        self._in_head = True
        self._began = self.loop.time()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def waits_since(self) -> float:
        """Since when this waits for its client in the middle of a request, by the loop's clock; else inf."""
        if self._in_head:
            return self._began
        if self.cycle.more_body and not self.flow.read_paused:
            return self._heard
        return math.inf

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head += len(data)
        if self._head > MAX_HEAD_BYTES:
            self.send_400_response(f"A request's head may have {MAX_HEAD_BYTES} bytes.")


class Upgraded(asyncio.Protocol):
    """A connection whose client asked for a WebSocket: from the request on it is Daphne's."""

    def __init__(self, factory: HTTPFactory) -> None:
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """``data`` is the request, as the client sent it. Daphne gets a descriptor of its own."""
        self._transport.pause_reading()
        connection: socket.socket = self._transport.get_extra_info("socket")
        adopted: Any = reactor.adoptStreamConnection(connection.fileno(), connection.family, self._factory)
        self._transport.abort()
        adopted.protocol.dataReceived(data)
