"""``/health/``: what a load balancer and a monitor are told."""

from __future__ import annotations

import datetime as dt
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db.migrations.recorder import MigrationRecorder
from django.test import AsyncClient, Client
from django.utils import timezone

from agentsite import health
from scheduler.checks import check_pulses
from scheduler.models import Pulse, PulseName
from tests.servers import Postgres, Redis, Web, manage, missing, production, running
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_looks", health.Looks())
    monkeypatch.setattr(health, "_migrated", False)


@pytest.fixture(autouse=True)
def _local(settings: Any) -> None:
    settings.REDIS_URL = ""
    settings.AGENTS = {**settings.AGENTS, "DISPATCHER": "local"}


@pytest.fixture
def with_workers(settings: Any) -> Callable[[str], None]:
    def use(redis_url: str) -> None:
        settings.REDIS_URL = settings.CELERY_BROKER_URL = redis_url
        settings.AGENTS = {**settings.AGENTS, "DISPATCHER": "celery"}

    return use


def seen(name: PulseName, seconds_ago: float = 0.0) -> None:
    moment = timezone.now() - dt.timedelta(seconds=seconds_ago)
    Pulse.objects.update_or_create(name=name, defaults={"seen_at": moment})


def ready(query: str = "") -> tuple[int, Any]:
    answer = Client().get(f"/health/ready{query}")
    return answer.status_code, answer.json()


def test_a_process_that_answers_is_alive_whatever_the_host():
    answer = Client(headers={"host": "10.1.2.3:8000"}).get("/health/live")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer["Cache-Control"] == "no-store"


def test_only_reading_is_answered():
    assert Client().post("/health/live").status_code == 405
    assert Client().head("/health/ready").status_code == 200
    assert Client().get("/health/other").status_code == 404


def test_all_is_well_when_somebody_sweeps():
    seen(PulseName.SWEEP)
    assert ready() == (200, {"status": "ok", "parts": {"database": "ok", "migrations": "ok", "sweep": "ok"}})


async def test_under_asgi_it_says_the_same():
    await Pulse.objects.acreate(name=PulseName.SWEEP)
    answer = await AsyncClient().get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert (await AsyncClient().get("/health/live")).json() == {"status": "ok"}


def test_a_site_that_nobody_sweeps_is_degraded_and_takes_texts_in():
    code, said = ready()
    assert (code, said["status"]) == (200, "degraded")
    assert said["parts"]["sweep"] == "never seen: manage.py serve or run_scheduler is missing"
    assert ready("?strict")[0] == 503


@pytest.mark.parametrize(("age", "status"), [(50, "ok"), (70, "degraded")])
def test_a_sweep_is_missing_after_a_minute(age, status):
    seen(PulseName.SWEEP, age)
    assert ready()[1]["status"] == status


def test_a_site_without_beat_is_degraded(with_workers, tmp_path):
    if missing("redis-server"):
        pytest.skip("needs redis-server")
    with running(redis := Redis(tmp_path)):
        with_workers(redis.url)
        seen(PulseName.SWEEP)
        seen(PulseName.BEAT, 300)
        code, said = ready()
        assert (code, said["status"]) == (200, "degraded")
        assert said["parts"]["beat"].startswith("not seen for 300 s") or "30" in said["parts"]["beat"]
        assert said["parts"]["redis"] == "ok"


def test_a_redis_that_is_gone_or_hangs_is_named(with_workers):
    with_workers("redis://127.0.0.1:1/0")
    for name in PulseName:
        seen(name)
    assert ready()[1]["parts"]["redis"] == "ConnectionError"

    health._looks = health.Looks()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with_workers(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        code, said = ready()
    assert code == 200
    assert said["parts"]["redis"] in ("TimeoutError", "no answer within 3 s")
    assert said["parts"]["database"] == "ok"


def test_a_database_that_is_not_migrated_is_unavailable():
    seen(PulseName.SWEEP)
    migration = MigrationRecorder.Migration.objects.filter(app="scheduler").latest("pk")
    migration.delete()
    try:
        code, said = ready()
        assert (code, said["status"]) == (503, "unavailable")
        assert said["parts"]["migrations"] == "1 are not applied"
    finally:
        migration.save()


def test_a_part_that_hangs_is_looked_at_once_and_named_to_everybody(monkeypatch):
    seen(PulseName.SWEEP)
    looks, released = [], threading.Event()

    def hangs() -> None:
        looks.append(1)
        released.wait(30)

    monkeypatch.setattr(health, "PATIENCE", 0.2)
    monkeypatch.setattr(health, "VITAL", {"database": hangs})
    for _ in range(3):
        code, said = ready()
        assert (code, said["parts"]["database"]) == (503, "no answer within 0.2 s")
    assert len(looks) == 1
    released.set()
    monkeypatch.setattr(health, "VITAL", {"database": health.database})
    wait_until(lambda: ready()[1]["parts"]["database"] == "ok")


@pytest.mark.processes
@pytest.mark.postgres
@pytest.mark.skipif(bool(missing("initdb")), reason="needs PostgreSQL's programs")
def test_a_site_says_when_its_database_is_gone_and_when_it_is_back(tmp_path):

    with running(postgres := _Cluster(tmp_path)):
        env = production(postgres.url, "", tmp_path, AGENTS_DISPATCHER="local", TELNYX_PUBLIC_KEY="")
        subprocess.run(manage("migrate", "-v0"), env=env, cwd=Path(__file__).resolve().parents[1], check=True)
        with running(web := Web("web", tmp_path, env)), httpx.Client(base_url=web.url, timeout=30) as client:
            wait_until(lambda: client.get("/health/ready").json()["status"] == "ok", 30)
            postgres.stop()
            wait_until(lambda: client.get("/health/ready").status_code == 503, 60)
            assert client.get("/health/ready").json()["parts"]["database"] != "ok"
            assert client.get("/health/live").status_code == 200
            postgres.start()
            wait_until(lambda: client.get("/health/ready").json()["status"] == "ok", 60)


class _Cluster(Postgres):
    """One that ``running`` makes and starts."""

    def start(self) -> Any:
        return super().start() if self.data.exists() else self.create()


# manage.py check --database default


def found(databases: list[str] | None) -> list[str]:
    return [str(message.id) for message in check_pulses(None, databases=databases)]


def test_the_check_warns_when_nobody_sweeps_and_when_no_beat_was_seen(with_workers):
    assert found(None) == []
    assert found(["default"]) == ["scheduler.W001"]
    seen(PulseName.SWEEP, 70)
    assert found(["default"]) == ["scheduler.W001"]
    seen(PulseName.SWEEP)
    assert found(["default"]) == []
    with_workers("redis://127.0.0.1:1/0")
    assert found(["default"]) == ["scheduler.W002"]
    seen(PulseName.BEAT, 70)
    assert found(["default"]) == ["scheduler.W002"]
    seen(PulseName.BEAT)
    assert found(["default"]) == []


# The pulse


def test_a_pulse_is_written_no_more_often_than_its_interval():
    Pulse.objects.beat([PulseName.SWEEP])
    first = Pulse.objects.get().seen_at
    Pulse.objects.beat([PulseName.SWEEP])
    assert Pulse.objects.get().seen_at == first
    Pulse.objects.update(seen_at=first - dt.timedelta(seconds=Pulse.INTERVAL + 1))
    Pulse.objects.beat([PulseName.SWEEP])
    assert Pulse.objects.get().seen_at >= first
    assert Pulse.objects.ages()["sweep"] < Pulse.INTERVAL
