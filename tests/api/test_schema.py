"""The OpenAPI document, and requests made up from it: no answer may be a failure, or undocumented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone
from rest_framework.authtoken.models import Token

from agents.models import Actor
from conversations.models import Message
from scheduler.models import Attempt, AttemptOutcome, Task
from tests.agents.sockets.site import running
from tests.api.conftest import KIND, Sign

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

EXAMPLES = 2  # of each operation, beside those that cover the limits of each parameter
#: What the made-up requests are about.
CONFIG = """
[parameters]
"path.kind" = "{kind}"
"path.name" = "olga"
"path.number" = {task}
"path.method" = "echo"

[[operations]]
include-path-regex = "attempts/"
parameters = {{ "path.number" = {attempt} }}

# The number above takes the place of every number, also of those that are made up to be refused.
[[operations]]
include-path-regex = "number"
checks.negative_data_rejection.enabled = false
"""


def test_no_made_up_request_ends_in_a_failure_or_an_undocumented_answer(alice: Any, tmp_path: Path) -> None:
    now = timezone.now()
    actor = Actor.objects.create(kind=KIND, name="olga", seq=2)
    for seq in (1, 2):
        Message.objects.create(actor=actor, seq=seq, role="user", content="hello", at=now)
    task = Task.objects.create(
        actor=actor, task_id="t", method="later", status="parked", parked_at=now, due_at=now
    )
    attempt = Attempt.objects.create(
        actor=actor, task_pk=task.pk, task_id="t", lane="timer", method="later", number=1,
        turn_id="12345678123456781234567812345678", outcome=AttemptOutcome.FAILED, due_at=now,
        started_at=now, ended_at=now,
    )  # fmt: skip
    key = Token.objects.create(user=alice).key
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG.format(kind=KIND, task=task.pk, attempt=attempt.pk))
    agents = {"API_WAIT": 0.2, "CALL_BUDGET": 5.0, "API_RATE": "100000/s"}
    with running(AGENT_APPS="tests.api.talkers", agents=agents) as site:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config),
                "run", f"http://127.0.0.1:{site.port}/api/schema/", "--header", f"Authorization: Token {key}",
                "--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1",
                "--generation-database", "none", "--no-color",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        failed = any(" ERROR " in line for line in site.lines)
        said = site.output if failed else ""
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr}\n{said}"
    assert said == ""


def test_the_document_is_for_whoever_is_signed_in_and_so_is_its_page(api: Sign, charlie: Any) -> None:
    client = api(charlie)
    document = client.get("/api/schema/", headers={"Accept": "application/json"}).json()
    assert document["openapi"].startswith("3.")
    assert all(path.startswith("/api/") for path in document["paths"])
    assert {"tokenAuth", "actorToken", "cookieAuth"} == set(document["components"]["securitySchemes"])
    assert api(None).get("/api/schema/").status_code in (401, 403)
    page = api(None).get("/api/docs/")
    assert page.status_code == 302 and "/login/" in page.headers["Location"]


def test_the_page_needs_no_other_host(site: Any, charlie: Any) -> None:
    from django.test import Client as Browser

    browser = Browser()
    browser.force_login(charlie)
    page = browser.get("/api/docs/")
    assert page.status_code == 200
    assert "https://" not in page.content.decode()
    assert 'src="/static/drf_spectacular_sidecar/' in page.content.decode()


def test_what_is_not_there_is_said_in_json(api: Sign) -> None:
    for method in ("GET", "POST", "TRACE"):
        answer: httpx.Response = api(None).request(method, "/api/no/such/thing")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
