"""Failures that people met in public with systems of this kind, by their number among our cases.

On PostgreSQL as in production: a site, and a Celery worker that runs what is said. WS-06 and WS-09 are in
test_load.py and test_layer.py.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.db import connection
from websockets.exceptions import InvalidStatus

from agents.models import Actor
from agents.names import group_name
from conversations.models import Message
from scheduler.models import Attempt, Task
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.conftest import Sites, at_rest
from tests.agents.sockets.site import Client, Site, deployed, running
from tests.agents.sockets.test_streams import Reader
from tests.servers import missing
from tests.settings import LAYER
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server"),
]

KIND = ChatterAgent.kind


@pytest.fixture(scope="module")
def _served(
    sites: Sites, django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, redis.Redis | None]]:
    sites.end()
    with django_db_blocker.unblock():
        if connection.vendor == "sqlite":
            with running() as site:
                yield site, None
            return
        with (
            deployed(tmp_path_factory.mktemp("deployed")) as (site, _, server),
            server.client() as client,
        ):
            yield site, client


@pytest.fixture
def site(_served: Any, transactional_db: None) -> Iterator[Site]:
    yield _served[0]
    wait_until(at_rest, 60, "everybody to be gone, and everything to be done")


@pytest.fixture
def client(site: Site, operator: str, name: str) -> Iterator[Client]:
    with site.admitted(KIND, name, session=operator) as client:
        yield client


def whole(count: int) -> str:
    return "".join(f"[{n}]" for n in range(count))


def test_ws_01_more_than_100_sends_in_a_burst_reach_a_slow_client(client: Client) -> None:
    """300 pieces in about 200 ms; the client takes its time with each frame."""
    reader = Reader(client)
    client.send("say", id="1", text="stream 300 0.0005")
    while len(reader.messages) < 2:
        reader.take(30)
        time.sleep(0.03)
    assert reader.messages[1]["content"] == whole(300)
    assert (reader.texts, reader.gaps) == ({}, 0)


def test_ws_02_a_reply_over_a_lost_connection_is_one_message(
    site: Site, client: Client, operator: str, name: str
) -> None:
    """The socket is dropped after some pieces of a reply, and is back with the last position."""
    reader = Reader(client)
    client.send("say", id="1", text="stream 20 0.1")
    reader.until(lambda: "[4]" in "".join(reader.texts.values()))
    (stream,) = reader.texts
    cursor = max(frame["cursor"] for frame in reader.frames if "cursor" in frame)
    client.ws.socket.close()
    with site.client(KIND, name, session=operator) as again:
        reader.client = again
        again.send("attach", cursor=cursor)
        reader.until(lambda: len(reader.messages) == 2, 30)
        assert again.silent(0.2)
    assert reader.messages[1]["content"] == whole(20)
    assert reader.messages[1]["metadata"]["stream"] == stream
    assert (reader.texts, reader.gaps) == ({}, 0)


@pytest.mark.parametrize("text", ["hello", "{bad json", "", "\0"])
def test_ws_03_what_is_not_json_is_answered_and_the_socket_goes_on(client: Client, text: str) -> None:
    client.ws.send(text)
    assert client.until("error")["code"] == "bad_frame"
    client.send("say", id="1", text="valid")
    assert client.until("ack")["id"] == "1"
    assert client.until("message")["message"]["content"] == "valid"


def test_ws_04_without_an_origin_or_with_another_one_a_cookie_opens_nothing_and_the_log_says_why(
    site: Site, operator: str, name: str
) -> None:
    before = len(site.lines)
    with pytest.raises(InvalidStatus):
        site.client(KIND, name, session=operator, origin="https://other.example")
    with site.client(KIND, name, session=operator, origin=None) as client:
        client.send("say", id="1", text="hello")
        assert client.closed() == 4401
    wait_until(lambda: len(site.lines) >= before + 2)
    refusals = [line for line in site.lines[before:] if "socket refused" in line]
    assert len(refusals) == 2
    assert "'https://other.example'" in refusals[0]
    assert "origin: none" in refusals[1]
    assert all("allowed hosts: 127.0.0.1, localhost" in line for line in refusals)
    assert not Task.objects.exists()
    with site.by_token(KIND, name) as client:  # as programs do
        assert client.until("hello")


def test_ws_05_whoever_signs_out_in_another_tab_is_not_heard_any_more(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        sign_out(site, operator)
        client.send("say", id="1", text="still talking")
        assert client.closed() == 4401
    assert not Task.objects.exists()
    assert not Message.objects.exists()


def sign_out(site: Site, session: str) -> None:
    """By the admin's own form, over HTTP."""
    web = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    cookie = f"sessionid={session}"
    web.request("GET", "/admin/password_change/", headers={"Cookie": cookie})
    page = web.getresponse()
    page.read()
    token = next(
        value.split(";")[0].removeprefix("csrftoken=")
        for name, value in page.getheaders()
        if name.lower() == "set-cookie" and value.startswith("csrftoken=")
    )
    headers = {"Cookie": f"{cookie}; csrftoken={token}", "X-CSRFToken": token}
    web.request("POST", "/admin/logout/", headers=headers)
    answer = web.getresponse()
    assert answer.status in (200, 302), answer.read()[:500]
    web.close()


def test_ws_07_a_client_that_leaves_during_a_long_reply_is_gone_and_the_reply_is_there(
    site: Site, client: Client, operator: str, name: str, _served: Any
) -> None:
    reader, database = Reader(client), _served[1]
    client.send("say", id="1", text="stream 40 0.1")
    reader.until(lambda: reader.texts)
    client.ws.close()
    if database is not None:
        group = f"{LAYER}:group:{group_name(KIND, name)}"
        wait_until(lambda: not database.zcard(group), 30, "the group to be left")
    wait_until(lambda: Message.objects.filter(actor__name=name).count() == 2, 30)
    with site.client(KIND, name, session=operator) as again:
        assert again.attach()["snapshot"]["messages"][1]["content"] == whole(40)
    assert "took too long to shut down" not in site.output


@pytest.mark.parametrize("who", ["+15005550006", "José", "a b", "user@example.org", "日本"])
def test_ws_08_any_name_connects_and_hears_broadcasts(site: Site, operator: str, who: str, name: str) -> None:
    with site.admitted(KIND, f"{who} {name}", session=operator) as client:
        client.send("say", id="1", text="twice over")
        assert client.until("broadcast")["data"] == "twice over: first"
        assert client.until("broadcast")["data"] == "twice over: second"


def test_ws_10_a_stop_is_read_while_the_reply_streams(
    site: Site, client: Client, operator: str, name: str
) -> None:
    """A reply of a minute, stopped on the same socket; another one, stopped from a second tab."""
    reader = Reader(client)
    with site.admitted(KIND, name, session=operator) as second:
        for turn, tab in enumerate((client, second)):
            client.send("say", id=f"say {turn}", text="stream 600 0.1")
            reader.until(lambda: reader.texts, 30)
            if tab is client:
                client.send("stop", id="stop")
                reader.until(lambda: reader.frames[-1]["kind"] == "ack")
                assert reader.frames[-1]["stopped"] is True
            else:
                second.send("stop", id="stop")
                assert second.until("ack", id="stop")["stopped"] is True
            reader.until(lambda turn=turn: len(reader.messages) == 2 * turn + 2, 30)
            assert reader.messages[-1]["metadata"]["interrupted"] is True
            assert reader.messages[-1]["content"].startswith("[0]")
        wait_until(lambda: Attempt.objects.filter(method="reply", outcome="stopped").count() == 2, 30)
        # With nothing running it is answered, and the next run knows nothing of it.
        second.send("stop", id="idle")
        assert second.until("ack", id="idle")["stopped"] is False
        client.send("say", id="after", text="stream 3 0")
        reader.until(lambda: len(reader.messages) == 6, 30)
        assert (reader.messages[-1]["content"], reader.gaps) == (whole(3), 0)
        assert "interrupted" not in reader.messages[-1]["metadata"]


@pytest.mark.parametrize("leaves", [False, True])
def test_msg_13_what_was_read_of_a_reply_that_was_stopped_is_kept(
    site: Site, client: Client, operator: str, name: str, leaves: bool
) -> None:
    """The reader stops it, or has left by then and comes back to do so."""
    reader = Reader(client)
    client.send("say", id="1", text="tale, please")
    client.send("say", id="2", text="tale")
    reader.until(lambda: "Once upon a time" in reader.texts.values(), 30)
    if leaves:
        client.ws.close()
    with site.client(KIND, name, session=operator) as other:
        again = Reader(other)
        other.send("attach")
        again.until(lambda: "Once upon a time" in again.texts.values(), 30)
        other.send("stop", id="s")
        again.until(lambda: again.messages, 30)
        (reply,) = again.messages
    assert (reply["role"], reply["content"]) == ("assistant", "Once upon a time")
    assert reply["metadata"]["interrupted"] is True
    with site.client(KIND, name, session=operator) as reloaded:
        shown = reloaded.attach()["snapshot"]["messages"]
        assert [m["content"] for m in shown] == ["tale, please", "tale", "Once upon a time"]
        assert reloaded.silent(0.2)
    request = ChatterAgent.named(name).sync.rendered()
    assert request[-1] == {"role": "assistant", "content": "Once upon a time"}
    assert Actor.objects.get(name=name).token is None
