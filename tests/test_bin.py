"""``bin/dev`` in a copy of the project, as somebody uses it who has just cloned it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("agents", "agentsite", "bin", "conversations", "examples", "scheduler", "static", "templates")
FILES = ("constraints.txt", "manage.py", "pyproject.toml")


def environment(**more: str) -> dict[str, str]:
    """What a shell has that knows nothing of the project."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | more


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy without data, and with the packages of the environment that runs this test."""
    for name in COPIED:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    venv = tmp_path / ".venv"
    venv.mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("installed-"):
            (venv / part.name).symlink_to(part)
    stamp = subprocess.run(
        "cat pyproject.toml constraints.txt | cksum",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (venv / "installed-runtime").write_text(stamp.stdout)
    return tmp_path


@contextmanager
def running(project: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``bin/dev`` on a port, from the moment when it serves, and the file with what it says."""
    log = project / f"log-{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bin/dev", "--port", str(port)],
            cwd=project,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: b"Serving http" in log.read_bytes() or process.poll() is not None, timeout=90)
            assert process.poll() is None, log.read_text()
            yield process, log
        finally:
            process.kill()
            process.wait(60)


def manage(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [".venv/bin/python", "manage.py", *arguments],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def password(log: Path) -> str:
    found = re.search(r"Operator: operator   Password: (\S+)", log.read_text())
    assert found, log.read_text()
    return found[1]


def test_one_command_brings_a_site_that_answers_texts_and_shows_them_in_the_admin(project: Path) -> None:
    port = free_port()
    with running(project, port) as (process, log):
        said = manage(project, "text", "+15550001111", "hello", "--url", f"http://127.0.0.1:{port}")
        assert re.search(r"^\+15550009999: .*offline model", said, flags=re.M)
        assert "nudge" in manage(project, "list_tasks")

        with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as browser:
            page = browser.get("/admin/")
            form = {
                "csrfmiddlewaretoken": page.text.split('csrfmiddlewaretoken" value="', 1)[1].split('"', 1)[0],
                "username": "operator",
                "password": password(log),
            }
            page = browser.post(page.url, data=form)
            assert "What needs somebody" in page.text

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in log.read_text()
    first = password(log)
    assert (project / ".env").stat().st_mode & 0o777 == 0o600
    secret = (project / ".env").read_text()
    assert re.fullmatch(r"DEBUG=true\nSECRET_KEY=\S{50,}\n", secret)

    with running(project, free_port()) as (process, log):
        assert password(log) == first
        assert (project / ".env").read_text() == secret


def refused(project: Path, *arguments: str, **more: str) -> str:
    done = subprocess.run(
        ["bin/dev", *arguments],
        cwd=project,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert not (project / ".env").exists()
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "-1", "08", "http", "", "1 2"])
def test_a_port_that_is_none_is_refused_in_one_sentence(project: Path, port: str) -> None:
    assert f"--port must be a number from 1 to 65535, got '{port}'." in refused(project, "--port", port)


def test_a_port_without_a_number_and_unknown_arguments_are_refused(project: Path) -> None:
    assert "--port needs a number." in refused(project, "--port")
    assert "unknown argument: --prot" in refused(project, "--prot", "1")


def test_a_taken_port_is_refused_in_one_sentence(project: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is taken" in refused(project, "--port", str(port))


def test_a_machine_without_python_is_told_what_to_install(project: Path) -> None:
    tools = project / "tools"
    tools.mkdir()
    for name in ("bash", "basename", "cat", "cksum", "dirname", "env"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    shutil.rmtree(project / ".venv")
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # a Python that says it is too old
    old.chmod(0o755)
    assert "needs Python 3.11 or newer" in refused(project, PATH=str(tools))
