"""A site in a process of its own, and clients of its sockets."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from agents.names import escape_name
from tests.processes import database_url
from tests.servers import Redis, Worker
from tests.servers import running as processes
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 30.0  # seconds; a machine that runs other tests beside this one is slow


class Client:
    """One socket; frames as dicts. ``with`` closes it."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        #: Frames that ``until`` passed over, and that it looks at first the next time.
        self.passed: list[dict[str, Any]] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.ws.close()

    def send(self, kind: str, **fields: Any) -> None:
        self.ws.send(json.dumps({"v": 1, "kind": kind, **fields}))

    def recv(self, timeout: float = PATIENCE) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self.ws.recv(timeout=timeout))
        assert frame.pop("v") == 1
        return frame

    def until(self, *kinds: str, timeout: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """The next frame of one of these kinds (with these fields); others are kept for later."""

        def fits(frame: dict[str, Any]) -> bool:
            return frame["kind"] in kinds and all(frame.get(k) == v for k, v in fields.items())

        for frame in self.passed:
            if fits(frame):
                self.passed.remove(frame)
                return frame
        while not fits(frame := self.recv(timeout)):
            self.passed.append(frame)
        return frame

    def attach(self, **fields: Any) -> dict[str, Any]:
        self.send("attach", **fields)
        return self.until("attached")

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.send("call", id="call", method=method, args=args, kwargs=kwargs)
        frame = self.until("result", "error", id="call")
        assert frame["kind"] == "result", frame
        return frame["value"]

    def silent(self, seconds: float = 0.5) -> bool:
        """Whether nothing comes for a while."""
        try:
            self.passed.append(self.recv(seconds))
        except TimeoutError:
            return True
        return False

    def closed(self, timeout: float = PATIENCE) -> int:
        """The code with which the server closes, sooner or later; frames before that are passed over."""
        try:
            while True:
                data = self.ws.recv(timeout=timeout)
                self.passed.append(json.loads(data) if isinstance(data, str) and data[:1] == "{" else data)  # type: ignore[arg-type]
        except ConnectionClosed as closed:
            assert closed.rcvd is not None, "the connection was dropped"
            return closed.rcvd.code


class Site:
    """A running ``manage.py serve``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = wait_until(self._port, 90, "the server to start")

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def _port(self) -> int:
        assert self.process.poll() is None, self.output
        match = re.search(r"Serving http://127\.0\.0\.1:(\d+)/", self.output)
        return int(match[1]) if match else 0

    def refuses(self) -> bool:
        """Whether nobody gets in any more."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def url(self, kind: str, name: str, *, escaped: bool = False) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/agents/{kind}/{name if escaped else escape_name(name)}/"

    def client(
        self,
        kind: str,
        name: str,
        *,
        session: str | None = None,
        key: str | None = None,
        origin: str | None = "http://127.0.0.1",
        escaped: bool = False,
        **headers: str,
    ) -> Client:
        """A connected client; ``session`` and ``key`` are who it is. ``escaped``: the name is."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        if session:
            more["Cookie"] = f"sessionid={session}"
        if key:
            more["Authorization"] = f"Token {key}"
        ws = connect(
            self.url(kind, name, escaped=escaped),
            origin=None if origin is None else Origin(origin),
            proxy=None,
            additional_headers=more,
            open_timeout=PATIENCE,
            close_timeout=PATIENCE,
            max_size=None,
        )
        return Client(ws.__enter__())

    def admitted(self, kind: str, name: str, **who: Any) -> Client:
        """A client that has been greeted and attached from now on."""
        client = self.client(kind, name, **who)
        hello = client.until("hello")
        client.attach(cursor=hello["cursor"])
        return client

    def by_token(
        self, kind: str, name: str, /, *, attach: dict[str, Any] | None = None, **claims: Any
    ) -> Client:
        """A client without a session that a token admits."""
        from agents.sockets import connect_token

        client = self.client(kind, name, origin=None)
        client.send("attach", token=connect_token(kind, name, claims), **(attach or {}))
        return client

    def stop(self, timeout: float = 60) -> int:
        self.process.terminate()
        return self.ended(timeout)

    def ended(self, timeout: float = 60) -> int:
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code


def environment(agents: dict[str, Any] | None = None, **variables: str) -> dict[str, str]:
    """Of a process on this test's database; ``agents`` are settings of AGENTS."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.agents.sockets.settings",
        "AGENT_APPS": "tests.agents.sockets.chatters",
        "DATABASE_URL": database_url(),
        "TEST_AGENTS": json.dumps(agents or {}),
        "PYTHONWARNINGS": "default",
        **variables,
    }


@contextmanager
def running(*arguments: str, agents: dict[str, Any] | None = None, **variables: str) -> Iterator[Site]:
    """A site on this test's database, with the embedded scheduler; ``agents`` are settings of AGENTS."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "serve", "--port", "0", *arguments],
        cwd=ROOT,
        env=environment(agents, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    site = None
    try:
        site = Site(process)
        yield site
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(10)
        if site is not None:
            site._reader.join(5)
        assert process.stdout
        process.stdout.close()


@contextmanager
def deployed(
    folder: Path, *, pool: str = "threads", agents: dict[str, Any] | None = None, mark: str = ""
) -> Iterator[tuple[Site, Worker, Redis]]:
    """As in production: Redis, a site, and a Celery worker that runs what it tells.

    ``mark`` is what their connections to PostgreSQL are called: ``<mark>-site``, ``<mark>-worker``.
    """

    def variables(who: str) -> dict[str, str]:
        named = f"?application_name={mark}-{who}" if mark else ""
        return {
            "REDIS_URL": redis.url,
            "CELERY_BROKER_URL": redis.url,
            "AGENTS_DISPATCHER": "celery",
            "WORKER_POOL": pool,
            "DATABASE_URL": database_url() + named,
        }

    redis = Redis(folder)
    worker = Worker("worker", folder, environment(agents, **variables("worker")))
    with processes(redis, worker), running(agents=agents, **variables("site")) as site:
        worker.ready()
        yield site, worker, redis
