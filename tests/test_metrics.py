"""``GET /metrics``: who may ask, and what is told."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from agents.models import Actor
from agentsite import figures, metrics
from conversations.models import OutboundText, TextStatus
from scheduler.models import Lane, Pulse, PulseName, Task, TaskStatus
from tests.servers import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "let-me-see"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(metrics, "_figures", metrics.Figures())
    settings.AGENTS = {**settings.AGENTS, "METRICS_TOKEN": TOKEN}


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def scraped() -> dict[tuple[str, ...], float]:
    answer = Client(headers=BEARER).get("/metrics")
    assert answer.status_code == 200
    return samples(answer.content)


def actor(name: str, **columns: Any) -> Actor:
    return Actor.objects.create(kind="support", name=name, **columns)


def ago(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)


def task(actor: Actor, **columns: Any) -> Task:
    columns = {"method": "process", "task_id": uuid.uuid4().hex, "due_at": ago(0), **columns}
    return Task.objects.create(actor=actor, **columns)


def test_a_stranger_is_told_nothing():
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        answer = Client(headers=headers).get("/metrics")
        assert (answer.status_code, answer.content) == (401, b"")
        assert answer["WWW-Authenticate"] == "Bearer"
    assert Client(headers=BEARER).post("/metrics").status_code == 405


def test_without_a_token_only_a_development_site_answers_and_only_its_own_machine(settings: Any):
    settings.AGENTS = {**settings.AGENTS, "METRICS_TOKEN": ""}
    assert Client().get("/metrics").status_code == 401
    assert Client(headers={"authorization": "Bearer "}).get("/metrics").status_code == 401
    settings.DEBUG = True
    assert Client().get("/metrics").status_code == 200
    assert Client(REMOTE_ADDR="192.0.2.7").get("/metrics").status_code == 401
    assert Client(headers={"x-forwarded-for": "127.0.0.1"}).get("/metrics").status_code == 401


def test_prometheus_asks_by_address():
    answer = Client(headers={**BEARER, "host": "10.1.2.3:8000"}).get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain")


async def test_under_asgi_it_says_the_same():
    answer = await AsyncClient().get("/metrics", headers=BEARER)
    assert samples(answer.content)["agents_database_up",] == 1


def test_what_waits_and_what_is_stuck_is_read_from_the_database():
    alice, bob = actor("alice", alarm=ago(90)), actor("bob")
    actor("carol", alarm=ago(5), token=uuid.uuid4(), lease_expires_at=ago(-10))  # its turn runs
    actor("dan", alarm=ago(-3600))  # has time
    task(alice, lane=Lane.INBOX, created_at=ago(120))
    task(alice, lane=Lane.INBOX, created_at=ago(60))
    task(bob, lane=Lane.INBOX, created_at=ago(500), status=TaskStatus.PARKED, parked_at=ago(1))
    task(bob, due_at=ago(-3600))
    for status in (TextStatus.QUEUED, TextStatus.UNKNOWN, TextStatus.FAILED, TextStatus.DELIVERED):
        OutboundText.objects.create(
            actor=alice, uid=uuid.uuid4(), to_number="+15550001111", text="hi", status=status, due_at=ago(30)
        )
    Pulse.objects.create(name=PulseName.SWEEP, seen_at=ago(3))
    found = scraped()
    assert found["agents_actors_overdue", "support"] == 1
    assert 89 < found["agents_actors_overdue_seconds",] < 120
    assert found["agents_inbox_tasks", "support"] == 2
    assert 119 < found["agents_inbox_age_seconds",] < 150
    assert found["agents_tasks_parked", "support"] == 1
    assert [found["agents_outbox_texts", s] for s in ("queued", "unknown", "failed", "sending")] == [
        1,
        1,
        1,
        0,
    ]
    assert 29 < found["agents_outbox_age_seconds",] < 60
    assert 2 < found["agents_pulse_age_seconds", "sweep"] < 30
    assert not [key for key in found if "alice" in key]


def test_an_empty_database_has_figures_too():
    found = scraped()
    assert found["agents_inbox_age_seconds",] == found["agents_actors_overdue_seconds",] == 0
    assert found["agents_outbox_texts", "queued"] == 0


def test_heaps_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "MOST", 3)
    alice = actor("alice")
    for _ in range(5):
        task(alice, status=TaskStatus.PARKED, parked_at=ago(1))
        OutboundText.objects.create(
            actor=alice, uid=uuid.uuid4(), to_number="+15550001111", text="hi", status=TextStatus.UNKNOWN
        )
    found = scraped()
    assert found["agents_tasks_parked", "support"] == 3
    assert found["agents_outbox_texts", "unknown"] == 3


@pytest.mark.postgres
def test_every_figure_is_read_from_an_index():
    """With sequential scans forbidden the planner only scans a table where no index fits."""
    with CaptureQueriesContext(connection) as queries:
        figures.read()
    asked = [q["sql"] for q in queries if q["sql"].startswith("SELECT") and "FROM" in q["sql"]]
    assert 10 <= len(asked) <= 14
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            for sql in asked:
                cursor.execute(f"EXPLAIN {sql}")
                plan = "\n".join(row[0] for row in cursor.fetchall())
                assert "Seq Scan" not in plan.replace("Seq Scan on scheduler_pulse", ""), f"{sql}\n{plan}"
        finally:
            cursor.execute("RESET enable_seqscan")


def test_many_who_ask_cost_the_database_one_look():
    with CaptureQueriesContext(connection) as queries:
        for _ in range(3):
            scraped()
    assert not [q for q in queries if "scheduler_task" in q["sql"]]  # the look has a thread of its own
    assert metrics._figures.ask() is metrics._figures.ask()


def test_without_its_database_a_process_still_tells_of_itself(monkeypatch: pytest.MonkeyPatch):
    from django.db import OperationalError

    def fails() -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr(figures, "read", fails)
    found = scraped()
    assert found["agents_database_up",] == 0
    assert not [key for key in found if key[0] == "agents_inbox_age_seconds"]
    assert [key for key in found if key[0] == "process_start_time_seconds"]


COUNTING = """
import os
import django

django.setup()
from agents.observing import metrics
from agentsite.metrics import text

for turns in (2, 3):
    if not os.fork():
        metrics.turns.labels("support", "task", "done").inc(turns)
        metrics.turns_running.inc(turns)
        os._exit(0)
    os.wait()
metrics.turns.labels("support", "task", "done").inc()
print(text([]).decode())
"""


def test_with_a_folder_for_several_processes_one_answer_adds_them_up(tmp_path: Path) -> None:
    """As of a preforking web server: whichever child is asked tells what all of them have counted."""
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNTING],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'agents_turns_total{kind="support",origin="task",outcome="done"} 6.0' in done.stdout
    # What runs now is told without the processes' numbers.
    assert re.search(r"^agents_turns_running \d", done.stdout, re.MULTILINE)
    assert "agents_database_up" in done.stdout
