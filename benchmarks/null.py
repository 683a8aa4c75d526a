"""What the drivers reach against servers that do nothing: that they are not what a job measures.

    python -m benchmarks.null [--seconds 5]

One server answers each request with 200 and reads none; the other sends each frame's number back. Both are
asyncio in a process of their own, so the figures are what driver and server manage together on this machine,
with the processor time that the driver takes of it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.drivers import Socket, closed_loop, each_once, frames, percentile, request
from benchmarks.processes import free_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
BODY = b'{"from": "+15550000001", "text": "text 1 0123abcd"}' * 10


class Answers(asyncio.Protocol):
    """Requests come whole, one at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(OK)


class Counts(Answers):
    """Frames too: the client sends the next when the one before has come back."""

    count = -1

    def data_received(self, data: bytes) -> None:
        self.count += 1
        number = str(self.count).encode()
        self.transport.write(UPGRADE if not self.count else b"\x81%c%b" % (len(number), number))


def serve(port: int, protocol: type[asyncio.Protocol]) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(forever())


def used(who: int) -> float:
    """Seconds of processor."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    http, socket = free_port(), free_port()
    servers = [
        multiprocessing.Process(target=serve, args=arguments, daemon=True)
        for arguments in ((http, Answers), (socket, Counts))
    ]
    for server in servers:
        server.start()
    time.sleep(1)
    try:
        measure(http, socket, options.seconds)
    finally:
        for server in servers:
            server.kill()
            server.join()


def measure(http: int, socket: int, seconds: float) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}")
    requests = [request(http, "/", BODY)] * int(seconds * 60_000)
    with tempfile.TemporaryDirectory() as folder:
        before = used(resource.RUSAGE_CHILDREN)
        sent = closed_loop(http, requests, Path(folder) / "requests", 16, seconds)
        spent = used(resource.RUSAGE_CHILDREN) - before
    each = 1e6 * spent / sent["count"]
    print(f"wrk: {sent['count'] / sent['seconds']:,.0f} requests/s, {each:.0f} us of processor each")

    began, before = time.monotonic(), used(resource.RUSAGE_SELF)
    asyncio.run(each_once(http, requests[:20_000]))
    took, spent = time.monotonic() - began, used(resource.RUSAGE_SELF) - before
    print(f"kept connections: {20_000 / took:,.0f} requests/s, {50 * spent:.0f} us of processor each")

    before = used(resource.RUSAGE_SELF)
    took = asyncio.run(frames([Socket(socket, "/", greets=False)] * 100, 1, seconds))
    each = 1e6 * (used(resource.RUSAGE_SELF) - before) / (len(took) * (seconds + 1) / seconds)
    print(
        f"sockets: {len(took) / seconds:,.0f} frames/s, p50 {1000 * percentile(took, 0.5):.1f} ms,"
        f" {each:.0f} us of processor each"
    )


if __name__ == "__main__":
    main()
