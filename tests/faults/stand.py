"""A whole site of a test's own: PostgreSQL, PgBouncer, Redis, the web process, two workers, beat, a provider.

The web process and the second worker go to the database through PgBouncer, the first worker and beat
straight. The database lies on a small file system of its own, where this process may mount one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from conversations.sandbox import Sandbox
from tests.servers import (
    ROOT,
    Beat,
    PgBouncer,
    Postgres,
    Process,
    Redis,
    Web,
    Worker,
    free_port,
    manage,
    production,
)
from tests.waiting import wait_until

DISK = 1024**3  # bytes that the database may have

AGENTS: dict[str, Any] = {
    "SMS_PROVIDER": "telnyx",
    "SMS_TIMEOUT": 5.0,
    "SMS_STALE_AFTER": 10.0,
    # People here text as only machines do.
    "SMS_LOOP_TEXTS": 0,
    "SMS_LOOP_SAME": 0,
}


def fake_clock(seconds: int) -> dict[str, str]:
    """Variables that make a process's clock wrong; its monotonic one goes on. Empty without libfaketime."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        return {}
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # which makes Python's threads wait for each other for 30 s
        "NO_FAKE_STAT": "1",
    }


class Disk:
    """A file system in memory that can be filled: its limit is set to what is in it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.mounted = False

    def mount(self) -> bool:
        self.path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tests-faults", str(self.path)],
            capture_output=True,
            check=False,
        )
        self.mounted = done.returncode == 0
        return self.mounted

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
            self.mounted = False

    def fill(self) -> None:
        """Not a byte more. What is deleted later makes room again: this is to be called again and again."""
        # It is refused when somebody has written meanwhile.
        wait_until(lambda: self._limit(shutil.disk_usage(self.path).used), 10, "a full disk")

    def empty(self) -> None:
        assert self._limit(DISK)

    def _limit(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Stand:
    def __init__(self, folder: Path, **agents: Any) -> None:
        self.folder = folder
        self.disk = Disk(folder / "disk")
        self.postgres = Postgres(folder, options={"fsync": "off", "max_connections": 80})
        self.pgbouncer = PgBouncer(folder, self.postgres, pool_size=12)
        self.redis = Redis(folder)
        port = free_port()
        self.sandbox = Sandbox(delay=0.3, doubled=0.1, shuffled=0.1)
        settings = {**AGENTS, **self.sandbox.settings, "SITE_URL": f"http://127.0.0.1:{port}", **agents}
        self.variables = {
            "AGENT_APPS": "tests.faults.talkers",
            "TEST_AGENTS": json.dumps({**settings, "WEBHOOK_BASE_URL": settings["SITE_URL"]}),
            "LOG_LEVEL": "INFO",
        }
        pooled = {"DATABASE_URL": self.pgbouncer.url, "DATABASE_TRANSACTION_POOLER": "true"}
        self.web = Web("web", folder, self.environment(**pooled), port=port)
        self.one = Worker("one", folder, self.environment())
        self.two = Worker("two", folder, self.environment(**pooled))
        self.beat = Beat("beat", folder, self.environment())
        self.second_beat = Beat("second-beat", folder, self.environment())

    def environment(self, **variables: str) -> dict[str, str]:
        return production(self.postgres.url, self.redis.url, self.folder, **{**self.variables, **variables})

    @property
    def ours(self) -> list[Process]:
        return [self.web, self.one, self.two, self.beat]

    def start(self) -> None:
        self.postgres.create(self.disk.path if self.disk.mount() else None)
        self.redis.start()
        self.pgbouncer.start()
        subprocess.run(
            manage("migrate", "--verbosity", "0"), cwd=ROOT, env=self.environment(), check=True, timeout=120
        )
        for process in (self.one, self.two, self.beat, self.web):
            process.start()
        self.one.ready(), self.two.ready()

    def stop(self) -> None:
        for process in (self.second_beat, *self.ours, self.pgbouncer, self.redis):
            process.thaw()
            process.kill()
        self.sandbox.stop()
        if self.postgres.running:
            self.postgres.thaw()
            self.postgres.stop()
        self.postgres.kill()
        self.disk.unmount()

    # The database

    def ask(self, query: str, *params: Any) -> Any:
        """The first column of the first row."""
        with self.postgres.connect() as connection:
            row = connection.execute(query, params).fetchone()
        return row[0] if row else None

    def unfinished(self) -> str:
        """What is still to be done but the ticks, which go on for ever; empty when nothing is."""
        try:
            with self.postgres.connect() as connection:
                row = connection.execute(
                    """SELECT (SELECT count(*) FROM scheduler_task
                                WHERE method <> 'tick' AND status = 'pending'),
                              (SELECT count(*) FROM conversations_outboundtext
                                WHERE status IN ('queued', 'sending')),
                              (SELECT count(*) FROM agents_actor WHERE token IS NOT NULL),
                              (SELECT count(*) FROM agents_actor
                                WHERE alarm < now() - interval '2 seconds')"""
                ).fetchone()
        except psycopg.Error as error:
            return f"the database does not answer: {error}"
        assert row is not None
        names = ("tasks", "texts", "leases", "overdue actors")
        return ", ".join(f"{count} {name}" for count, name in zip(row, names, strict=True) if count)

    def settle(self, timeout: float) -> str:
        """Waits until everything is done; what is not when the time is up."""
        deadline = time.monotonic() + timeout
        while (left := self.unfinished()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


@contextlib.contextmanager
def stand(**agents: Any) -> Iterator[Stand]:
    """In a folder that every user may enter: some of these servers refuse to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o755)
    built = Stand(folder, **agents)
    try:
        built.start()
        yield built
    finally:
        built.stop()
        if not os.environ.get("KEEP_FAULTS"):
            shutil.rmtree(folder, ignore_errors=True)
