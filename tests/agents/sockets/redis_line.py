"""A line to Redis that a test can cut, or let hang, as when Redis restarts or its host is gone."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlparse


class RedisLine:
    """A TCP proxy. ``down()`` cuts everything and refuses; ``hang()`` answers nothing any more."""

    def __init__(self, url: str) -> None:
        where = urlparse(url)
        self._server = (where.hostname or "127.0.0.1", where.port or 6379)
        self._database = where.path
        self._listener: socket.socket | None = None
        self._hanging = threading.Event()
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}{self._database}"

    def up(self) -> None:
        self._hanging.clear()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
            self.port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def hang(self) -> None:
        self._hanging.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    if self._listener is not listener:  # cut meanwhile
                        client.close()
                        server.close()
                        return
                    self._ends |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._hanging.is_set():
                    target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
