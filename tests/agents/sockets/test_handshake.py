"""The handshake: who is admitted, by what, and how those are told who are not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from rest_framework.authtoken.models import Token
from websockets.exceptions import InvalidStatus

from agents.models import Actor, Connection
from agents.sockets import connect_token
from tests.agents.sockets.site import Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = "test-chatter"
SignIn = Callable[[Any], str]


def logged(site: Site, *words: str) -> bool:
    """Whether there is one line of the log with all of these words."""
    return bool(
        wait_until(lambda: [line for line in site.lines if all(w in line for w in words)], 30, str(words))
    )


def test_an_operator_is_greeted_at_once(site: Site, operator: str, name: str) -> None:
    with site.client(KIND, name, session=operator) as client:
        hello = client.recv()
        assert hello.pop("connection")
        assert hello == {
            "kind": "hello",
            "actor": {"kind": KIND, "name": name},
            "cursor": 0,
            "protocol": 1,
        }
    assert not Actor.objects.filter(name=name).exists()  # connecting creates nothing


def test_a_stranger_who_is_signed_in_is_not_admitted(
    site: Site, charlie: Any, signed_in: SignIn, name: str
) -> None:
    with site.client(KIND, name, session=signed_in(charlie)) as client:
        client.send("attach")
        assert client.closed() == 4403
        assert client.passed == []
    assert logged(site, "socket refused", name)


def test_staff_without_the_permission_are_not_operators(
    site: Site, django_user_model: Any, signed_in: SignIn, name: str
) -> None:
    clerk = django_user_model.objects.create_user("clerk", is_staff=True)
    with site.client(KIND, name, session=signed_in(clerk)) as client:
        client.send("attach")
        assert client.closed() == 4403


def test_a_stranger_with_a_token_is_admitted(site: Site, charlie: Any, signed_in: SignIn, name: str) -> None:
    with site.client(KIND, name, session=signed_in(charlie)) as client:
        client.send("attach", token=connect_token(KIND, name, {"plan": "gold"}))
        assert client.recv()["kind"] == "hello"
        assert client.recv()["kind"] == "attached"
        (who,) = client.call("who")
        assert (who["user_id"], who["claims"]) == (str(charlie.pk), {"plan": "gold"})


def test_nobody_without_a_token_is_told_to_sign_in(site: Site, name: str) -> None:
    with site.client(KIND, name) as client:
        client.send("say", id="1", text="let me in")
        assert client.closed() == 4401
    assert not Actor.objects.filter(name=name).exists()


@pytest.mark.parametrize("first", ["{bad json", '{"v":1,"kind":"attach"}', b"\x00\x01"])
def test_the_first_frame_of_nobody_must_bring_a_token(site: Site, name: str, first: str | bytes) -> None:
    with site.client(KIND, name) as client:
        client.ws.send(first)
        assert client.closed() == 4401
        assert client.passed == []


def test_a_token_that_is_expired_or_for_another_actor_admits_nobody(site: Site, name: str) -> None:
    short = connect_token(KIND, name, max_age=0.2)
    time.sleep(0.3)
    for token in (short, connect_token(KIND, f"{name}-other"), connect_token("test-open", name), "nonsense"):
        with site.client(KIND, name) as client:
            client.send("attach", token=token)
            assert client.closed() == 4401
            assert client.passed == []


def test_the_token_may_come_until_ten_seconds_are_over(name: str) -> None:
    with running(agents={"SOCKET_ATTACH_TIMEOUT": 8.0}) as site:
        began = time.monotonic()
        with site.client(KIND, name, origin=None) as late, site.client(KIND, name, origin=None) as early:
            time.sleep(0.5)
            early.send("attach", token=connect_token(KIND, name))
            assert early.recv()["kind"] == "hello"
            assert late.closed() == 4401
            assert time.monotonic() - began >= 8.0
            early.send("ping")
            assert early.until("pong")
        assert logged(site, "no token within 8 s", "origin: none", "allowed hosts: 127.0.0.1")


def test_another_origin_is_refused_with_one_line_that_says_why(site: Site, operator: str, name: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        site.client(KIND, name, session=operator, origin="https://other.example")
    assert refused.value.response.status_code == 403
    logged(site, "socket refused", "https://other.example", "allowed hosts: 127.0.0.1, localhost")
    lines = [line for line in site.lines if "https://other.example" in line]
    assert len(lines) == 1


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:1", "https://a.example.org", "https://app.example.com:8443"]
)
def test_the_sites_own_pages_and_listed_origins_are_welcome(
    site: Site, operator: str, name: str, origin: str
) -> None:
    with site.client(KIND, name, session=operator, origin=origin) as client:
        assert client.recv()["kind"] == "hello"


def test_a_session_counts_for_nothing_without_an_origin(site: Site, operator: str, name: str) -> None:
    with site.client(KIND, name, session=operator, origin=None) as client:
        client.send("attach")
        assert client.closed() == 4401
    assert logged(site, name, "origin: none", "allowed hosts", "Authorization")


def test_a_program_comes_in_with_its_key(site: Site, bob: Any, charlie: Any, name: str) -> None:
    key = Token.objects.create(user=bob).key
    with site.client(KIND, name, key=key, origin=None) as client:
        assert client.recv()["kind"] == "hello"
        client.send("say", id="1", text="hi")
        assert client.until("ack")
        assert client.until("message")["message"]["content"] == "hi"
    with site.client(KIND, name, key=Token.objects.create(user=charlie).key, origin=None) as client:
        client.send("attach")
        assert client.closed() == 4403


@pytest.mark.parametrize("header", ["Token nonsense", "Token", "Bearer x", "Basic Ym9iOmJvYg=="])
def test_a_header_that_signs_nobody_in_is_refused(site: Site, name: str, header: str) -> None:
    with site.client(KIND, name, origin=None, Authorization=header) as client:
        assert client.closed() == 4401


@pytest.mark.parametrize(
    ("kind", "path"), [("no-such-kind", "a"), (KIND, "~zz"), (KIND, "a b"), (KIND, "x" * 256)]
)
def test_what_is_no_actor_is_not_found(site: Site, operator: str, kind: str, path: str) -> None:
    with site.client(kind, quote(path), session=operator, escaped=True) as client:
        assert client.closed() == 4404


def test_another_path_is_refused(site: Site) -> None:
    with pytest.raises(InvalidStatus) as refused:
        site.client("elsewhere/test-chatter", "a")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "name", ["+15005550006", "José", "a b", "user@example.org", "日本", "~", "..", "日本 +1"]
)
def test_any_name_connects_and_hears_broadcasts(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout", "hear")
        assert client.until("broadcast")["data"] == "hear"


def test_the_class_decides_and_an_error_of_its_own_is_no_refusal(
    site: Site, charlie: Any, signed_in: SignIn, name: str
) -> None:
    session = signed_in(charlie)
    kind = "test-doorman"
    with site.client(kind, name, session=session) as client:
        assert client.recv()["kind"] == "hello"
        client.call("close_up")
    with site.client(kind, name, session=session) as client:
        client.send("attach")
        assert client.closed() == 4403
    with site.client(kind, f"{name}-2", session=session, X_Denied="1") as client:
        client.send("attach")
        assert client.closed() == 4403
    with site.client(kind, f"{name}-2", session=session, X_Error="1") as client:
        assert client.closed() == 1011
    assert logged(site, "RuntimeError: cannot say")


def test_everybody_may_come_where_the_class_says_so(site: Site, name: str) -> None:
    with site.client("test-open", name) as client:
        assert client.recv()["kind"] == "hello"
        client.send("say", id="1", text="hello")
        assert client.until("message")["message"]["content"] == "hello"


def test_a_program_that_is_nobody_needs_a_token_even_there(site: Site, name: str) -> None:
    with site.client("test-open", name, origin=None) as client:
        client.send("attach")
        assert client.closed() == 4401
    with site.by_token("test-open", name) as client:
        assert client.recv()["kind"] == "hello"


def test_the_handshake_does_not_wait_for_a_turn(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="nap", method="nap", args=[20])
        wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
        with site.admitted(KIND, name, session=operator):
            assert Actor.objects.filter(name=name, token__isnull=False).exists()
            client.send("stop")
            assert client.until("error", id="nap")


def test_what_a_client_sends_before_it_is_admitted_is_kept_in_order(
    site: Site, operator: str, name: str
) -> None:
    with site.client(KIND, name, session=operator) as client:
        for n in range(20):
            client.send("say", id=str(n), text=f"early {n}")
        said = [client.until("message")["message"]["content"] for _ in range(20)]
        assert said == [f"early {n}" for n in range(20)]


def test_a_connection_has_its_row_as_long_as_it_lives(site: Site, operator: str, name: str) -> None:
    with site.client(KIND, name, session=operator, User_Agent="tests") as client:
        hello = client.recv()
        row = Connection.objects.get(name=name)
        assert row.id.hex == hello["connection"]
        assert "cookie" not in json.dumps(row.headers).lower()
    wait_until(lambda: not Connection.objects.filter(name=name).exists())
