"""Many sockets: what is said arrives once and in order, over as many database connections as before."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connection
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

from agents.models import Connection
from conversations.models import Message
from scheduler.models import Attempt
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import Site, deployed, running
from tests.processes import database_url
from tests.servers import missing
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]

T = TypeVar("T")
KIND = ChatterAgent.kind
SOCKETS = int(os.environ.get("TEST_SOCKETS", "100"))
SAYS = int(os.environ.get("TEST_SAYS", "5"))


async def open_socket(site: Site, name: str, session: str) -> ClientConnection:
    ws = await connect(
        site.url(KIND, name),
        origin=Origin("http://127.0.0.1"),
        additional_headers={"Cookie": f"sessionid={session}"},
        proxy=None,
        open_timeout=60,
        ping_interval=None,
    ).__aenter__()
    assert json.loads(await ws.recv())["kind"] == "hello"
    return ws


async def converse(site: Site, name: str, session: str) -> tuple[list[str], list[int]]:
    """Says SAYS things; what came back as messages, and the cursors of everything."""
    ws = await open_socket(site, name, session)
    await ws.send(json.dumps({"v": 1, "kind": "attach", "cursor": 0}))
    for n in range(SAYS):
        await ws.send(json.dumps({"v": 1, "kind": "say", "id": str(n), "text": f"{name} {n}"}))
    said: list[str] = []
    cursors: list[int] = []
    acks = 0
    while len(said) < SAYS or acks < SAYS:
        frame = json.loads(await asyncio.wait_for(ws.recv(), 120))
        acks += frame["kind"] == "ack"
        if "cursor" in frame and frame["kind"] != "attached":
            cursors.append(frame["cursor"])
            if frame["kind"] == "message":
                said.append(frame["message"]["content"])
            await ws.send(json.dumps({"v": 1, "kind": "seen", "cursor": frame["cursor"]}))
    await ws.close()
    return said, cursors


#: What one process may have: the pool's size. Sockets take from it what SOCKET_THREADS says, and no more.
BOUND = 12


def serving() -> AbstractContextManager[Site]:
    """A site whose connections can be told from those of others."""
    mark = "?application_name=sockets" if connection.vendor == "postgresql" else ""
    return running(DATABASE_URL=database_url() + mark)


def database_connections(of: str = "sockets") -> int:
    """How many connections a process has."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = %s AND datname = current_database()",
            [of],
        )
        return int(cursor.fetchone()[0])


def outside(fn: Callable[..., T], *args: Any) -> T:
    """In a thread: gives its connection back."""
    try:
        return fn(*args)
    finally:
        connection.close()


async def talk(site: Site, name: str, session: str, watched: Sequence[str]) -> dict[str, int]:
    """SOCKETS clients on as many actors say SAYS things each; all of it arrives once and in order.

    The most connections to PostgreSQL that each process named in ``watched`` had meanwhile.
    """
    most = dict.fromkeys(watched, 0)

    async def watch() -> None:
        while True:
            for process in watched:
                count = await asyncio.to_thread(outside, database_connections, process)
                most[process] = max(most[process], count)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        results = await asyncio.gather(*(converse(site, f"{name}-{n}", session) for n in range(SOCKETS)))
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    for n, (said, cursors) in enumerate(results):
        assert said == [f"{name}-{n} {m}" for m in range(SAYS)]
        assert cursors == list(range(1, len(cursors) + 1))
    return most


def test_many_sockets_on_many_actors(alone: None, operator: str, name: str) -> None:
    """``TEST_SOCKETS=500 TEST_SAYS=20`` is the long version."""
    with serving() as site:
        watched = ["sockets"] if connection.vendor == "postgresql" else []
        most = asyncio.run(talk(site, name, operator, watched))
        assert Message.objects.count() == SOCKETS * SAYS
        assert all(count <= BOUND for count in most.values())
        wait_until(lambda: not Connection.objects.exists(), 30)


@pytest.mark.postgres
@pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server")
def test_many_sockets_of_one_process_whose_turns_one_worker_runs(
    alone: None, operator: str, name: str, tmp_path: Path
) -> None:
    """As in production: what is said goes through the inbox to Celery, what comes of it through Redis."""
    with deployed(tmp_path, mark="sockets") as (site, worker, _):
        most = asyncio.run(talk(site, name, operator, ["sockets-site", "sockets-worker"]))
        assert Message.objects.count() == SOCKETS * SAYS
        assert Attempt.objects.filter(method="receive").count() == SOCKETS * SAYS
        assert 1 <= most["sockets-site"] <= BOUND
        assert 1 <= most["sockets-worker"] <= BOUND
        wait_until(lambda: not Connection.objects.exists(), 30)
        assert "Traceback" not in worker.said() + site.output


@pytest.mark.postgres
def test_database_connections_do_not_grow_with_sockets(alone: None, operator: str, name: str) -> None:
    """WS-06: 200 times connect, say, close; then 100 sockets that are idle."""

    async def cycle(site: Site, n: int) -> None:
        ws = await open_socket(site, f"{name}-{n % 10}", operator)
        await ws.send(json.dumps({"v": 1, "kind": "say", "id": f"{n}", "text": "hi"}))
        while json.loads(await ws.recv())["kind"] != "ack":
            pass
        await ws.close()

    async def cycles(site: Site) -> None:
        for start in range(0, 200, 10):
            await asyncio.gather(*(cycle(site, n) for n in range(start, start + 10)))

    async def idle(site: Site) -> tuple[int, int]:
        sockets = await asyncio.gather(*(open_socket(site, f"{name}-{n}", operator) for n in range(100)))
        await asyncio.sleep(3)
        await asyncio.to_thread(outside, wait_until, lambda: Connection.objects.count() == 100)
        counted: int = await asyncio.to_thread(outside, database_connections)
        here: int = await asyncio.to_thread(outside, Connection.objects.count)
        await asyncio.gather(*(ws.close() for ws in sockets))
        return counted, here

    with serving() as site:
        asyncio.run(cycles(site))
        after = database_connections()
        with_idle, sockets = asyncio.run(idle(site))
        assert sockets == 100
        assert 1 <= after <= BOUND
        assert with_idle <= BOUND
        wait_until(lambda: not Connection.objects.exists(), 20)
        assert database_connections() <= BOUND
