"""A real HTTP server that stands in for Telnyx's API: it records requests and answers what it was told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class TelnyxApi:
    """``requests`` are ``(path, authorization, body)``; ``answer`` is what the next ones get."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.status = 200
        self.body: Any = None  # None: a message with a new id
        self.headers: dict[str, str] = {}
        self.hangs_up = False
        self.released = threading.Event()  # answers wait for it
        self.released.set()

    def refuse(self, status: int, code: str = "", title: str = "no", **headers: str) -> None:
        self.status, self.headers = status, headers
        self.body = {"errors": [{"code": code, "title": title, "detail": "in detail"}]} if code else {}

    def sent(self) -> list[str]:
        return [body["text"] for _, _, body in self.requests]


@contextmanager
def serve() -> Iterator[TelnyxApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            api.requests.append((self.path, self.headers["Authorization"], body))
            number = len(api.requests)
            api.released.wait(30)
            if api.hangs_up:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            answer = {"data": {"record_type": "message", "id": f"message-{number}"}}
            content = api.body if api.body is not None else answer
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(api.status)
            self.send_header(
                "Content-Type", "text/html" if isinstance(content, bytes) else "application/json"
            )
            self.send_header("Content-Length", str(len(raw)))
            for name, value in api.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api = TelnyxApi(f"http://127.0.0.1:{server.server_port}/v2")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
