"""A server that goes away: what it works on ends, the rest is left to the client, and everybody is told."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agents.models import Actor, Connection
from conversations.models import Message
from scheduler.models import Task
from tests.agents.sockets.chatters.agents import ChatterAgent, DoormanAgent, RawAgent
from tests.agents.sockets.site import Site, running
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("alone"),
]

KIND = ChatterAgent.kind


def quiet(site: Site) -> bool:
    """Whether the server said nothing of tasks and loops that it left behind."""
    return not [
        line
        for line in site.lines
        if "Traceback" in line or "destroyed" in line or "never retrieved" in line or "Warning" in line
    ]


def test_idle_sockets_are_closed_with_going_away_and_nothing_is_left(operator: str, name: str) -> None:
    with running() as site:
        with (
            site.admitted(KIND, name, session=operator) as one,
            site.client(RawAgent.kind, name, session=operator) as two,
            site.client(KIND, name) as waiting_for_a_token,
            site.by_token(DoormanAgent.kind, name) as three,
        ):
            three.until("broadcast")
            site.process.send_signal(signal.SIGTERM)
            for client in (one, two, waiting_for_a_token, three):
                assert client.closed() == 1001
            assert site.ended() == 0
        assert quiet(site), site.output
        assert not Connection.objects.exists()
        # The farewell is in the inbox of whoever runs next.
        assert Task.objects.get().method == "on_disconnect"


def test_a_call_that_runs_is_answered_and_those_behind_it_are_dropped(
    operator: str, name: str, tmp_path: Path
) -> None:
    rested = tmp_path / "rested"
    with running("--no-scheduler") as site, site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="nap", method="rest", args=[str(rested)])
        wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
        client.send("call", id="behind", method="add", args=["user", "never"])
        time.sleep(0.1)
        site.process.send_signal(signal.SIGTERM)
        wait_until(site.refuses)
        rested.touch()
        assert client.until("result", id="nap")["value"] == "rested"
        assert client.closed() == 1001
        assert [f for f in client.passed if f.get("id") == "behind"] == []
        assert site.ended() == 0
        assert quiet(site), site.output
    assert not Message.objects.exists()


def test_a_raw_frame_that_is_handled_is_answered(operator: str, name: str, tmp_path: Path) -> None:
    frame = f"slow {tmp_path / 'go-on'}"
    with running("--no-scheduler") as site, site.client(RawAgent.kind, name, session=operator) as client:
        client.recv()
        client.ws.send(frame)
        wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
        site.process.send_signal(signal.SIGTERM)
        wait_until(site.refuses)
        (tmp_path / "go-on").touch()
        assert client.ws.recv(timeout=30) == frame
        assert client.closed() == 1001
        assert site.ended() == 0


def test_what_is_said_is_acknowledged_or_can_be_said_again(operator: str, name: str) -> None:
    """Every word is in the inbox once, whatever the server still took of them."""
    words = [str(n) for n in range(200)]
    with running("--no-scheduler") as site, site.admitted(KIND, name, session=operator) as client:
        for word in words[:100]:
            client.send("say", id=word, text=word)
        site.process.send_signal(signal.SIGTERM)
        for word in words[100:]:
            try:
                client.send("say", id=word, text=word)
            except Exception:
                break
        client.closed()
        acked = {f["id"] for f in client.passed if f["kind"] == "ack"}
        assert site.ended() == 0
    with running() as site, site.admitted(KIND, name, session=operator) as client:
        for word in words:
            if word not in acked:
                client.send("say", id=word, text=word)
        for _ in range(len(words) - len(acked)):
            client.until("ack")
        wait_until(lambda: not Task.objects.exists(), 60)
    contents = list(Message.objects.order_by("seq").values_list("content", flat=True))
    assert sorted(contents, key=int) == words


def test_a_client_moves_to_another_server_and_misses_nothing(operator: str, name: str) -> None:
    got: list[int] = []

    def take(client: Any, count: int) -> None:
        while len(got) < count:
            got.append(client.until("broadcast")["cursor"])
            client.send("seen", cursor=got[-1])

    with running("--no-scheduler") as second:
        with running("--no-scheduler") as first, first.admitted(KIND, name, session=operator) as client:
            client.call("shout_many", 20)
            take(client, 20)
            first.process.send_signal(signal.SIGTERM)
            assert client.closed() == 1001
        ChatterAgent.named(name).sync.shout_many(20)
        with second.client(KIND, name, session=operator) as client:
            client.attach(cursor=got[-1])
            take(client, 40)
    assert got == list(range(1, 41))
