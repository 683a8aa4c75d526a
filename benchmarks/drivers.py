"""The clients of the benchmarks: they send what was prepared, and cost next to nothing themselves.

HTTP in a closed loop is wrk's (Debian's package ``wrk``); at a rate, or each once, it is sent over kept
connections of asyncio. Sockets are bare asyncio too: short frames masked with zeros. ``benchmarks/null.py``
shows what each of them reaches against a server that does nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "deliver.lua"


class Refused(SystemExit):
    """Something did not go through: the figures would mean nothing."""


# HTTP


def request(port: int, path: str, body: bytes, **headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json",
        f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items()),
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + body


def closed_loop(
    port: int, requests: Iterable[bytes], file: Path, clients: int, seconds: float
) -> dict[str, float]:
    """Each client sends the next request when the one before is answered."""
    with file.open("wb") as out:
        for one in requests:
            out.write(b"%d\n%b" % (len(one), one))
    said = subprocess.run(
        ["wrk", "-t1", f"-c{clients}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(SCRIPT),
         f"http://127.0.0.1:{port}/", "--", str(file)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    line = next(line for line in said.splitlines() if line.startswith("RESULT "))
    count, took, p50, p99, refused, broken, again = map(float, line.split()[1:])
    if refused or broken or again:
        raise Refused(f"{refused:g} refused, {broken:g} connections broke, {again:g} sent a second time")
    return {"count": count, "seconds": took / 1e6, "p50_ms": p50 / 1000, "p99_ms": p99 / 1000}


class Lines:
    """Connections that are kept; as many as there are requests under way at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> None:
        line = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = line
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not 200 <= int(head[9:12]) < 300:
            raise Refused(f"refused: {head.decode()}")
        if b"chunked" in head:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        elif length := re.search(rb"content-length: *(\d+)", head):
            await reader.readexactly(int(length[1]))
        if b"connection: close" in head:
            writer.close()
        else:
            self.idle.append(line)

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()


async def each_once(port: int, requests: Iterable[bytes], clients: int = 16) -> None:
    """All of them, so many at once."""
    lines, left = Lines(port), iter(requests)

    async def client() -> None:
        for one in left:
            await lines.ask(one)

    await asyncio.gather(*(client() for _ in range(clients)))
    lines.close()


async def open_loop(port: int, requests: list[bytes], rate: float) -> list[tuple[float, float]]:
    """So many a second, whatever becomes of them. When each was sent and answered, in seconds since 1970."""
    lines, began = Lines(port), time.monotonic()

    async def ask(one: bytes) -> tuple[float, float]:
        sent = time.time()
        await lines.ask(one)
        return sent, time.time()

    posts = []
    for number, one in enumerate(requests):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        posts.append(asyncio.create_task(ask(one)))
    times = await asyncio.gather(*posts)
    lines.close()
    return times


# Sockets


@dataclass
class Socket:
    """Where a socket is opened, and whether the server says something before it is spoken to."""

    port: int
    path: str
    greets: bool = True


class Echoed(asyncio.Protocol):
    """Sends a frame when the one before has come back, which is its number in the log as text.

    Whatever is no number is what the server says for reasons of its own.
    """

    def __init__(self, socket: Socket) -> None:
        self.request = (
            f"GET {socket.path} HTTP/1.1\r\nHost: 127.0.0.1:{socket.port}\r\n"
            f"Origin: http://127.0.0.1:{socket.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        self.greets = socket.greets
        self.took: list[float] = []
        self.ready = asyncio.get_running_loop().create_future()
        self.failed = ""
        self.open = False
        self.buffer = b""
        self.sent = 0.0
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request.encode())

    def connection_lost(self, error: Exception | None) -> None:
        self.failed = self.failed or f"the server closed the socket after {self.count} frames"

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.open:
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.failed = head.decode()
                self.transport.abort()
                self.ready.cancel()
                return
            self.open, self.buffer = True, rest
            if not self.greets:
                self.ready.set_result(None)
        while (frame := self.frame()) is not None:
            self.heard(*frame)

    def frame(self) -> tuple[int, bytes] | None:
        """Takes the next frame, of less than 64 KiB, out of the buffer: its kind, and its text."""
        if len(self.buffer) < 4:
            start, length = 2, self.buffer[1] if len(self.buffer) > 1 else 2
        elif self.buffer[1] == 126:
            start, length = 4, int.from_bytes(self.buffer[2:4])
        else:
            start, length = 2, self.buffer[1]
        if len(self.buffer) < start + length:
            return None
        kind, text = self.buffer[0] & 15, self.buffer[start : start + length]
        self.buffer = self.buffer[start + length :]
        return kind, text

    def heard(self, kind: int, text: bytes) -> None:
        if kind == 9:  # a ping
            self.transport.write(b"\x8a%c\0\0\0\0%b" % (0x80 | len(text), text))
        elif not self.ready.done():
            self.ready.set_result(None)
        elif text.isdigit():
            self.count += 1
            if text != str(self.count).encode():
                self.failed = f"frame {self.count} came back as {text!r}"
                self.transport.abort()
                return
            self.took.append(time.perf_counter() - self.sent)
            self.send()

    def send(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(b"\x81\x85\0\0\0\0hello")


async def frames(sockets: list[Socket], warm_up: float, seconds: float) -> list[float]:
    """How long each frame took to come back, in seconds; of those that did so after the warm-up."""
    loop = asyncio.get_running_loop()
    clients: list[Echoed] = []
    for socket in sockets:
        _, client = await loop.create_connection(lambda s=socket: Echoed(s), "127.0.0.1", socket.port)
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.ready for client in clients)), 60)
    for client in clients:
        client.send()
    await asyncio.sleep(warm_up)
    for client in clients:
        client.took.clear()
    await asyncio.sleep(seconds)
    took = [one for client in clients for one in client.took]
    wrong = [client.failed for client in clients if client.failed]
    for client in clients:
        client.transport.abort()
    if wrong or not took:
        raise Refused(wrong[0] if wrong else "no frame came back")
    return took


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def fresh() -> str:
    """A word that no run before has used."""
    return os.urandom(4).hex()
