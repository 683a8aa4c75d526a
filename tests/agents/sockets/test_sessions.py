"""Being admitted ends: sign-out, a key that is taken back, a token that expires."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.test import Client as Browser
from rest_framework.authtoken.models import Token

from agents.models import Actor, Connection
from agents.sockets import connect_token, identity
from agents.sockets.identity import Identity, still_valid
from scheduler.models import Task
from tests.agents.sockets.chatters.agents import ChatterAgent, DoormanAgent
from tests.agents.sockets.conftest import at_rest
from tests.agents.sockets.site import Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind
SignIn = Callable[[Any], str]


def sign_out(session: str) -> None:
    browser = Browser()
    browser.cookies["sessionid"] = session
    browser.logout()
    assert not Session.objects.filter(session_key=session).exists()


def test_whoever_signed_out_elsewhere_is_refused_at_the_next_word(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        sign_out(operator)
        client.send("say", id="1", text="I am still here")
        assert client.closed() == 4401
        assert client.passed == []
    assert not Task.objects.exists()
    assert not Actor.objects.filter(name=name).exists()


@pytest.mark.parametrize(
    "frame",
    [
        {"kind": "call", "id": "1", "method": "add", "args": ["user", "x"]},
        {"kind": "stop", "id": "1"},
    ],
)
def test_calls_and_stops_are_refused_as_well(
    site: Site, operator: str, name: str, frame: dict[str, Any]
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        sign_out(operator)
        client.send(**frame)
        assert client.closed() == 4401
    assert not Actor.objects.filter(name=name).exists()


def test_raw_frames_are_refused_as_well(site: Site, operator: str, name: str) -> None:
    with site.client("test-raw", name, session=operator) as client:
        client.until("hello")
        sign_out(operator)
        client.ws.send("all hear me")
        assert client.closed() == 4401
    assert not Actor.objects.filter(kind="test-raw", name=name).exists()


@pytest.fixture(scope="module")
def _strict(django_db_setup: None, django_db_blocker: Any) -> Any:
    with django_db_blocker.unblock(), running(agents={"SOCKET_CHECK_INTERVAL": 0.5}) as site:
        yield site


@pytest.fixture
def strict(_strict: Site, transactional_db: None) -> Iterator[Site]:
    """A site that looks at sessions every half second."""
    yield _strict
    wait_until(at_rest, 30)


def test_a_socket_that_says_nothing_is_closed_within_the_interval(
    strict: Site, operator: str, name: str
) -> None:
    with strict.admitted(KIND, name, session=operator) as client:
        time.sleep(1.2)
        assert client.silent(0.1)
        sign_out(operator)
        assert client.closed() == 4401


def test_a_new_password_ends_the_sessions_of_the_old_one(
    strict: Site, bob: Any, operator: str, name: str
) -> None:
    with strict.admitted(KIND, name, session=operator) as client:
        bob.set_password("another")
        bob.save()
        assert client.closed() == 4401


def test_a_user_who_is_locked_out_is_closed(strict: Site, bob: Any, operator: str, name: str) -> None:
    key = Token.objects.create(user=bob).key
    with (
        strict.admitted(KIND, name, session=operator) as client,
        strict.admitted(KIND, name, key=key, origin=None) as program,
    ):
        bob.is_active = False
        bob.save()
        assert client.closed() == 4401
        assert program.closed() == 4401


def test_a_key_that_is_taken_back_closes_its_sockets(strict: Site, bob: Any, name: str) -> None:
    token = Token.objects.create(user=bob)
    with strict.admitted(KIND, name, key=token.key, origin=None) as client:
        token.delete()
        assert client.closed() == 4401


def test_a_token_ends_with_its_time_and_a_fresh_one_extends_it(strict: Site, name: str) -> None:
    with (
        strict.client(KIND, name, origin=None) as one,
        strict.client(KIND, name, origin=None) as two,
    ):
        began = time.monotonic()
        for client in (one, two):
            client.send("attach", token=connect_token(KIND, name, {"n": 1}, max_age=8.0))
            assert client.until("attached")
        two.send("attach", token=connect_token(KIND, name, {"n": 2}, max_age=60), cursor=0)
        assert two.until("attached")
        two.send("attach", token=connect_token(KIND, "other"))
        assert two.until("error")["code"] == "bad_token"
        assert one.closed() == 4401
        assert time.monotonic() - began >= 7  # a token says whole seconds
        time.sleep(0.6)
        assert two.call("echo", "on") == "on"


def test_a_fresh_token_says_anew_who_the_client_is(site: Site, name: str) -> None:
    with site.by_token(KIND, name, n=1) as client:
        assert client.until("attached")
        client.send("attach", token=connect_token(KIND, name, {"n": 2}), cursor=0)
        client.send("say", id="1", text="hello")  # at once, and yet as whom the fresh token says
        assert client.until("attached") and client.until("ack")
        wait_until(lambda: (Actor.objects.get(name=name).state or {}).get("last"))
        state = Actor.objects.get(name=name).state
        assert state is not None and state["last"]["claims"] == {"n": 2}
        assert [row.claims for row in Connection.objects.filter(name=name)] == [{"n": 2}]


def test_the_class_is_asked_about_a_fresh_token(site: Site, name: str) -> None:
    with site.by_token(DoormanAgent.kind, name, name="Ada") as client:
        assert client.until("attached")
        client.call("close_up")
        client.send("attach", token=connect_token(DoormanAgent.kind, name, {"name": "Bob"}))
        assert client.until("error")["code"] == "bad_token"
        client.send("say", id="1", text="as before")  # the old token goes on until its end
        assert client.until("ack")
        assert [row.claims for row in Connection.objects.filter(name=name)] == [{"name": "Ada"}]


def test_an_expired_token_is_refused_at_the_next_word(site: Site, name: str) -> None:
    with site.client(KIND, name, origin=None) as client:
        client.send("attach", token=connect_token(KIND, name, max_age=8.0))
        assert client.until("attached")
        time.sleep(8.1)
        client.send("say", id="1", text="one more thing")
        assert client.closed() == 4401
    assert not Actor.objects.filter(name=name).exists()


def test_a_signed_in_client_by_token_goes_with_its_session(
    site: Site, charlie: Any, signed_in: SignIn, name: str
) -> None:
    session = signed_in(charlie)
    with site.client(KIND, name, session=session) as client:
        client.send("attach", token=connect_token(KIND, name))
        assert client.until("attached")
        sign_out(session)
        client.send("say", id="1", text="still here")
        assert client.closed() == 4401


# Without a server


def test_many_clients_are_looked_at_in_two_queries(
    bob: Any, charlie: Any, signed_in: SignIn, django_assert_num_queries: Any
) -> None:
    sessions = [signed_in(bob) for _ in range(5)]
    clients = [Identity(bob, True, session_key=key) for key in sessions]
    clients.append(Identity(charlie, session_key=sessions[0]))  # another user's session
    clients.append(Identity(bob, session_key="gone"))
    clients.append(Identity())
    clients.append(Identity(expires_at=time.time() - 1))
    with django_assert_num_queries(2):
        assert still_valid(clients) == [True] * 5 + [False, False, True, False]


def test_a_session_that_an_older_secret_signed_counts_and_keeps_its_key(
    bob: Any, signed_in: SignIn, settings: Any
) -> None:
    store = SessionStore(signed_in(bob))
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new one"
    client = identity.identify(store, None, KIND)
    assert (client.user, client.session_key) == (bob, store.session_key)
    assert Session.objects.get().session_key == store.session_key
    assert still_valid([client]) == [True]
    settings.SECRET_KEY_FALLBACKS = []
    assert still_valid([client]) == [False]
    assert not identity.identify(SessionStore(store.session_key), None, KIND).user.is_authenticated


def test_nobody_is_whoever_has_no_session(bob: Any, signed_in: SignIn) -> None:
    assert not identity.identify(None, None, KIND).user.is_authenticated
    assert not identity.identify(SessionStore(None), None, KIND).user.is_authenticated
    assert not identity.identify(SessionStore("gone"), None, KIND).user.is_authenticated
    store = SessionStore(signed_in(bob))
    assert identity.identify(store, None, KIND).is_operator
    bob.is_active = False
    bob.save()
    assert not identity.identify(SessionStore(store.session_key), None, KIND).user.is_authenticated


@pytest.mark.parametrize("engine", ["cached_db", "cache", "file", "signed_cookies"])
def test_sessions_of_every_engine_are_understood(
    engine: str, bob: Any, signed_in: SignIn, settings: Any, tmp_path: Any
) -> None:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    key = signed_in(bob)
    client = Identity(bob, True, session_key=key)
    assert still_valid([client]) == [True]
    bob.is_active = False
    bob.save()
    assert still_valid([client]) == [False]


def test_a_backend_of_the_applications_own_is_asked_for_each_user(
    bob: Any, signed_in: SignIn, settings: Any
) -> None:
    settings.AUTHENTICATION_BACKENDS = ["tests.agents.sockets.test_sessions.Nightwatch"]
    client = Identity(bob, True, session_key=signed_in(bob))
    assert still_valid([client]) == [True]
    Nightwatch.closed = True
    try:
        assert still_valid([client]) == [False]
    finally:
        Nightwatch.closed = False


class Nightwatch(identity.ModelBackend):
    closed = False

    def get_user(self, user_id: Any) -> Any:
        return None if self.closed else super().get_user(user_id)
