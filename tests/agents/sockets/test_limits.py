"""Each limit of docs/protocol.md at its edge and one past it."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.uri import parse_uri

from agents.models import Actor
from conversations.models import Message
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import PATIENCE, Client, Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind
MIB = 1024 * 1024


def frame_of(size: int, **fields: Any) -> str:
    """A call of ``echo`` that has exactly this many bytes."""
    head = json.dumps({"v": 1, "kind": "call", "id": "big", "method": "echo", "args": [""], **fields})
    return head.replace('[""]', '["' + "x" * (size - len(head)) + '"]')


def memory(site: Site) -> int:
    """Bytes that the site's process has in memory."""
    return int(Path(f"/proc/{site.process.pid}/statm").read_text().split()[1]) * 4096


def busy(client: Client, name: str, until: Path) -> None:
    """The client's call lane is taken by a turn that runs until there is such a file."""
    client.send("call", id="nap", method="rest", args=[str(until)])
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())


def test_a_frame_of_a_mebibyte_is_taken_and_one_byte_more_closes_with_1009(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.ws.send(frame_of(MIB))
        # The arguments alone are under their own limit of as much.
        assert len(client.until("result")["value"]) > MIB - 200
        client.ws.send(frame_of(MIB + 1))
        assert client.closed() == 1009


def test_a_frame_that_is_far_too_large_is_not_kept(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        before = memory(site)
        # A client whose connection is reset while it sends may not get to read the code.
        with suppress(ConnectionClosed):
            client.ws.send(b"x" * (64 * MIB))
            assert client.closed() == 1009
        assert memory(site) - before < 20 * MIB


def test_a_frame_in_pieces_is_measured_as_a_whole(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        text = frame_of(MIB)
        client.ws.send([text[:1000], text[1000:500_000], text[500_000:]])
        assert client.until("result")
        try:
            client.ws.send("x" * 100_000 for _ in range(11))
        except ConnectionClosed:
            pass
        assert client.closed() == 1009


def test_a_frame_before_anybody_is_admitted_has_the_same_limit(site: Site, name: str) -> None:
    with site.client(KIND, name) as client:
        client.ws.send("x" * (MIB + 1))
        assert client.closed() == 1009


def test_256_frames_may_wait_and_one_more_closes_with_1013(
    site: Site, operator: str, name: str, tmp_path: Path
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        busy(client, name, tmp_path / "one")
        for n in range(256):
            client.send("call", id=str(n), method="echo", args=[n])
        client.send("seen", cursor=0)  # does not wait, and does not count
        assert client.ws.ping().wait(PATIENCE)  # all of them are there
        (tmp_path / "one").touch()
        assert [client.until("result", id=str(n))["value"] for n in range(256)] == list(range(256))
        busy(client, name, tmp_path / "two")
        for n in range(257):
            client.send("call", id=str(n), method="echo", args=[n])
        assert client.closed() == 1013
    (tmp_path / "two").touch()


def test_a_mebibyte_may_wait_and_one_byte_more_closes_with_1013(
    site: Site, operator: str, name: str, tmp_path: Path
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        busy(client, name, tmp_path / "one")
        client.ws.send(frame_of(MIB // 2))
        client.ws.send(frame_of(MIB // 2))
        assert client.ws.ping().wait(PATIENCE)  # both are there
        (tmp_path / "one").touch()
        for _ in range(2):
            assert len(client.until("result", id="big")["value"]) > MIB // 2 - 200
        busy(client, name, tmp_path / "two")
        client.ws.send(frame_of(MIB // 2))
        client.ws.send(frame_of(MIB // 2 + 1))
        assert client.closed() == 1013
    (tmp_path / "two").touch()


def test_what_waits_is_dropped_with_its_socket(site: Site, operator: str, name: str, tmp_path: Path) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        busy(client, name, tmp_path / "rested")
        for n in range(257):
            client.send("call", id=str(n), method="add", args=["user", str(n)])
        assert client.closed() == 1013
    (tmp_path / "rested").touch()
    wait_until(lambda: not Actor.objects.filter(name=name, token__isnull=False).exists())
    time.sleep(0.5)
    assert Message.objects.filter(actor__name=name).count() == 0


def test_the_server_is_256_events_ahead_and_no_more(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="1", method="shout_many", args=[300])
        got = [client.until("broadcast")["cursor"] for _ in range(256)]
        assert got == list(range(1, 257))
        client.until("result")
        assert client.silent(0.5)
        client.send("seen", cursor=1)
        assert client.until("broadcast")["cursor"] == 257
        assert client.silent(0.3)
        client.send("seen", cursor=257)
        assert [client.until("broadcast")["cursor"] for _ in range(43)] == list(range(258, 301))


def test_the_server_is_a_mebibyte_ahead_and_no_more(site: Site, operator: str, name: str) -> None:
    """Each event has 256 KiB with its quotes: four fill the window."""
    with site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="1", method="shout_many", args=[6, 256 * 1024 - 2])
        assert [client.until("broadcast")["cursor"] for _ in range(4)] == [1, 2, 3, 4]
        client.until("result")
        assert client.silent(0.5)
        client.send("seen", cursor=1)
        assert client.until("broadcast")["cursor"] == 5
        client.send("seen", cursor=5)
        assert client.until("broadcast")["cursor"] == 6


def test_an_event_that_is_larger_than_the_window_comes_alone(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        ChatterAgent.named(name).sync.add("user", "x" * (MIB - 100))
        client.call("shout", "behind it".ljust(300))
        assert len(client.until("message")["message"]["content"]) == MIB - 100
        assert client.silent(0.5)
        client.send("seen", cursor=1)
        assert client.until("broadcast")["data"].strip() == "behind it"


def test_a_client_that_has_seen_nothing_for_too_long_is_closed_with_1013(operator: str, name: str) -> None:
    with running("--no-scheduler", agents={"SOCKET_SEEN_TIMEOUT": 6.0}) as site:
        with site.admitted(KIND, name, session=operator) as client:
            client.call("shout_many", 256)
            for _ in range(256):  # exactly the window: it is not full for anything
                client.until("broadcast")
            assert client.silent(6.5)
            client.send("ping")
            assert client.until("pong")
            began = time.monotonic()
            client.call("shout", "one more")
            assert client.closed() == 1013
            assert time.monotonic() - began >= 6.0
        with site.client(KIND, name, session=operator) as client:
            client.attach(cursor=0)
            for n in range(3):  # it reads slowly, but it reads: how slowly it may, test_feed.py says
                time.sleep(0.1)
                client.send("seen", cursor=n + 1)
            client.send("ping")
            assert client.until("pong")


def deaf(site: Site, name: str, session: str) -> socket.socket:
    """A client that attaches and then never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", site.port))
    protocol = ClientProtocol(parse_uri(site.url(KIND, name)), origin="http://127.0.0.1")  # type: ignore[arg-type]
    request = protocol.connect()
    request.headers["Cookie"] = f"sessionid={session}"
    protocol.send_request(request)
    connection.sendall(b"".join(protocol.data_to_send()))
    while protocol.state is not State.OPEN:
        protocol.receive_data(connection.recv(1024))
    protocol.send_text(b'{"v": 1, "kind": "attach"}')
    connection.sendall(b"".join(protocol.data_to_send()))
    return connection


def test_a_client_that_does_not_read_costs_no_memory_and_holds_up_nobody(
    site: Site, operator: str, name: str
) -> None:
    """Broadcasts that are no events wait in the connection's own buffer; then they are dropped."""
    with site.admitted(KIND, name, session=operator) as quick:
        for _ in range(30):
            quick.call("shout", "x" * 200_000, now=True)
        with deaf(site, name, operator):
            before = memory(site)
            for _ in range(300):  # 60 MB
                quick.call("shout", "x" * 200_000, now=True)
            for _ in range(330):
                quick.until("broadcast")
            assert memory(site) - before < 25 * MIB


@pytest.mark.parametrize("length", [128, 129])
def test_an_id_has_128_characters(site: Site, operator: str, name: str, length: int) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.send("say", id="i" * length, text="x")
        frame = client.until("ack", "error")
        assert frame["kind"] == ("ack" if length == 128 else "error")
