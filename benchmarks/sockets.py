"""What sockets cost: memory each, and how long a word takes to come back while all of them talk.

    python -m benchmarks.sockets [--sockets 500] [--says 20] [--redis redis://127.0.0.1:6379/7]

Starts ``manage.py serve`` with the embedded scheduler on the database of ``DATABASE_URL`` (a database of its
own there, dropped at the end; without the variable on SQLite in a temporary folder). Each socket is of an
actor of its own and says its words one after the other, as people do: the next when the one before is in the
log. Then all sockets listen to one actor that broadcasts. Raw frames, as many as go through, are job C of
``benchmarks/jobs.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.databases import own
from benchmarks.processes import ROOT, free_port, memory, running, site_environment, wait_for

KIND = "bench-listener"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sockets", type=int, default=500)
    parser.add_argument("--says", type=int, default=20)
    parser.add_argument("--redis", default="", help="a channel layer; without: the process's memory")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        own("sockets", Path(name)) as url,
        serving(url, Path(name), options) as site,
    ):
        asyncio.run(measure(*site, options))


@contextmanager
def serving(url: str, folder: Path, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    env = site_environment(
        "agentsite.settings",
        folder,
        AGENT_APPS="benchmarks.sockets_app",
        DATABASE_URL=url,
        REDIS_URL=options.redis,
    )
    manage, port, log = [sys.executable, "manage.py"], free_port(), folder / "log"
    subprocess.run([*manage, "migrate", "-v", "0"], cwd=ROOT, env=env, check=True)
    with running([*manage, "serve", "--port", str(port)], env, log) as site:
        wait_for(f"http://127.0.0.1:{port}/health/ready", log, status=200)
        yield port, site.pid


async def open_socket(port: int, name: str) -> ClientConnection:
    uri = f"ws://127.0.0.1:{port}/ws/agents/{KIND}/{name}/"
    ws = await connect(uri, origin=f"http://127.0.0.1:{port}", proxy=None, open_timeout=120).__aenter__()  # type: ignore[arg-type]
    await ws.recv()
    await ws.send('{"v": 1, "kind": "attach", "cursor": 0}')
    await ws.recv()
    return ws


async def converse(ws: ClientConnection, says: int) -> list[float]:
    """Says words one after the other; how long each took until it came back as a message (seconds)."""
    took = []
    for n in range(says):
        began = time.perf_counter()
        await ws.send(json.dumps({"v": 1, "kind": "say", "id": str(n), "text": f"word {n}"}))
        while (frame := json.loads(await ws.recv()))["kind"] != "message":
            pass
        took.append(time.perf_counter() - began)
        await ws.send(json.dumps({"v": 1, "kind": "seen", "cursor": frame["cursor"]}))
    return took


async def measure(port: int, pid: int, options: argparse.Namespace) -> None:
    await (await open_socket(port, "warm")).close()
    await asyncio.sleep(1)
    before, began = memory([pid]), time.perf_counter()
    sockets = await asyncio.gather(*(open_socket(port, f"a{n}") for n in range(options.sockets)))
    opened = time.perf_counter() - began
    await asyncio.sleep(3)
    each = (memory([pid]) - before) / options.sockets
    print(f"{options.sockets} sockets opened in {opened:.1f} s; {each * 1024:.0f} KiB each, at rest")

    began = time.perf_counter()
    talks = await asyncio.gather(*(converse(ws, options.says) for ws in sockets))
    took = sorted(one for talk in talks for one in talk)
    seconds = time.perf_counter() - began
    print(
        f"{len(took)} words in {seconds:.1f} s ({len(took) / seconds:.0f}/s); into the log and back:"
        f" median {statistics.median(took) * 1000:.0f} ms, 99th {took[int(len(took) * 0.99)] * 1000:.0f} ms"
    )
    await asyncio.gather(*(ws.close() for ws in sockets))

    sockets = await asyncio.gather(*(open_socket(port, "one") for _ in range(options.sockets)))
    speaker = await open_socket(port, "one")
    took = []
    for n in range(20):
        began = time.perf_counter()
        await speaker.send(
            json.dumps({"v": 1, "kind": "call", "id": str(n), "method": "shout", "args": ["x"]})
        )
        await asyncio.gather(*(ws.recv() for ws in sockets))
        took.append(time.perf_counter() - began)
    print(f"a broadcast to all of them: median {statistics.median(took) * 1000:.0f} ms until the last has it")
    await asyncio.gather(*(ws.close() for ws in [*sockets, speaker]))


if __name__ == "__main__":
    main()
