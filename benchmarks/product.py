"""The product as a contestant: as it is deployed, and as it comes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import uuid
from typing import Any

from benchmarks import databases
from benchmarks.contestants import Contestant
from benchmarks.databases import moment, now, rows
from benchmarks.drivers import Socket, request
from benchmarks.processes import ROOT, free_port, site_environment, wait_for

OURS = "+15550009999"
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/15")


class Product(Contestant):
    """PostgreSQL, Redis, a web process, one Celery worker and beat, and texts as Telnyx signs them."""

    label = "this project"
    about = (
        "one web process, one Celery worker (threads) and beat; PostgreSQL, Redis; texts are Telnyx's signed"
        " webhooks, with the check for duplicates"
    )

    def start(self) -> None:
        self.url = self.stack.enter_context(self.database())
        self.key = self._key()
        self.port = free_port()
        self.env = self.environment()
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=self.env, check=True)
        if not self.url.startswith("sqlite"):
            databases.watch_statements(self.url)
        self.processes()
        wait_for(f"http://127.0.0.1:{self.port}/health/ready?strict", self.log, status=200)

    def database(self) -> Any:
        return databases.own_database("jobs")

    def processes(self) -> None:
        python, celery = sys.executable, [sys.executable, "-m", "celery", "-A", "agentsite"]
        self.run("web", [python, "manage.py", "serve", "--port", str(self.port)], self.env)
        self.run("worker", [*celery, "worker", "--without-gossip", "--without-mingle"], self.env)
        self.run("beat", [*celery, "beat", "--pidfile=", "-s", str(self.folder / "beat")], self.env)

    def environment(self, **more: str) -> dict[str, str]:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        more = {"REDIS_URL": REDIS, "AGENTS_DISPATCHER": "celery", **more}
        return site_environment(
            "benchmarks.jobs_app.settings",
            self.folder,
            DATABASE_URL=self.url,
            AGENT_APPS="benchmarks.jobs_app",
            TELNYX_PUBLIC_KEYS=base64.b64encode(public).decode(),
            **more,
        )

    @staticmethod
    def _key() -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.generate()

    def text(self, kind: str, sender: str, text: str) -> bytes:
        """Signed now: it is good for 300 s."""
        from conversations.signatures import sign

        body = json.dumps(event(sender, text)).encode()
        return request(self.port, f"/webhooks/telnyx/{kind}/", body, **sign(body, self.key))

    def socket(self, name: str) -> Socket:
        return Socket(self.port, f"/ws/agents/echo/{name}/")

    def unfinished(self) -> int:
        due_now = f"due_at <= {now(self.url)}"
        ((due,),) = rows(
            self.url, f"SELECT count(*) FROM scheduler_task WHERE status = 'pending' AND {due_now}"
        )
        return int(due)

    def answered(self) -> dict[str, float]:
        found = rows(
            self.url,
            f"""SELECT m.content, min({moment(self.url, "r.committed_at")})
                 FROM conversations_message m JOIN conversations_message a
                   ON a.actor_id = m.actor_id AND a.role = 'assistant' AND a.seq > m.seq
                 JOIN agents_turnrecord r
                   ON r.actor_id = a.actor_id AND a.seq BETWEEN r.first_seq AND r.last_seq
                WHERE m.role = 'user' GROUP BY m.id, m.content""",
        )
        return {text: float(at) for text, at in found}

    def stages(self) -> dict[str, dict[str, float]]:
        if self.url.startswith("sqlite"):
            return {}
        stages = {
            "taken_in": "received.due_at",
            "first_turn": "received.started_at",
            "second_turn": "processed.started_at",  # begins in the commit of the first, has its moment
            "answer": "answered.committed_at",
        }
        moments = ", ".join(moment(self.url, at) for at in stages.values())
        found = rows(
            self.url,
            f"""SELECT received.payload ->> 'text', {moments}
                 FROM scheduler_attempt received
                 CROSS JOIN LATERAL (
                   SELECT * FROM scheduler_attempt later
                    WHERE later.actor_id = received.actor_id AND later.method = 'process'
                      AND later.started_at >= received.started_at
                    ORDER BY later.started_at LIMIT 1
                 ) processed
                 JOIN agents_turnrecord answered ON answered.turn_id = processed.turn_id
                WHERE received.method = 'receive'""",
        )
        return {text: dict(zip(stages, at, strict=True)) for text, *at in found}

    def fired(self) -> list[tuple[float, float]]:
        due, started = moment(self.url, "due_at"), moment(self.url, "started_at")
        return rows(  # type: ignore[return-value]
            self.url, f"SELECT {due}, {started} FROM scheduler_attempt WHERE method = 'fire'"
        )

    def counters(self) -> dict[str, float]:
        return super().counters() | databases.counters(self.url)


class Embedded(Product):
    """One process on a SQLite file, with everything in it: what ``bin/dev`` starts."""

    label = "this project, embedded"
    about = "what bin/dev starts: one process on SQLite, with the scheduler and the channel layer in it"

    def database(self) -> Any:
        return databases.own_file("jobs", self.folder)

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(REDIS_URL="", AGENTS_DISPATCHER="local", DEBUG="true")

    def processes(self) -> None:
        self.run("web", [sys.executable, "manage.py", "serve", "--port", str(self.port)], self.env)


def event(sender: str, text: str) -> dict[str, Any]:
    """A delivery as Telnyx makes it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime())
    return {
        "data": {
            "event_type": "message.received",
            "id": str(uuid.uuid4()),
            "occurred_at": at,
            "record_type": "event",
            "payload": {
                "id": str(uuid.uuid4()),
                "direction": "inbound",
                "type": "SMS",
                "from": {"phone_number": sender, "carrier": "", "line_type": ""},
                "to": [{"phone_number": OURS, "status": "webhook_delivered"}],
                "text": text,
                "media": [],
                "received_at": at,
                "record_type": "message",
            },
        }
    }
