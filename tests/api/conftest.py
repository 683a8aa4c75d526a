"""A site with talkers, and clients of its API: everybody of the cast, and the owner of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import Permission
from rest_framework.authtoken.models import Token

from agents.names import escape_name
from agents.runtime import shutdown
from tests.agents.sockets.conftest import at_rest
from tests.agents.sockets.site import Site, running
from tests.api.talkers.agents import TalkerAgent
from tests.waiting import wait_until

KIND = TalkerAgent.kind


@pytest.fixture(scope="module")
def talkers(django_db_setup: None) -> Iterator[Site]:
    """One for each file: it runs what is due, and would do so beside everybody's tests."""
    with running(AGENT_APPS="tests.api.talkers", agents={"API_WAIT": 60.0, "CALL_BUDGET": 5.0}) as site:
        yield site


@pytest.fixture
def site(talkers: Site, transactional_db: None) -> Iterator[Site]:
    """At the end of the test it is at rest: the tables are about to be emptied."""
    yield talkers
    assert talkers.process.poll() is None, talkers.output
    wait_until(at_rest, 30, "everything to be done")


@pytest.fixture(autouse=True)
def _runtime_ends() -> Iterator[None]:
    yield
    shutdown(0)


Sign = Callable[[Any], httpx.Client]


@pytest.fixture
def api(site: Site) -> Iterator[Sign]:
    """A client of the site for a user, by key; None: for nobody."""
    clients: list[httpx.Client] = []

    def sign(user: Any) -> httpx.Client:
        headers = {}
        if user is not None:
            headers["Authorization"] = f"Token {Token.objects.get_or_create(user=user)[0].key}"
        url = f"http://127.0.0.1:{site.port}"
        client = httpx.Client(base_url=url, headers=headers, timeout=90, trust_env=False)
        clients.append(client)
        return client

    yield sign
    for client in clients:
        client.close()


@pytest.fixture
def olga(transactional_db: None, django_user_model: Any) -> Any:
    """Owns the conversation of her name."""
    return django_user_model.objects.create_user("olga", "olga@example.org", "olga")


@pytest.fixture
def owner(api: Sign, olga: Any) -> httpx.Client:
    return api(olga)


@pytest.fixture
def operator(api: Sign, bob: Any) -> httpx.Client:
    """Bob, who may look everywhere."""
    return api(bob)


def at(path: str = "", kind: str = KIND, name: str = "olga") -> str:
    """An address of an actor in the API."""
    return f"/api/actors/{kind}/{escape_name(name)}/{path}"


def code(response: httpx.Response) -> str:
    """The code of an error."""
    found: str = response.json()["error"]["code"]
    return found


def grant(user: Any, *names: str) -> None:
    for name in names:
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))


def call(client: httpx.Client, method: str, *args: Any, name: str = "olga") -> Any:
    response = client.post(at(f"call/{method}/", name=name), json={"args": args})
    assert response.status_code == 200, response.text
    return response.json()["result"]
