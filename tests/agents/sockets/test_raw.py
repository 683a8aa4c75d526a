"""Raw frames: an agent that overrides ``on_message`` gets every frame as it came, and sends what it likes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from agents.models import Actor, TurnRecord
from tests.agents.sockets.chatters.agents import RawAgent
from tests.agents.sockets.site import Client, Site
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = RawAgent.kind


@pytest.fixture
def client(site: Site, operator: str, name: str) -> Any:
    with site.client(KIND, name, session=operator) as client:
        assert client.recv()["kind"] == "hello"
        yield client


def heard(client: Client, timeout: float = 10.0) -> str | bytes:
    data: str | bytes = client.ws.recv(timeout=timeout)
    return data


@pytest.mark.parametrize(
    "frame",
    ["text", "", "日本 +1 😀", '{"v": 1, "kind": "ping"}', b"", b"\x00\xff\x80", bytes(range(256)) * 200],
)
def test_frames_go_both_ways_byte_for_byte(client: Client, frame: str | bytes) -> None:
    client.ws.send(frame)
    assert heard(client) == frame


def test_text_comes_in_as_it_is_and_goes_out_as_text_is_stored(client: Client) -> None:
    client.ws.send("bytes a\0b")
    assert heard(client) == b"a\0b"
    client.ws.send("a\0b")
    assert heard(client) == "a\ufffdb"


def test_each_frame_is_a_turn_in_the_order_of_their_coming(client: Client, name: str) -> None:
    client.ws.send("slow 0.5")
    for n in range(20):
        client.ws.send(str(n))
    assert [heard(client) for _ in range(21)] == ["slow 0.5", *map(str, range(20))]
    records = TurnRecord.objects.filter(actor__name=name)
    assert set(records.values_list("origin", "method")) == {("frame", "on_message")}
    assert records.count() == 21


def test_a_handler_that_raises_closes_with_1011_and_leaves_nothing(client: Client, name: str) -> None:
    client.ws.send("boom")
    assert client.closed() == 1011
    assert client.passed == []
    assert not TurnRecord.objects.filter(actor__name=name).exists()


def test_the_protocol_is_silent_but_for_what_the_class_sends(
    site: Site, client: Client, operator: str, name: str
) -> None:
    with site.client(KIND, name, session=operator) as other:
        other.recv()
        client.ws.send("all hear me")
        assert heard(client) == "hear me"
        assert heard(client) == "all hear me"  # to itself alone
        assert heard(other) == "hear me"
        with pytest.raises(TimeoutError):
            other.ws.recv(timeout=0.3)


def test_what_is_sent_now_does_not_wait_for_the_commit(client: Client, name: str, tmp_path: Path) -> None:
    frame = f"now {tmp_path / 'go-on'}"
    client.ws.send(frame)
    assert heard(client) == "at once"
    assert heard(client) == ""
    assert not TurnRecord.objects.filter(actor__name=name).exists()
    (tmp_path / "go-on").touch()
    assert heard(client) == frame


def test_an_agent_closes_with_its_own_code(client: Client) -> None:
    client.ws.send("close 3001")
    assert heard(client) == "goodbye"
    assert client.closed() == 3001
    assert client.ws.close_reason == "as asked"


def test_a_token_comes_in_the_first_frame_which_is_not_the_agents(site: Site, name: str) -> None:
    with site.by_token(KIND, name) as client:
        client.ws.send("first")
        assert client.recv()["kind"] == "hello"
        assert heard(client) == "first"


def test_a_frame_waits_for_a_busy_actor_as_long_as_its_socket_lives(
    site: Site, client: Client, operator: str, name: str, tmp_path: Path
) -> None:
    slow = f"slow {tmp_path / 'go-on'}"
    client.ws.send(slow)
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    with site.client(KIND, name, session=operator) as gone:
        gone.recv()
        gone.ws.send("never heard")
    with site.client(KIND, name, session=operator) as waiting:
        waiting.recv()
        waiting.ws.send("patient")
        time.sleep(0.3)
        (tmp_path / "go-on").touch()
        assert heard(waiting) == "patient"
    assert heard(client) == slow
    assert TurnRecord.objects.filter(actor__name=name).count() == 2


def test_a_stop_ends_a_frames_turn_and_not_its_socket(client: Client, name: str) -> None:
    client.ws.send("slow 20")
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    assert RawAgent.named(name).sync.stop()
    client.ws.send("next")
    assert heard(client) == "next"


def test_frames_that_wait_are_bounded_and_too_many_close_with_1013(
    client: Client, name: str, tmp_path: Path
) -> None:
    one, two = f"slow {tmp_path / 'one'}", f"slow {tmp_path / 'two'}"
    client.ws.send(one)
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    for n in range(256):
        client.ws.send(str(n))
    (tmp_path / "one").touch()
    assert [heard(client) for _ in range(257)] == [one, *map(str, range(256))]
    client.ws.send(two)
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    for n in range(257):
        client.ws.send(str(n))
    with pytest.raises(ConnectionClosed) as closed:
        client.ws.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    (tmp_path / "two").touch()


def test_hello_says_what_it_says_everywhere(site: Site, operator: str, name: str) -> None:
    with site.client(KIND, name, session=operator) as client:
        hello = json.loads(heard(client))
        assert hello["actor"] == {"kind": KIND, "name": name}
