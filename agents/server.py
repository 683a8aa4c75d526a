"""Daphne's server for WebSockets with uvicorn's for plain HTTP before it (``front.py``), and with an end.

Daphne alone answers SIGTERM by cancelling every request and dropping every socket. Here the first SIGTERM
or Ctrl+C stops accepting, lets requests and frames that are being handled end, closes each socket with 1001
("going away", RFC 6455 section 7.4.1) as soon as its frame is done, runs the hook that ends the turns, and
stops; the second stops at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from daphne.server import Server, reactor
from daphne.ws_protocol import WebSocketProtocol

from agents.front import Front
from agents.wire import SocketProtocol
from agents.work import Work

logger = logging.getLogger(__name__)

GOING_AWAY = 1001
POLL_INTERVAL = 0.05  # seconds between two looks at what still runs, while stopping
LAST_CALL = 1.0  # seconds for cancelled applications to clean up


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet; port 0 takes any free one.

    Raises OSError when the address is taken, not ours, or not an address.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the connections of the server before it to time out.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


class GracefulServer(Server):
    """Serves ``application`` (ASGI) on a bound socket until a signal asks it to stop.

    ``started`` is called when connections are accepted. ``stopping`` is called in a thread when the first
    signal has come, ``stopped`` in a thread when the requests have ended, with the seconds that are left of
    the grace; each may take its time and is waited for. ``grace`` is how many seconds requests and frames may
    go on.
    """

    def __init__(
        self,
        application: Any,
        bound: socket.socket,
        *,
        grace: float,
        started: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
        stopped: Callable[[float], None] = lambda left: None,
        action_logger: Callable[[str, str, dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(
            application=self._watched,
            endpoints=["given as a socket"],  # Daphne wants one; emptied below
            signal_handlers=False,
            ready_callable=self._ready,
            action_logger=action_logger,
            websocket_timeout=-1,  # no cap on the life of a socket
            websocket_handshake_timeout=20,  # seconds; a burst of clients after a restart takes its time
            # Autobahn's limits count in both directions: SocketProtocol has its own.
            websocket_max_message_size=0,
            websocket_max_frame_size=0,
            server_name="",
            # Twisted's log goes to Python's, which the command sets to warnings; at 1 it would go nowhere,
            # and with it the tracebacks of callbacks that failed.
            verbosity=2,
        )
        self.endpoints: list[str] = []
        self.grace = grace
        self.cut_short = 0  # requests and sockets that did not end in time
        self._app = application
        self._socket = bound
        self._started, self._stopping, self._stopped = started, stopping, stopped
        self._stop: asyncio.Task[None] | None = None
        self._busy: set[Any] = set()  # sockets whose application handles a frame
        self._work: dict[Any, Work] = {}  # what the applications of sockets say themselves
        self._plain_work = Work()  # of all plain requests: they only want to know that we stop
        self._front: Front
        self._serving: asyncio.Task[None]

    # Serving

    def run(self) -> None:
        self._streams = sys.stdout, sys.stderr
        super().run()

    def _ready(self) -> None:
        # Twisted takes them over with its log; what agents and providers print is not a message of its.
        sys.stdout, sys.stderr = self._streams
        loop = asyncio.get_event_loop_policy().get_event_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._on_signal, name)
        self.ws_factory.protocol = SocketProtocol
        self.ws_factory.setProtocolOptions(failByDrop=False)  # what fails gets a code
        self._front = Front(
            self._plain, self.http_factory, started=self._started, access_log=self.action_logger is not None
        )
        self._serving = loop.create_task(self._serve(), name="agents-serve")

    async def _serve(self) -> None:
        try:
            await self._front.serve(sockets=[self._socket])
        finally:
            reactor.stop()

    async def _plain(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self._app({**scope, "agents.work": self._plain_work}, receive, send)

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        return super().create_application(protocol, {**scope, "protocol": protocol})

    async def _watched(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Runs the application and knows when it is at rest: when it waits for its next event."""
        protocol = scope.pop("protocol")

        async def next_event() -> Any:
            self._busy.discard(protocol)
            try:
                return await receive()
            finally:
                self._busy.add(protocol)

        self._busy.add(protocol)
        work = scope["agents.work"] = self._work[protocol] = Work()
        work.stopping = self._stop is not None
        try:
            await self._app(scope, next_event, send)
        finally:
            self._busy.discard(protocol)
            del self._work[protocol]

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close" and _is_open(protocol):
            # Daphne's way drops the reason, and fails on codes from 1001 to 2999.
            _close(protocol, message.get("code") or 1000, message.get("reason") or "")
            return
        if message["type"] == "websocket.send":
            await _send(protocol, message)
            return
        await super().handle_reply(protocol, message)

    # Stopping

    def _on_signal(self, name: signal.Signals) -> None:
        if self._stop is None:
            logger.info("%s: stopping; again stops at once", name.name)
            self._stop = asyncio.get_running_loop().create_task(self._end(), name="agents-serve-stop")
        else:
            logger.warning("%s again: stopped at once", name.name)
            logging.shutdown()
            os._exit(128 + name)  # what hangs in a thread would keep a polite exit waiting

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.grace
        try:
            await self._front.close()
            await self._hook(self._stopping)
            for work in (self._plain_work, *self._work.values()):
                work.stopping = True
            while self._running() and loop.time() < deadline:
                self._close_idle()
                await asyncio.sleep(POLL_INTERVAL)
            await self._cancel_rest()
            await self._hook(self._stopped, max(deadline - loop.time(), 0.0))
        except Exception:
            logger.exception("stopping the hard way")
        finally:
            self._front.end()

    async def _hook(self, fn: Callable[..., None], *args: Any) -> None:
        try:
            await asyncio.to_thread(fn, *args)
        except Exception:
            logger.exception("stopping goes on without %r", fn)

    def _running(self) -> list[Any]:
        """Requests that are not over, sockets that are open, and applications that clean up."""
        sockets = [
            protocol
            for protocol, details in self.connections.items()
            if "disconnected" not in details or not _ended(details)
        ]
        return [*self._front.running(), *sockets]

    def _close_idle(self) -> None:
        self._front.close_idle()
        for protocol in list(self.connections):
            work = self._work.get(protocol)
            if _is_open(protocol) and protocol not in self._busy and not (work and work.busy):
                _close(protocol, GOING_AWAY)

    async def _cancel_rest(self) -> None:
        self.cut_short = len(self._running())
        if self.cut_short:
            logger.warning(
                "%d requests or sockets did not end within %g s: cancelled", self.cut_short, self.grace
            )
        tasks: list[asyncio.Task[None]] = self._front.cut()
        for protocol, details in list(self.connections.items()):
            if _is_open(protocol):
                _close(protocol, GOING_AWAY)
            task = details.get("application_instance")
            if task is not None and not task.done():
                task.cancel()
                tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_CALL)

    def kill_all_applications(self) -> None:
        """Daphne's own way to stop, called by Twisted at the end: nothing is left to do."""


def _ended(details: dict[str, Any]) -> bool:
    task = details.get("application_instance")
    return task is None or task.done()


def _is_open(protocol: Any) -> bool:
    return isinstance(protocol, WebSocketProtocol) and protocol.state == protocol.STATE_OPEN


async def _send(protocol: SocketProtocol, message: dict[str, Any]) -> None:
    """Sends, also what is empty, which Daphne drops; and waits for a client that doesn't read."""
    if not _is_open(protocol):
        return
    text, data = message.get("text"), message.get("bytes")
    if text is None:
        protocol.serverSend(data, True)
    else:
        protocol.serverSend(text, False)
    await protocol.room()


def _close(protocol: WebSocketProtocol, code: int, reason: str = "") -> None:
    """Sends the close frame; the connection ends when the client answers it, or a second later.

    Autobahn's ``sendClose`` refuses the codes that RFC 6455 keeps for servers. A reason has room for 123
    bytes and is cut between characters.
    """
    short = reason.encode()[:123].decode(errors="ignore").encode()
    protocol.sendCloseFrame(code=code, reasonUtf8=short)
