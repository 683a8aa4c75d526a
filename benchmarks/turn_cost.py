"""Where a turn's time goes on PostgreSQL: by thread, by stage on the event loop, by statement of the server.

    python -m benchmarks.turn_cost [--busy 64] [--seconds 5]

The turns are those of benchmarks/turns.py. First they are run as they are: processor time of each of this
process's threads, and of the server's processes (where they are on this machine). Statements are told apart
where the server has ``pg_stat_statements`` in ``shared_preload_libraries``. Then once more under Python's
profiler, which makes everything slower and each stage by another factor: of that only the shares are told.

It makes a database of its own on the server that ``DATABASE_URL`` names and drops it at the end.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.databases import close_django, own_database
from benchmarks.processes import ROOT
from benchmarks.turns import receiver, turns

#: Stages on the event loop, as the functions (file, name) whose time they are; those of the later ones are
#: part of none before. What is left is the loop's own: callbacks, tasks, futures, contexts.
STAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "the method: state, log, timers": (("benchmarks/turns.py", "receive"),),
    "around the method: agent, arguments, result": (("agents/stub.py", "body"),),
    "the call: what may be called, with what": (
        ("agents/stub.py", "__getattr__"),
        ("agents/stub.py", "_turn_of"),
    ),
    "taking the actor": (("agents/taking.py", "take"),),
    "beginning and ending the body": (("agents/engine.py", "run_body"),),
    "making the commit: rows, record": (("agents/turn_commits.py", "commit_of"),),
    "after the commit: parts, events": (("agents/turn_commits.py", "settle"),),
    "metrics, signals": (("agents/observing/turns.py", "committed"),),
    "batches": (
        ("agents/batcher.py", "_flush"),
        ("agents/batcher.py", "_land"),
        ("agents/batcher.py", "submit"),
    ),
}
#: Whose time contains another's.
INSIDE = {"around the method: agent, arguments, result": "the method: state, log, timers"}


def main() -> None:
    options = parse()
    if options.database:
        measure(options)
        return
    with own_database("cost") as url, tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "DATABASE_URL": url, "VAR_DIR": folder, "SECRET_KEY": "benchmark", "ENV_FILE": "",
            "AGENT_APPS": "", "REDIS_URL": "", "DJANGO_SETTINGS_MODULE": "agentsite.settings",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "benchmarks.turn_cost", "--database", url, "--busy", str(options.busy),
             "--seconds", str(options.seconds)],
            env=environment, check=True,
        )  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, default=64, help="actors busy at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="a measurement (default: %(default)s)")
    parser.add_argument("--database", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    from agents.runtime import settle_down
    from agents.testing import on_runtime, shutdown

    agent = receiver()
    settle_down()
    run = lambda seconds: on_runtime(lambda engine: turns(agent, options.busy, seconds))  # noqa: E731
    run(0)  # a second to make actors, connections and plans
    statements = Statements(connection)
    committed, times = commits(connection), Times(connection)
    began = time.monotonic()
    run(options.seconds)
    seconds, count = time.monotonic() - began, commits(connection) - committed
    print(f"{options.busy} busy: {count / seconds:.0f} turns/s; microseconds of processor time a turn:")
    times.tell(count)
    statements.tell(count)
    with profiled() as profile:
        run(options.seconds)
    shares(profile)
    shutdown(0)
    close_django()


def commits(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(version) FROM agents_actor")
        return int(cursor.fetchone()[0] or 0)


class Times:
    """Processor time since it was made: of this process's threads, of the server's processes."""

    def __init__(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
            self._pids = [pid for (pid,) in cursor.fetchall()]
        self._threads, self._server = self._now()

    def _now(self) -> tuple[dict[str, float], float]:
        threads = {t.name: used(f"self/task/{t.native_id}") for t in threading.enumerate() if t.native_id}
        return threads, sum(used(str(pid)) for pid in self._pids)

    def tell(self, turns: int) -> None:
        threads, server = self._now()
        for name, time_used in sorted(threads.items()):
            spent = (time_used - self._threads.get(name, 0.0)) / turns
            if spent >= 0.5:
                print(f"  {spent:6.1f}  thread {name}")
        print(f"  {(server - self._server) / turns:6.1f}  PostgreSQL")


def used(process: str) -> float:
    """Microseconds of processor time; 0 for what isn't on this machine."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1000
    except FileNotFoundError:
        return 0.0


class Statements:
    """What the server counts of each statement, from here on."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        with connection.cursor() as cursor:
            cursor.execute("SHOW shared_preload_libraries")
            self._there = "pg_stat_statements" in cursor.fetchone()[0]
            if self._there:
                cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                cursor.execute("SELECT pg_stat_statements_reset()")

    def tell(self, turns: int) -> None:
        if not self._there:
            print("  (statements: the server has no pg_stat_statements)")
            return
        with self._connection.cursor() as cursor:
            cursor.execute(
                """SELECT total_exec_time * 1000 / %s, calls::float8 / %s, query FROM pg_stat_statements
                    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
                      AND total_exec_time * 1000 / %s >= 0.5
                    ORDER BY 1 DESC""",
                [turns] * 3,
            )
            print("  of that, statements (calls a turn):")
            for spent, calls, query in cursor.fetchall():
                print(f"  {spent:6.1f}  ({calls:5.3f}) {' '.join(query.split())[:90]}")


@contextmanager
def profiled() -> Iterator[cProfile.Profile]:
    """Profiles the event loop's thread."""
    from agents.testing import on_runtime

    profile = cProfile.Profile()

    async def switch(on: bool) -> None:
        profile.enable() if on else profile.disable()

    on_runtime(lambda engine: switch(True))
    yield profile
    on_runtime(lambda engine: switch(False))


def shares(profile: cProfile.Profile) -> None:
    functions: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]

    def spent(file: str, name: str) -> float:
        return sum(
            float(f[3])
            for (path, _, called), f in functions.items()
            if called == name and path.endswith(file)
        )

    whole = spent("base_events.py", "_run_once") - spent("selectors.py", "select")
    # The callers' own part of the benchmark is in the loop's.
    stages = {stage: sum(spent(*function) for function in whose) for stage, whose in STAGES.items()}
    for outer, inner in INSIDE.items():
        stages[outer] -= stages[inner]
    print("shares of the event loop's thread, under the profiler:")
    for stage, seconds in stages.items():
        print(f"  {seconds / whole:6.1%}  {stage}")
    print(f"  {1 - sum(stages.values()) / whole:6.1%}  the loop itself, and the callers")


if __name__ == "__main__":
    main()
