"""``manage.py serve`` as a process of its own, with signals, over real connections."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from agents.models import Actor
from scheduler.models import Attempt
from tests.processes import database_url
from tests.scheduler.clerks.agents import ClerkAgent
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A running ``manage.py serve``: its port, and what it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for_port(self) -> int:
        def printed() -> int:
            assert self.process.poll() is None, self.output
            match = re.search(r"Serving http://127\.0\.0\.1:(\d+)/", self.output)
            return int(match[1]) if match else 0

        return wait_until(printed, timeout=90)

    def wait_for_flight(self) -> None:
        wait_until(lambda: "in flight" in self.lines)

    def end(self, timeout: float = 60) -> int:
        code = self.process.wait(timeout)
        self._reader.join(30)
        return code


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Any]:
    """Starts the command on a free port with the tiny application, unless the environment says otherwise."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "serve", "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.agents.serve_app", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    served = Served(process)
    try:
        served.port = served.wait_for_port()  # type: ignore[attr-defined]
        yield served
    finally:
        process.kill()
        served.end()
        assert process.stdout
        process.stdout.close()


def get(port: int, path: str) -> http.client.HTTPResponse:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        return response


def is_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_request_in_flight_is_answered_while_new_connections_are_refused(
    name: signal.Signals, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    with serving("--no-scheduler", GO_ON=str(go_on)) as served, ThreadPoolExecutor() as pool:
        slow = pool.submit(get, served.port, "/slow")
        served.wait_for_flight()
        served.process.send_signal(name)
        wait_until(lambda: is_refused(served.port))
        assert not slow.done()
        go_on.touch()
        response = slow.result()
        assert (response.status, response.body) == (200, b"answer")  # type: ignore[attr-defined]
        assert response.headers["Connection"] == "close"
        assert served.end() == 0
        assert f"Serving http://127.0.0.1:{served.port}/ (without a scheduler)" in served.lines
        assert re.match(r"Stopped after \d+\.\d s$", served.lines[-1])


def test_an_idle_socket_is_closed_with_going_away() -> None:
    with serving("--no-scheduler") as served, connect(f"ws://127.0.0.1:{served.port}/") as ws:
        ws.send("hello")
        assert ws.recv(timeout=30) == "echo hello"
        served.process.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert served.end() == 0


def test_a_frame_in_flight_is_answered_before_its_socket_is_closed(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    with (
        serving("--no-scheduler", GO_ON=str(go_on)) as served,
        connect(f"ws://127.0.0.1:{served.port}/") as ws,
    ):
        ws.send("slow")
        served.wait_for_flight()
        served.process.terminate()
        wait_until(lambda: is_refused(served.port))
        go_on.touch()
        assert ws.recv(timeout=30) == "echo slow"
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert served.end() == 0


@pytest.mark.parametrize("code", [1000, 1009, 1011, 1013, 4403])
def test_an_application_may_close_its_socket_with_any_code_and_a_reason(code: int) -> None:
    with serving("--no-scheduler") as served, connect(f"ws://127.0.0.1:{served.port}/") as ws:
        ws.send(str(code))
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, "ä" * 61)


def test_a_connection_that_is_kept_open_does_not_hold_up_the_end() -> None:
    with (
        serving("--no-scheduler") as served,
        closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)) as connection,
        socket.create_connection(("127.0.0.1", served.port)),  # one that never asked for anything
    ):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"answer"
        served.process.terminate()
        assert served.end(30) == 0  # not after the grace


def test_a_request_that_does_not_end_is_cut_off_after_the_grace() -> None:
    with serving("--no-scheduler", GRACE="1") as served, ThreadPoolExecutor() as pool:
        never = pool.submit(get, served.port, "/never")
        served.wait_for_flight()
        began = time.monotonic()
        served.process.terminate()
        assert served.end() == 0
        assert time.monotonic() - began >= 1
        assert isinstance(never.exception(), (http.client.HTTPException, OSError))
        assert "1 requests or sockets did not end within 1 s" in served.output


def test_the_second_signal_stops_at_once() -> None:
    with serving("--no-scheduler") as served, ThreadPoolExecutor() as pool:
        never = pool.submit(get, served.port, "/never")
        served.wait_for_flight()
        served.process.terminate()
        wait_until(lambda: is_refused(served.port))
        served.process.terminate()
        assert served.end(30) == 128 + signal.SIGTERM  # not after the grace
        assert never.exception() is not None


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "serve", *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.agents.serve_app"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_taken_port_is_refused_in_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = manage("--no-scheduler", "--port", str(port))
    assert done.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.django_db(transaction=True)
def test_runserver_knows_websockets() -> None:
    port = free_port()
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.agents.serve_app",
        "ALLOWED_HOSTS": "127.0.0.1",
        "DATABASE_URL": database_url(),  # it looks which migrations there are
    }
    process = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: not is_refused(port), timeout=90)
        assert get(port, "/").status == 200
        with connect(f"ws://127.0.0.1:{port}/") as ws:
            ws.send("hello")
            assert ws.recv(timeout=30) == "echo hello"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("process", ["worker", "beat"])
def test_neither_twisted_nor_views_are_in_processes_that_do_not_serve(process: str) -> None:
    code = f"""
import sys
import celery.bin.{process}
from agentsite.celery import app
app.loader.init_worker()
print({{"twisted", "agentsite.urls"}} & {{*sys.modules}}, "agents.engine" in sys.modules)
"""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "agentsite.settings", "SECRET_KEY": "x", "ENV_FILE": ""}
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env) == b"set() True\n"


@pytest.mark.parametrize("port", ["-1", "65536", "http", "80.5", ""])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    done = manage("--no-scheduler", f"--port={port}")
    assert done.returncode == 2
    assert "a port is a number from 0 to 65535" in done.stderr


def test_an_address_that_is_none_is_refused() -> None:
    done = manage("--no-scheduler", "--host", "192.0.2.1", "--port", "0")
    assert done.returncode == 1
    assert "Cannot listen on 192.0.2.1:0" in done.stderr


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_other_addresses_of_the_machine_can_be_listened_on(host: str) -> None:
    from agents.server import bind

    with bind(host, 0) as bound:
        assert bound.getsockname()[1] > 0


def test_the_development_site_serves_the_admin_and_its_static_files_without_a_warning(tmp_path: Path) -> None:
    with serving(
        "--no-scheduler",
        DJANGO_SETTINGS_MODULE="agentsite.settings",
        DEBUG="true",
        VAR_DIR=str(tmp_path),
        PYTHONWARNINGS="default",
    ) as served:
        page = get(served.port, "/admin/login/")
        assert page.status == 200
        style = re.search(rb'href="(/static/admin/css/base[^"]*\.css)"', page.body)  # type: ignore[attr-defined]
        assert style
        css = get(served.port, style[1].decode())
        assert (css.status, css.headers.get_content_type()) == (200, "text/css")
        served.process.terminate()
        assert served.end() == 0
        assert "Warning" not in served.output


@pytest.mark.django_db(transaction=True)
def test_the_embedded_scheduler_runs_what_is_due_and_a_running_turn_ends_before_the_process(
    tmp_path: Path,
) -> None:
    rested = tmp_path / "rested"
    clerk = ClerkAgent.named("alice")
    with serving(
        DJANGO_SETTINGS_MODULE="tests.settings",
        AGENT_APPS="tests.scheduler.clerks",
        DATABASE_URL=database_url(),
        TEST_AGENTS='{"SHUTDOWN_GRACE": 60.0}',
    ) as served:
        assert "(with the embedded scheduler)" in served.output
        clerk.sync.tell("add", 2)
        wait_until(lambda: Actor.objects.get().state == {"count": 2})
        clerk.sync.tell("rest", str(rested))
        wait_until(lambda: Attempt.objects.filter(outcome="running").exists())
        served.process.terminate()
        wait_until(lambda: is_refused(served.port))
        rested.touch()
        assert served.end() == 0
    assert Actor.objects.get().state == {"count": 2, "rested": True}
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"done"}
    assert "Traceback" not in served.output
