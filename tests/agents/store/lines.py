"""Lines to the database that break where a test says: the faults that a store must survive.

On PostgreSQL a ``Line`` is a TCP proxy that counts the statements which pass and cuts one of them: before the
server got it, after it but before the answer, or so that the server gets it when the client has long given
up. On SQLite, which has no line, a ``Breaker`` closes the file under the store or raises what SQLite says
when the disk fails.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from agents import faults
from tests.agents.store.stage import on_postgres

BEFORE, AFTER, LATE = "before it is done", "after it, before its answer", "and done when all has gone on"

# How long a statement that is LATE stays on the line.
DELAY = 0.1  # seconds


class Line:
    """A proxy in front of PostgreSQL. ``cut`` says which of the next statements breaks the connection."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passed = 0
        self._cut_at = 0
        self._how = BEFORE
        self.was_cut = False
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, at: int, how: str) -> None:
        """The ``at``-th statement from now on (1: the next) is cut; 0: none."""
        self.passed, self._cut_at, self._how, self.was_cut = 0, at, how, False

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closing:
                client.close()
                return
            self._start(self._serve, client, socket.create_connection(self._server))

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending, started = b"", False
        with client, server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select(0.2):
                    try:
                        data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    except OSError:
                        data = b""
                    if not data:
                        return
                    if key.fileobj is server:
                        with contextlib.suppress(OSError):
                            client.sendall(data)
                        continue
                    pending += data
                    while (message := next_message(pending, started)) is not None:
                        pending = pending[len(message) :]
                        if not started:
                            started = True
                        elif message[:1] in b"QE" and self._counts():
                            self._break(client, server, message)
                            return
                        server.sendall(message)

    def _counts(self) -> bool:
        self.passed += 1
        if self.passed != self._cut_at:
            return False
        self._cut_at, self.was_cut = 0, True
        return True

    def _break(self, client: socket.socket, server: socket.socket, message: bytes) -> None:
        # A reset, as from a host that is gone.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._how == BEFORE:
            client.close()
            return
        if self._how == LATE:
            client.close()
            time.sleep(DELAY)
        # An implicit transaction ends with its Sync.
        server.sendall(message + (b"S\x00\x00\x00\x04" if message[:1] == b"E" else b""))
        if self._how == AFTER:
            server.recv(1)  # it was done
        client.close()
        server.shutdown(socket.SHUT_WR)
        server.settimeout(30)
        with contextlib.suppress(OSError):
            while server.recv(65536):
                pass


def next_message(data: bytes, started: bool) -> bytes | None:
    """The first whole message of the frontend's protocol; the very first one has no type."""
    at = 1 if started else 0
    if len(data) < at + 4:
        return None
    length = at + struct.unpack("!I", data[at : at + 4])[0]
    return data[:length] if len(data) >= length else None


class Breaker:
    """The same for SQLite: the statements, and each COMMIT before and after."""

    def __init__(self) -> None:
        self.passed = 0
        self.was_cut = False
        self._cut_at = 0
        self._how = BEFORE
        # Where the store passes: before a statement, and when it is done.
        self.points = {
            "statement": BEFORE, "answer": AFTER,
            "transaction.commit": BEFORE, "transaction.committed": AFTER,
        }  # fmt: skip

    def cut(self, at: int, how: str) -> None:
        self.passed, self._cut_at, self._how, self.was_cut = 0, at, how, False

    def passing(self, point: str) -> Callable[[], None]:
        how = self.points[point]

        def handler() -> None:
            if how == BEFORE:
                self.passed += 1
            if self.passed == self._cut_at and how == self._how:
                self._cut_at, self.was_cut = 0, True
                if how == BEFORE:
                    connections[DEFAULT_DB_ALIAS].connection.close()
                else:
                    raise sqlite3.OperationalError("disk I/O error")

        return handler


@contextmanager
def breakable_line() -> Iterator[Line | Breaker]:
    """While the block runs, this process's connections go over a line that can be cut."""
    if not on_postgres():
        breaker = Breaker()
        with contextlib.ExitStack() as stack:
            for point in breaker.points:
                stack.enter_context(faults.at(point, breaker.passing(point)))
            yield breaker
        return
    settings = connections[DEFAULT_DB_ALIAS].settings_dict
    line = Line(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432))
    try:
        with routed_over(line.port):
            yield line
    finally:
        line.close()


@contextmanager
def routed_over(port: int) -> Iterator[None]:
    """While the block runs, this process's connections go to a port of this machine, unencrypted."""
    settings = connections[DEFAULT_DB_ALIAS].settings_dict
    before = {name: settings[name] for name in ("HOST", "PORT", "OPTIONS")}
    reconnect()
    settings |= {"HOST": "127.0.0.1", "PORT": str(port)}
    settings["OPTIONS"] = {**before["OPTIONS"], "sslmode": "disable", "gssencmode": "disable"}
    try:
        yield
    finally:
        reconnect()
        settings |= before


def reconnect() -> None:
    connection = connections[DEFAULT_DB_ALIAS]
    connection.close()
    if getattr(connection, "pool", None):
        connection.close_pool()  # type: ignore[attr-defined]
