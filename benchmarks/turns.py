"""How many turns a second one process runs, by database and by how many actors are busy, beside pgbench.

    python -m benchmarks.turns [--busy 1,8,64] [--seconds 5] [--rounds 1] [--databases sqlite,postgresql]

A turn here is what receiving a text costs as a whole: a call of an agent's method through its stub, which
merges a patch into the state, appends one message and queues one task under an id. Each busy actor has one
caller in a closed loop. pgbench runs the same statements one turn at a time (benchmarks/store.py), in the
same minute, with one client and with one a processor.

On PostgreSQL it makes a database of its own on the server that ``DATABASE_URL`` names, on SQLite a file in a
temporary folder, and removes either at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = os.environ.get("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/postgres")
# Actors that pgbench spreads its turns over.
PGBENCH_ACTORS = 1000


def main() -> None:
    options = parse()
    if options.database:  # one database, in the process that main started for it
        load(options)
        return
    for database in options.databases.split(","):
        if database == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                child(options, "sqlite", f"sqlite:///{folder}/turns.sqlite3", folder)
        else:
            from benchmarks.store import admin

            name = f"bench_turns_{os.getpid()}"
            admin(f"CREATE DATABASE {name}")
            try:
                with tempfile.TemporaryDirectory() as folder:
                    child(options, "postgresql", SERVER.rpartition("/")[0] + f"/{name}", folder)
            finally:
                admin(f"DROP DATABASE {name} WITH (FORCE)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", default="1,8,64", help="actors busy at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="a measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of all measurements (default: %(default)s)")
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--database", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(options: argparse.Namespace, database: str, url: str, folder: str) -> None:
    environment = {
        **os.environ, "DATABASE_URL": url, "VAR_DIR": folder, "SECRET_KEY": "benchmark", "ENV_FILE": "",
        "AGENT_APPS": "", "DJANGO_SETTINGS_MODULE": "agentsite.settings", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "benchmarks.turns", "--database", database, "--busy", options.busy,
         "--seconds", str(options.seconds), "--rounds", str(options.rounds)],
        env=environment, check=True,
    )  # fmt: skip


def load(options: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from agents.runtime import settle_down
    from agents.testing import on_runtime, shutdown

    agent = receiver()
    settle_down()  # as every process does that runs turns
    for _ in range(options.rounds):
        rates: dict[int, float] = {}
        for busy in (int(n) for n in options.busy.split(",")):
            times = on_runtime(lambda engine, busy=busy: turns(agent, busy, options.seconds))
            rates[busy] = len(times) / options.seconds
            p50, p99 = (sorted(times)[int(len(times) * q)] * 1000 for q in (0.5, 0.99))
            print(
                f"{options.database}, {busy:3} busy: {rates[busy]:6.0f} turns/s   p50 {p50:6.2f} ms   "
                f"p99 {p99:6.2f} ms",
                flush=True,
            )
        if options.database == "postgresql":
            beside_pgbench(rates, options.seconds)
    shutdown(0)


def receiver() -> Any:
    from agents import Agent

    class Receiver(Agent[Any]):
        kind = "benchmark"

        async def receive(self, message: dict[str, Any]) -> None:
            await self.set_state({"from": message["from"], "texts": message["n"]})
            await self.messages.add("user", message["text"])
            await self.queue("process", id="process")

        async def process(self) -> None: ...

    return Receiver


async def turns(agent: Any, busy: int, seconds: float) -> list[float]:
    """How long each turn took, in seconds; a second of warm-up is not counted."""
    began = time.monotonic()
    times: list[float] = []

    async def caller(name: str) -> None:
        stub, n = agent.named(name), 0
        while (now := time.monotonic()) < began + 1 + seconds:
            n += 1
            await stub.receive(
                {"from": "+15550001111", "n": n, "text": "Where is my order A-17? It is late."}
            )
            if now >= began + 1:
                times.append(time.monotonic() - now)

    await asyncio.gather(*(caller(f"actor-{n}") for n in range(busy)))
    return times


def beside_pgbench(rates: dict[int, float], seconds: float) -> None:
    from agents.store import get_store
    from benchmarks.store import pgbench

    get_store().ensure([("bench", f"actor-{n}") for n in range(PGBENCH_ACTORS)])
    for clients in (1, os.cpu_count() or 1):
        latency, tps = pgbench(os.environ["DATABASE_URL"], clients, PGBENCH_ACTORS, seconds)
        ratios = ", ".join(f"{busy} busy {rate / tps:.2f}" for busy, rate in rates.items())
        print(f"pgbench, {clients} client(s): {tps:6.0f} turns/s   mean {latency:.2f} ms   ratios: {ratios}")


if __name__ == "__main__":
    main()
