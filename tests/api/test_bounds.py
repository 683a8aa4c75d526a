"""What waiting costs, and how much one client may ask for."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connection
from rest_framework.authtoken.models import Token
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.test import APIRequestFactory

from agents.http.throttling import Rate
from tests.agents.sockets.site import Site, running
from tests.api.conftest import at, call, code
from tests.api.talkers.agents import PublicAgent
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

WAITERS = 40


def threads(site: Site) -> int:
    said = Path(f"/proc/{site.process.pid}/status").read_text()
    found = re.search(r"Threads:\s*(\d+)", said)
    assert found
    return int(found[1])


def connections() -> int:
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_requests_that_wait_hold_no_thread_and_no_connection(site: Site, owner: httpx.Client) -> None:
    """OPS-04"""
    call(owner, "add", "user", "first")
    before = threads(site), len(site_waiters(site)), connections()
    with ThreadPoolExecutor(WAITERS) as clients:
        query = {"after": 1, "wait": 60}
        waiting = [clients.submit(owner.get, at("messages/"), params=query) for _ in range(WAITERS)]
        wait_until(lambda: len(site_waiters(site)) >= before[1] + WAITERS - 1, 30)
        time.sleep(1)  # by now most of them have been looked at, and wait
        held, connected = threads(site), connections()
        call(owner, "add", "user", "second")
        answers = [waiter.result().json()["results"] for waiter in waiting]
    assert [[message["content"] for message in answer] for answer in answers] == [["second"]] * WAITERS
    assert held < before[0] + WAITERS / 2
    assert connected < before[2] + WAITERS / 2


def site_waiters(site: Site) -> list[str]:
    """Connections of clients to the site that are established."""
    port = f":{site.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[1].endswith(port) and line.split()[3] == "01"]


def test_whoever_goes_away_waits_for_nothing(site: Site, owner: httpx.Client) -> None:
    before = len(site_waiters(site))
    with socket.create_connection(("127.0.0.1", site.port)) as wire:
        head = f"GET {at('messages/')}?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        wire.sendall(f"{head}Authorization: {owner.headers['Authorization']}\r\n\r\n".encode())
        wait_until(lambda: len(site_waiters(site)) > before)
    wait_until(lambda: len(site_waiters(site)) <= before)
    assert owner.get(at("messages/")).status_code == 200


@pytest.fixture
def strict(transactional_db: None) -> Any:
    agents = {"API_RATE": "5/min", "API_ANON_RATE": "2/min", "API_WAIT": 30.0}
    with running(AGENT_APPS="tests.api.talkers", agents=agents) as site:
        yield site


def test_clients_are_throttled_and_waiting_ends_with_the_server(strict: Site, olga: Any, bob: Any) -> None:
    url = f"http://127.0.0.1:{strict.port}"
    keys = [Token.objects.create(user=user).key for user in (olga, bob)]
    mine, other, nobody = (
        httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)
        for headers in (*({"Authorization": f"Token {key}"} for key in keys), {})
    )
    with mine, other, nobody:
        assert [mine.get(at("messages/")).status_code for _ in range(6)] == [200] * 5 + [429]
        refused = mine.get(at("messages/"))
        assert code(refused) == "throttled" and 0 < int(refused.headers["Retry-After"]) <= 60
        assert other.get(at("messages/")).status_code == 200
        public = at("messages/", PublicAgent.kind)
        assert [nobody.get(public).status_code for _ in range(3)] == [200, 200, 429]

        async def wait_and_stop() -> httpx.Response:
            async with httpx.AsyncClient(headers=dict(other.headers), timeout=60, trust_env=False) as client:
                before = len(site_waiters(strict))
                waiting = asyncio.create_task(client.get(f"{url}{at('messages/')}", params={"wait": 30}))
                while len(site_waiters(strict)) <= before:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
                strict.process.terminate()
                return await waiting

        answer = asyncio.run(wait_and_stop())
        assert (answer.status_code, answer.json()["results"]) == (200, [])
    assert strict.ended() == 0


@pytest.mark.parametrize("proxies", [None, 0, 1])
def test_an_address_that_a_client_makes_up_is_not_its_own(
    settings: Any, monkeypatch: pytest.MonkeyPatch, proxies: int | None
) -> None:
    """The last address of X-Forwarded-For is the proxy's word, where there is one; the rest is made up."""
    monkeypatch.setattr(api_settings, "NUM_PROXIES", proxies)
    settings.AGENTS = {**settings.AGENTS, "API_ANON_RATE": "2/min"}
    address = f"10.0.0.{proxies or 0}" if proxies is not None else "10.0.1.0"  # a rate of this case's own

    def allowed(n: int) -> bool:
        said = f"203.0.113.{n}" + (f", {address}" if proxies else "")
        peer = "127.0.0.1" if proxies else address
        request = Request(APIRequestFactory().get("/", HTTP_X_FORWARDED_FOR=said, REMOTE_ADDR=peer))
        return Rate().allow_request(request, None)

    assert [allowed(n) for n in range(4)] == [True, True, False, False]


def test_the_site_believes_no_proxy_that_it_was_not_told_of() -> None:
    assert api_settings.NUM_PROXIES == 0
