"""Starts the hand-written site: Gunicorn, Uvicorn for the sockets, a Celery worker, and beat."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import databases
from benchmarks.contestants import Contestant
from benchmarks.databases import moment, rows
from benchmarks.drivers import Socket
from benchmarks.processes import ROOT, free_port, site_environment, wait_for
from benchmarks.product import REDIS

SERVERS = ["gunicorn==27.0.1", "uvicorn[standard]==0.54.0"]


class Baseline(Contestant):
    label = "hand-written Django + Celery, tuned"
    about = (
        "Django, DRF, Celery, Channels with a row lock per actor; Gunicorn 4 x 2, two Uvicorn processes for"
        " sockets, a worker of two processes, beat; PostgreSQL, Redis"
    )

    def start(self) -> None:
        servers = self.install()
        self.url = self.stack.enter_context(databases.own_database("baseline"))
        self.port, self.sockets = free_port(), free_port()
        env = site_environment(
            "benchmarks.baseline.settings", self.folder, DATABASE_URL=self.url, REDIS_URL=REDIS
        )
        env["PYTHONPATH"] += f":{servers}"
        python, celery = sys.executable, [sys.executable, "-m", "celery", "-A", "benchmarks.baseline.celery"]
        subprocess.run(
            [python, "-m", "django", "migrate", "-v0", "--run-syncdb"], cwd=ROOT, env=env, check=True
        )
        databases.watch_statements(self.url)
        subprocess.run([*celery, "purge", "-f"], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        self.run(
            "web",
            [python, "-m", "gunicorn", "benchmarks.baseline.wsgi", "-b", f"127.0.0.1:{self.port}", "-w", "4",
             "--threads", "2", "--keep-alive", "60", "--log-level", "warning"],
            env,
        )  # fmt: skip
        self.run(
            "sockets",
            [python, "-m", "uvicorn", "benchmarks.baseline.asgi:application", "--port", str(self.sockets),
             "--workers", "2", "--lifespan", "off", "--no-access-log", "--log-level", "warning"],
            env,
        )  # fmt: skip
        self.run("worker", [*celery, "worker", "--without-gossip", "--without-mingle", "-l", "warning"], env)
        self.run("beat", [*celery, "beat", "--pidfile=", "-s", str(self.folder / "beat")], env)
        for port in (self.port, self.sockets):
            wait_for(f"http://127.0.0.1:{port}/health/", self.log, status=200)

    def install(self) -> str:
        home = self.var / "benchmarks/baseline"
        done = home / "installed.txt"
        if not done.exists() or done.read_text() != "\n".join(SERVERS):
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--target", str(home / "servers"), *SERVERS],
                check=True,
            )
            done.write_text("\n".join(SERVERS))
        return os.fspath(home / "servers")

    def socket(self, name: str) -> Socket:
        return Socket(self.sockets, f"/ws/{name}/", greets=False)

    def unfinished(self) -> int:
        query = "SELECT count(*) FROM baseline_task WHERE ran_at IS NULL AND due_at <= clock_timestamp()"
        return int(rows(self.url, query)[0][0])

    def answered(self) -> dict[str, float]:
        at = moment(self.url, "m.at")
        found = rows(
            self.url,
            f"""SELECT t.payload ->> 'text', min({at})
                  FROM baseline_task t JOIN baseline_message m
                    ON m.actor_id = t.actor_id AND m.role = 'assistant' AND m.at >= t.ran_at
                 WHERE t.method = 'process' GROUP BY t.id""",
        )
        return dict(found)

    def fired(self) -> list[tuple[float, float]]:
        due, ran = moment(self.url, "due_at"), moment(self.url, "ran_at")
        return rows(  # type: ignore[return-value]
            self.url, f"SELECT {due}, {ran} FROM baseline_task WHERE method = 'fire' AND ran_at IS NOT NULL"
        )

    def counters(self) -> dict[str, float]:
        return super().counters() | databases.counters(self.url)
