"""A server of the socket protocol that a test plays by hand, on loopback, for clients of any language."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

TIMEOUT = 30.0  # seconds


class Link:
    """One connection of a client, from the server's end."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        assert socket.request
        self.path = socket.request.path
        self.headers = socket.request.headers
        self.heard: list[dict[str, Any]] = []
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def read(self) -> None:
        try:
            async for data in self.socket:
                frame = json.loads(data)
                self.heard.append(frame)
                self._frames.put_nowait(frame)
        except ConnectionClosed:
            pass

    async def next(self, kind: str) -> dict[str, Any]:
        """The next frame of this kind; those before it are passed over."""
        async with asyncio.timeout(TIMEOUT):
            while (frame := await self._frames.get())["kind"] != kind:
                pass
        return frame

    async def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await self.socket.send(json.dumps({"v": 1, **frame}))

    async def accept(self, cursor: int = 0, **snapshot: Any) -> dict[str, Any]:
        """Answers the client's attach, and returns it."""
        attach = await self.next("attach")
        await self.send({"kind": "hello", "actor": {}, "connection": "c", "cursor": cursor, "protocol": 1})
        await self.send({"kind": "attached", "cursor": cursor} | ({"snapshot": snapshot} if snapshot else {}))
        return attach

    async def close(self, code: int, reason: str = "") -> None:
        await self.socket.close(code, reason)

    def cut(self) -> None:
        """The network is gone: no close frame."""
        self.socket.transport.abort()


class Scripted:
    """The server: ``await server.link()`` is the next client that connects."""

    def __init__(self) -> None:
        self.url = ""
        self.count = 0
        self._links: asyncio.Queue[Link] = asyncio.Queue()
        self._open: list[Link] = []

    async def link(self) -> Link:
        async with asyncio.timeout(TIMEOUT):
            return await self._links.get()

    def cut(self) -> None:
        """Cuts every link."""
        for link in self._open:
            link.cut()
        self._open.clear()

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link(socket)
        self.count += 1
        self._links.put_nowait(link)
        self._open.append(link)
        await link.read()


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    server = Scripted()
    async with serve(server._serve, "127.0.0.1", 0, max_size=None, close_timeout=1) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        yield server


def message(cursor: int, seq: int | None = None, **more: Any) -> dict[str, Any]:
    """A ``message`` frame."""
    seq = cursor if seq is None else seq
    content = {"seq": seq, "role": "assistant", "content": f"m{seq}", "at": "2026-01-01T00:00:00Z"}
    return {"kind": "message", "cursor": cursor, "message": content | more}
