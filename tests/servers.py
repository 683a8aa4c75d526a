"""Servers of a test's own, which it may stop, kill and freeze: PostgreSQL, PgBouncer, Redis, our processes.

Everything listens on 127.0.0.1, on a free port, and keeps its files in the folder it is given.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
import redis

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]

STARTING = 60.0  # seconds that a server may take to answer
STOPPING = 60.0  # seconds that it may take to end


# Below those that the kernel gives to outgoing connections (net.ipv4.ip_local_port_range): of these one may
# have the port before the server does that was told of it, or while that server is down.
PORTS = range(10_000, 32_000)

_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, and that nobody else is given: each worker of a run has its share."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.SystemRandom().choice(PORTS[worker % 10 :: 10])
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


class Process:
    """A program that is started, ended in several ways, and started again; its output goes to one file."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self.env = dict(os.environ if env is None else env)
        self.user: str | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self.pid}>"

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Its children end with it, and a Ctrl+C is ours alone.
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
            )
        return self

    def up(self, answers: Callable[[], bool]) -> None:
        """Waits until it answers; fails as soon as it has ended instead."""
        wait_until(lambda: not self.running or answers(), STARTING, self.name)
        assert self.running, self.said()[-5000:]

    def wait(self, timeout: float = STOPPING) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def terminate(self, timeout: float = STOPPING) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL: the process and the children that it has."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOPPING)

    def freeze(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        """Of the process and all that descend from it."""
        return [self.pid, *descendants(self.pid)] if self.running else []

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            child, _, rest = stat.read_text().partition(" (")
            parents.setdefault(int(rest.rpartition(") ")[2].split()[1]), []).append(int(child))
    found, look = [], [pid]
    while look:
        children = parents.get(look.pop(), [])
        found += children
        look += children
    return found


# Redis


class Redis(Process):
    """One that keeps nothing: what it held is gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = [program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--dir", str(folder)]  # fmt: skip
        super().__init__("redis", command, folder)

    def start(self) -> Self:
        super().start()
        self.up(self.answers)
        return self

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=30, socket_connect_timeout=30)


# PostgreSQL


class Postgres(Process):
    """A cluster of its own. ``postgres`` may do everything; ``options`` are lines of its configuration."""

    def __init__(self, folder: Path, *, options: Mapping[str, object] | None = None, name: str = "agents"):
        self.port = free_port()
        self.name_of_database = name
        # Not below pytest's folders: it takes them from everybody but their owner, now and then, and the
        # server may be somebody else.
        home = Path(tempfile.mkdtemp(prefix="agents-postgres-"))
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        self.data = home / "postgres"
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 60,
            "log_line_prefix": "%m [%p] %a ",
            **(options or {}),
        }
        command = [program("postgres"), "-D", str(self.data)]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        super().__init__("postgres", command, folder)
        self.user = "postgres" if os.geteuid() == 0 else None  # which refuses to run as root

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{self.name_of_database}"

    def create(self, tablespace: Path | None = None) -> Self:
        """Makes the cluster and its database, and starts it. ``tablespace`` is where the database's tables
        lie, if not with everything else; an empty folder."""
        self.data.mkdir()
        if self.user:
            reachable(self.data.parent, self.user)
            shutil.chown(self.data, self.user, self.user)
        subprocess.run(
            [program("initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--no-sync", "--locale=C.UTF-8"],
            check=True, stdout=subprocess.DEVNULL, user=self.user, group=self.user,
            extra_groups=[] if self.user else None,
        )  # fmt: skip
        self.start()
        with self.connect("postgres") as connection:
            where = ""
            if tablespace is not None:
                if self.user:
                    shutil.chown(tablespace, self.user, self.user)
                connection.execute(f"CREATE TABLESPACE apart LOCATION '{tablespace}'")
                where = "TABLESPACE apart"
            connection.execute(f'CREATE DATABASE "{self.name_of_database}" {where}')
        return self

    def start(self) -> Self:
        super().start()
        self.up(self.answers)
        return self

    def answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str | None = None) -> psycopg.Connection[Any]:
        """In autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database or self.name_of_database,
            autocommit=True, connect_timeout=30, application_name="tests",
        )  # fmt: skip

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends sessions ("fast"), SIGQUIT does not even write ("immediate")."""
        assert self.process is not None
        self.process.send_signal(how)
        self.wait()

    def end_sessions(self) -> int:
        """Terminates every session but this one's own and those of tests."""
        with self.connect() as connection:
            ended = connection.execute(
                """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = %s AND pid <> pg_backend_pid() AND application_name <> 'tests'""",
                [self.name_of_database],
            ).fetchone()
        assert ended is not None
        return int(ended[0])


class PgBouncer(Process):
    """In transaction mode, before a cluster."""

    def __init__(self, folder: Path, postgres: Postgres, *, pool_size: int = 10) -> None:
        self.port = free_port()
        self.pool_size = pool_size
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/{postgres.name_of_database}"
        users = folder / "pgbouncer-users.txt"
        users.write_text('"postgres" ""\n')
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"""[databases]
* = host=127.0.0.1 port={postgres.port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = postgres
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
server_login_retry = 1
query_wait_timeout = 20
"""
        )
        super().__init__("pgbouncer", [program("pgbouncer"), str(settings)], folder)
        if os.geteuid() == 0:
            self.user = "postgres"
            reachable(folder, self.user)

    def start(self) -> Self:
        super().start()
        self.up(self.answers)
        return self

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=30):
                return True
        except OSError:
            return False

    def show(self, what: str) -> list[dict[str, Any]]:
        """``SHOW what`` of its console."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname="pgbouncer", autocommit=True
        ) as connection:
            cursor = psycopg.ClientCursor(connection).execute(f"SHOW {what}")
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def missing(*programs: str) -> str:
    """The first of these programs that is not on this machine; empty if all are."""
    return next((name for name in programs if find(name) is None), "")


def program(name: str) -> str:
    path = find(name)
    assert path is not None, f"{name} is not installed"
    return path


@functools.cache
def find(name: str) -> str | None:
    """Servers are not always on PATH."""
    versions = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    folders = os.pathsep.join([*versions, "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(name) or shutil.which(name, path=folders)


def reachable(folder: Path, user: str) -> None:
    """Lets another user into a folder of ours (pytest's are closed to others)."""
    for path in (folder, *folder.parents):
        if path.owner() != user and path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)


# Our own processes


def production(database_url: str, redis_url: str, folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a site in production, for processes of a test."""
    inherited = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ")
    return {
        **{key: os.environ[key] for key in inherited if key in os.environ},
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "SECRET_KEY": "only-for-tests-but-as-long-as-one-of-a-site-in-production-would-be",
        "ALLOWED_HOSTS": "127.0.0.1",
        "VAR_DIR": str(folder / "var"),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "AGENTS_DISPATCHER": "celery",
        "PYTHONUNBUFFERED": "1",
        **variables,
    }


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "manage.py", *arguments]


def celery(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "agentsite", *arguments]


class Web(Process):
    """``manage.py serve`` on a port that stays the same over restarts."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str], *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(name, manage("serve", "--port", str(self.port)), folder, env)

    def start(self) -> Self:
        before = self.said().count("Serving http://")
        super().start()
        self.up(lambda: self.said().count("Serving http://") > before)
        return self


class Worker(Process):
    """A Celery worker. ``ready`` waits until it has said so."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str], *options: str) -> None:
        command = celery("worker", "-n", f"{name}@%h", "--without-gossip", "--without-mingle", "--loglevel",
                         "INFO", *options)  # fmt: skip
        super().__init__(name, command, folder, env)

    def start(self) -> Self:
        self._before = self.said().count(" ready.")
        return super().start()

    def ready(self) -> Self:
        self.up(lambda: self.said().count(" ready.") > self._before)
        return self


class Beat(Process):
    def __init__(self, name: str, folder: Path, env: Mapping[str, str]) -> None:
        super().__init__(name, celery("beat", "--pidfile=", "--loglevel", "INFO"), folder, env)


@contextlib.contextmanager
def running(*processes: Process) -> Iterator[None]:
    """Starts them in this order, and kills what is left of them in the other."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in reversed(processes):
            process.thaw()
            process.kill()


def ended_well(*processes: Process, grace: float = STOPPING) -> None:
    """SIGTERM to all of them at once; each has to end by itself, and without an error."""
    for process in processes:
        assert process.process is not None
        process.process.terminate()
    for process in processes:
        assert process.wait(grace) == 0, process.said()[-3000:]
