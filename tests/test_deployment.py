"""The files that a site is deployed with say the same, and what they say runs."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import connection

from conversations.signatures import DEVELOPMENT_SIGNING_KEY
from scheduler.models import Pulse
from tests.faults.load import Load
from tests.processes import database_url
from tests.scheduler.test_workers import sweeps_are_sent
from tests.servers import Process, Redis, ended_well, free_port, missing, production, running
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]


def procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def bare(command: str) -> str:
    """Without what the shell adds."""
    return re.sub(r"\$\{PORT:-(\d+)\}", r"\1", re.sub(r'^(exec|PGOPTIONS="[^"]*") ', "", command))


def test_the_files_start_the_same_processes(compose: Any) -> None:
    services = compose["services"]
    assert bare(procfile()["release"]) == services["migrate"]["command"]
    for name in ("web", "worker", "beat"):
        assert bare(procfile()[name]) == services[name]["command"]
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    command = re.search(r"^CMD \[(.*)\]", image, re.MULTILINE)
    assert command is not None
    assert command[1].replace('"', "").replace(",", "") == services["web"]["command"]


def test_migrations_of_a_deploy_give_up_on_locks(compose: Any) -> None:
    options = compose["services"]["migrate"]["environment"]["PGOPTIONS"]
    assert f'PGOPTIONS="{options}"' in procfile()["release"]


def test_every_variable_is_one_that_the_site_reads(compose: Any) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    variables = set(compose["services"]["web"]["environment"])
    assert {name for name in variables if f"`{name}`" not in page} == set()


def test_containers_have_longer_to_end_than_the_grace(compose: Any) -> None:
    from agents import conf

    # The grace, what ends after it, and the interpreter.
    least = conf.DEFAULTS["SHUTDOWN_GRACE"] + conf.DEFAULTS["BUDGET_GRACE"] + 10
    for name in ("web", "worker"):
        assert int(compose["services"][name]["stop_grace_period"].removesuffix("s")) >= least


def test_what_the_image_leaves_out_is_not_needed_to_run() -> None:
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    needed = ["agents", "agentsite", "conversations", "scheduler", "examples", "templates", "static",
              "manage.py", "pyproject.toml", "constraints.txt"]  # fmt: skip
    assert set(left_out) & set(needed) == set()
    assert all((ROOT / name).exists() for name in needed)


def public_key(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sessions() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        return [pid for (pid,) in cursor.fetchall()]


@pytest.mark.processes
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server")
def test_the_procfile_makes_a_site_that_is_ready_and_keeps_to_its_connections(tmp_path: Path) -> None:
    """The processes themselves, with the variables of production; then 50 people who text at once."""
    sweeps_are_sent()
    port = free_port()
    redis = Redis(tmp_path)
    environment = production(
        database_url(),
        redis.url,
        tmp_path,
        PORT=str(port),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        AGENT_APPS="tests.faults.talkers",
        TEST_AGENTS=json.dumps(
            {
                "TELNYX_PUBLIC_KEYS": [public_key(DEVELOPMENT_SIGNING_KEY)],
                "SMS_LOOP_TEXTS": 0,
                "SMS_LOOP_SAME": 0,
            }
        ),
    )
    processes = [
        Process(name, ["sh", "-c", command], tmp_path, environment)
        for name, command in procfile().items()
        if name != "release"
    ]
    subprocess.run(procfile()["release"], shell=True, env=environment, cwd=ROOT, check=True, timeout=120)
    before = set(sessions())
    # It is libpq that reads PGOPTIONS.
    options = procfile()["release"].partition(" python")[0]
    ask = "from django.db import connection as c; print(*c.cursor().execute('SHOW lock_timeout').fetchone())"
    said = subprocess.run(
        f'{options} python manage.py shell -v0 -c "{ask}"', shell=True, env=environment, cwd=ROOT,
        check=True, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.strip() == "5s"
    with running(redis, *processes), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        def ready() -> bool:
            assert all(process.running for process in processes), [p.said()[-2000:] for p in processes]
            try:
                return client.get("/health/ready?strict").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, 90, "every part of the site")
        assert set(client.get("/health/ready").json()["parts"]) == {
            "beat", "database", "migrations", "redis", "sweep"
        }  # fmt: skip
        assert set(Pulse.objects.ages()) == {"beat", "sweep"}
        load = Load(lambda: str(client.base_url), DEVELOPMENT_SIGNING_KEY, people=50, every=0.5, seed=1)
        load.start()
        load.go()
        most = 0
        until = time.monotonic() + 6
        while time.monotonic() < until:
            most = max(most, len(set(sessions()) - before))
            time.sleep(0.1)
        load.rest(60)
        load.stop()
        print(f"{load.count} texts, {most} connections")
        assert load.count > 0
        # docs/deploying.md: DATABASE_POOL_SIZE for each process.
        assert most <= 10 * len(processes)
        ended_well(*processes)
