"""Connections of a whole site under a crowd: ``python -m tests.faults.crowd``.

Three sites, two workers and beat, as the Procfile starts them, with the settings of production. Fifty people
at once text, hold a WebSocket each, and look at pages of the admin, for two minutes. Meanwhile PostgreSQL is
asked who holds how many connections: no process may ever have more than ``DATABASE_POOL_SIZE``, as
docs/deploying.md says. Prints them; exits with 1 if one had more, or if a request was not answered with
success.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import django

from tests.servers import ROOT, Beat, Postgres, Redis, Web, Worker, manage, production, running

POOL = 16  # DATABASE_POOL_SIZE as it is shipped


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="default: 120")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--people", type=int, default=50)
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    # Of the site that is about to start; nothing of it is known yet.
    os.environ["DATABASE_URL"] = "postgres://postgres@127.0.0.1:1/agents"
    os.environ["LOG_LEVEL"] = "ERROR"
    os.environ["SECRET_KEY"] = production("", "", Path())["SECRET_KEY"]  # sessions are signed with it
    django.setup()
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        sys.exit(crowd(Path(folder), options))


def crowd(folder: Path, options: argparse.Namespace) -> int:
    from conversations.sandbox import Sandbox
    from tests.faults.soak import connect
    from tests.faults.stand import AGENTS

    folder.chmod(0o755)
    postgres, redis = Postgres(folder), Redis(folder)
    sandbox = Sandbox(delay=0.3)

    def environment(name: str) -> dict[str, str]:
        return production(
            postgres.url, redis.url, folder, PGAPPNAME=name, AGENT_APPS="tests.faults.talkers",
            TEST_AGENTS=json.dumps({**AGENTS, **sandbox.settings}),
        )  # fmt: skip

    sites = [Web(f"site-{n}", folder, environment(f"site-{n}")) for n in range(1, options.sites + 1)]
    workers = [
        Worker(f"worker-{n}", folder, environment(f"worker-{n}")) for n in range(1, options.workers + 1)
    ]
    beat = Beat("beat", folder, environment("beat"))
    try:
        postgres.create()
        redis.start()
        migrate = manage("migrate", "--verbosity", "0")
        subprocess.run(migrate, cwd=ROOT, env=environment("migrate"), check=True, timeout=120)
        with running(*workers, beat, *sites):
            for worker in workers:
                worker.ready()
            connect(postgres.port)
            session = operator()
            answers, most = asyncio.run(
                everybody(
                    [site.url for site in sites], sandbox.options.signing_key, session, postgres, options
                )
            )
    finally:
        sandbox.stop()
        for server in (redis, postgres):
            server.kill()
    print(f"answers: {dict(answers)}")
    for name, count in sorted(most.items()):
        print(f"{name:<12}{count:>4} of {POOL}")
    good = set(answers) <= {"text 200", "page 200", "socket hello"}
    return 0 if good and max(most.values()) <= POOL else 1


def operator() -> str:
    """The session of somebody who may look at everything."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    user = get_user_model()._default_manager.create_superuser("alice", "alice@example.org", "alice")
    client = Client()
    client.force_login(user)
    connection.close()
    return str(client.cookies["sessionid"].value)


async def everybody(
    urls: list[str], key: Any, session: str, postgres: Any, options: argparse.Namespace
) -> tuple[Counter[str], Counter[str]]:
    import httpx

    answers: Counter[str] = Counter()
    most: Counter[str] = Counter()
    until = time.monotonic() + options.seconds
    limits = httpx.Limits(max_connections=None)
    headers = {"Cookie": f"sessionid={session}"}
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False, headers=headers) as client:
        people = [
            asyncio.create_task(person(n, urls, client, key, session, until, answers))
            for n in range(options.people)
        ]
        watching = asyncio.create_task(asyncio.to_thread(watch, postgres, until, most))
        await asyncio.gather(*people, watching)
    return answers, most


async def person(
    n: int, urls: list[str], client: Any, key: Any, session: str, until: float, answers: Counter[str]
) -> None:
    from websockets.asyncio.client import connect
    from websockets.typing import Origin

    from agents.names import escape_name
    from conversations.management.commands.text import event
    from conversations.signatures import sign
    from tests.faults.load import OURS

    number, count, chance = f"+1555{n:07}", 0, random.Random(n)
    socket = f"{urls[n % len(urls)].replace('http', 'ws')}/ws/agents/test-talker/{escape_name(number)}/"
    async with connect(
        socket, origin=Origin("http://127.0.0.1"), proxy=None, open_timeout=60,
        additional_headers={"Cookie": f"sessionid={session}"},
    ) as ws:  # fmt: skip
        answers[f"socket {json.loads(await ws.recv())['kind']}"] += 1
        await ws.send(json.dumps({"v": 1, "kind": "attach", "cursor": 0}))
        reading = asyncio.create_task(read(ws))
        while time.monotonic() < until:
            await asyncio.sleep(chance.expovariate(1.0))
            count += 1
            body = json.dumps(event(number, OURS, f"{n}-{count}")).encode()
            signed = {"Content-Type": "application/json", **sign(body, key)}
            site = chance.choice(urls)
            texting = client.post(f"{site}/webhooks/telnyx/test-talker/", content=body, headers=signed)
            answers[f"text {await outcome(texting)}"] += 1
            page = chance.choice(("agents/actor", "conversations/message"))
            answers[f"page {await outcome(client.get(f'{site}/admin/{page}/'))}"] += 1
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def outcome(request: Awaitable[Any]) -> str:
    """The status of its answer, or what became of it instead."""
    import httpx

    try:
        return str((await request).status_code)
    except httpx.HTTPError as error:
        return repr(error.__cause__ or error)


async def read(ws: Any) -> None:
    async for _ in ws:
        pass


def watch(postgres: Any, until: float, most: Counter[str]) -> None:
    """Counts each process's connections, again and again."""
    with postgres.connect() as connection:
        while time.monotonic() < until:
            for name, count in counted(connection):
                most[name] = max(most[name], count)
            time.sleep(0.1)


def counted(connection: Any) -> Iterator[tuple[str, int]]:
    yield from connection.execute(
        "SELECT application_name, count(*) FROM pg_stat_activity"
        " WHERE datname = 'agents' AND application_name <> 'tests' GROUP BY 1"
    ).fetchall()


if __name__ == "__main__":
    main()
