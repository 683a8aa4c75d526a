"""Plain HTTP and WebSockets on one port: what a request may look like, and who gets the connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from websockets.sync.client import connect

from agents.front import MAX_HEAD_BYTES, Front
from tests.agents.test_serve import Served, get, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving("--no-scheduler") as started:
        yield started


def said(port: int, *parts: bytes) -> bytes:
    """Everything that the server answers until it hangs up."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while more := connection.recv(65536):
            answer += more
        return answer


def request(*headers: bytes, first: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: here", *headers, b"", b""])


CLOSE = b"Connection: close"


def test_requests_of_one_connection_are_answered_in_their_order(served: Served) -> None:
    answer = said(served.port, request() + request() + request(CLOSE))  # type: ignore[attr-defined]
    assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize("bytes_more", [0, 1])
def test_a_head_may_be_as_long_as_the_limit_and_no_longer(served: Served, bytes_more: int) -> None:
    start = request(b"X-Long: ")[:-4]
    size = MAX_HEAD_BYTES + bytes_more
    # The last byte alone: a head is looked at as far as it has come.
    head = start + b"x" * (size - len(start))
    end = b"\r\n" + CLOSE + b"\r\n\r\n"
    answer = said(served.port, head, *([] if bytes_more else [end]))  # type: ignore[attr-defined]
    assert answer.startswith(b"HTTP/1.1 400" if bytes_more else b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        request(first=b"GET / HTTP/9.9"),
        request(first=b"GET /\xff\xfe HTTP/1.1"),
        request(first=b"G\x00T / HTTP/1.1"),
        request(b"X-\x00: 1"),
        request(b"X: a\x00b"),
        request(b"Content-Length: 1", b"Content-Length: 2", first=b"POST / HTTP/1.1"),
        request(b"Content-Length: -1", first=b"POST / HTTP/1.1"),
        request(b"Content-Length: 1", b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.1"),
    ],
)
def test_what_is_no_request_is_told_so(served: Served, raw: bytes) -> None:
    assert said(served.port, raw).startswith(b"HTTP/1.1 400")  # type: ignore[attr-defined]


def test_an_upgrade_to_something_else_is_a_plain_request(served: Served) -> None:
    answer = said(
        served.port,  # type: ignore[attr-defined]
        request(b"Connection: Upgrade, close", b"Upgrade: h2c"),
    )
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_websocket_without_its_key_is_refused(served: Served) -> None:
    answer = said(
        served.port,  # type: ignore[attr-defined]
        request(b"Connection: Upgrade", b"Upgrade: websocket"),
    )
    assert answer.startswith(b"HTTP/1.1 400")
    wait_until(lambda: "WebSocket connection denied" in served.output)
    assert get(served.port, "/").status == 200  # type: ignore[attr-defined]
    assert "Traceback" not in served.output


def test_a_connection_that_asked_for_something_else_before_may_become_a_websocket(served: Served) -> None:
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)  # type: ignore[attr-defined]
    connection.sendall(request())
    with connection.makefile("rb") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        while answer.readline() != b"\r\n":
            pass
        assert answer.read(6) == b"answer"
    with connect("ws://here/", sock=connection) as ws:
        ws.send("hello")
        assert ws.recv(timeout=30) == "echo hello"


def test_a_socket_whose_client_goes_away_while_it_is_handed_over_is_forgotten(served: Served) -> None:
    for _ in range(50):
        with closing(socket.create_connection(("127.0.0.1", served.port))) as connection:  # type: ignore[attr-defined]
            connection.sendall(
                request(
                    b"Connection: Upgrade",
                    b"Upgrade: websocket",
                    b"Sec-WebSocket-Version: 13",
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                )
            )
    with connect(f"ws://127.0.0.1:{served.port}/") as ws:  # type: ignore[attr-defined]
        ws.send("hello")
        assert ws.recv(timeout=30) == "echo hello"
    assert "Traceback" not in served.output


# Slow clients: in this process, with less patience


@asynccontextmanager
async def fronting(application: Any, patience: float = 60) -> AsyncIterator[tuple[int, Front]]:
    accepting = asyncio.Event()
    front = Front(application, None, started=accepting.set, patience=patience)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        serving = asyncio.create_task(front.serve(sockets=[bound]))
        await accepting.wait()
        yield port, front
        front.cut()
        front.end()
        await serving


async def answer_when_read(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


POST = request(b"Content-Length: 4", first=b"POST / HTTP/1.1")


@pytest.mark.parametrize("parts", [[], [b"GET / HT"], [request()[:-2]], [POST], [POST, b"abc"]])
async def test_a_client_that_leaves_off_in_the_middle_of_a_request_is_hung_up_on(parts: list[bytes]) -> None:
    async with fronting(answer_when_read, patience=1) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        writer.close()


async def test_a_head_that_comes_byte_by_byte_has_its_time_in_all_and_a_body_does_not() -> None:
    async with fronting(answer_when_read, patience=2) as (port, _):

        async def sent(start: bytes, rest: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(start)
                for byte in rest:
                    await asyncio.sleep(0.5)
                    writer.write(bytes([byte]))
                return await asyncio.wait_for(reader.readline(), 30)
            except ConnectionError:
                return b""
            finally:
                writer.close()

        long = request(b"Content-Length: 8", first=b"POST / HTTP/1.1")
        head, body = await asyncio.gather(sent(b"GET", b" / HTTP/1"), sent(long, b"12345678"))
    assert (head, body) == (b"", b"HTTP/1.1 200 OK\r\n")


async def test_a_client_that_waits_for_its_answer_may_wait() -> None:
    go_on = asyncio.Event()

    async def answer_later(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await answer_when_read(scope, receive, send)

    async with fronting(answer_later, patience=0.2) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await asyncio.sleep(2.5)
        go_on.set()
        assert await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_a_client_that_was_accepted_just_before_the_end_is_answered() -> None:
    async with fronting(answer_when_read) as (port, front):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request())
            # The loop sees it, and accepts it: it is no connection yet.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await front.close()
            client.setblocking(False)
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65536), 30)
            assert answer.startswith(b"HTTP/1.1 200 OK")
