"""``manage.py run_scheduler`` as a process of its own, on the test database, with signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from agents.models import Actor
from agents.store import get_store
from agents.turn import Tell
from scheduler.models import Attempt, Task
from tests.processes import database_url
from tests.scheduler.clerks.agents import ClerkAgent
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def scheduler(log: Path, **agents: float) -> Iterator[subprocess.Popen[bytes]]:
    out: IO[bytes]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "run_scheduler"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "AGENT_APPS": "tests.scheduler.clerks",
                "DATABASE_URL": database_url(),
                "TEST_AGENTS": json.dumps(agents),
            },
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: "Scheduler started" in log.read_text(), 90, log.read_text())
            yield process
        finally:
            process.kill()
            process.wait(30)


def tell(method: str, payload: object = None) -> None:
    get_store().tell([Tell(ClerkAgent.kind, "alice", method, payload)])


def state() -> object:
    return Actor.objects.values_list("state", flat=True).get(name="alice")


def test_it_runs_what_is_due_and_stops_when_it_is_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tell("add", 2)
    with scheduler(log) as process:
        wait_until(lambda: state() == {"count": 2})
        tell("add", 3)  # from another process: only the sweep can find it
        wait_until(lambda: state() == {"count": 5})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    said = log.read_text()
    assert said.index("kinds: test-clerk") < said.index("Stopping") < said.index("Stopped after")
    assert not Task.objects.exists()


def test_the_first_signal_lets_a_running_turn_end(tmp_path: Path) -> None:
    log, rested = tmp_path / "log", tmp_path / "rested"
    tell("rest", str(rested))
    with scheduler(log, SHUTDOWN_GRACE=60.0) as process:
        wait_until(lambda: Attempt.objects.filter(outcome="running").exists())
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "Stopping" in log.read_text())
        rested.touch()
        assert process.wait(60) == 0
    assert state() == {"count": 0, "rested": True}
    assert Attempt.objects.get().outcome == "done"
    assert not Task.objects.exists()


def test_the_second_signal_stops_at_once_and_the_task_is_not_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tell("nap", 120)
    with scheduler(log, SHUTDOWN_GRACE=90.0) as process:
        wait_until(lambda: Attempt.objects.filter(outcome="running").exists())
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Stopping" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 128 + signal.SIGTERM  # not after the grace
    assert state() is None
    assert Task.objects.get().status == "pending"
