"""The whole story through real HTTP: ``bin/dev`` as a process, texts from outside, the reply, the nudge."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from django.db import connection
from django.utils import timezone

from agents.models import Actor
from conversations.management.commands.text import event
from conversations.models import Message, OutboundText, TextStatus
from conversations.signatures import DEVELOPMENT_SIGNING_KEY, sign
from scheduler.audit import audit
from scheduler.models import Attempt, Task
from tests.processes import database_url
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
PHONE = "+15550001111"
OURS = "+15550009999"


@contextmanager
def site(folder: Path, model: str = "offline") -> Iterator[str]:
    """``bin/dev`` on a free port and this test's database, with the offline model."""
    port = free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("DJANGO_SETTINGS_MODULE", "REDIS_URL")},
        "ENV_FILE": "",
        "DEBUG": "true",
        "SECRET_KEY": "only-for-tests",
        "VAR_DIR": str(folder),
        "DATABASE_URL": database_url(),
        "MODEL": model,
    }
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bin/dev", "--port", str(port)], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "Serving http://" in log.read_text(), 60, log.read_text())
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(10)
    assert "Traceback" not in log.read_text(), log.read_text()


def text(url: str, words: str) -> str:
    """What ``manage.py text`` prints."""
    return subprocess.run(
        [sys.executable, "manage.py", "text", PHONE, words, "--url", url],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url()},
        check=True,
        capture_output=True,
        text=True,
        timeout=90,
    ).stdout


@pytest.fixture(scope="module")
def provider() -> Iterator[httpx.Client]:
    """One for all posts of a test: making a client costs more than a text does."""
    with httpx.Client(
        timeout=30, limits=httpx.Limits(max_connections=50, max_keepalive_connections=50)
    ) as client:
        yield client


def post(provider: httpx.Client, url: str, words: str) -> float:
    """One signed text, as the provider delivers it; seconds until its acknowledgement."""
    body = orjson.dumps(event(PHONE, OURS, words))
    headers = {"Content-Type": "application/json", **sign(body, DEVELOPMENT_SIGNING_KEY)}
    began = time.perf_counter()
    answer = provider.post(f"{url}/webhooks/telnyx/support/", content=body, headers=headers)
    took = time.perf_counter() - began
    assert answer.json() == {"status": "accepted"}
    return took


def log_of(phone: str = PHONE) -> list[tuple[str, str]]:
    return list(Message.objects.filter(actor__name=phone).values_list("role", "content"))


def findings() -> list[Any]:
    return [f for f in audit(settled=0) if f.check != "sessions"]


def all_sent() -> bool:
    """Whether no text waits to be sent, or is on its way: one that a turn just left is queued."""
    return not OutboundText.objects.filter(status__in=[TextStatus.QUEUED, TextStatus.SENDING]).exists()


def test_a_text_is_answered_and_the_conversation_its_state_and_the_follow_up_are_there(tmp_path):
    with site(tmp_path) as url:
        said = text(url, "Where is order 1042?")
        assert re.match(r"accepted in \d+ ms\n\+15550009999: \[offline model\] .*1042", said)

        # The tool turn is in the log, between the question and the answer.
        assert [role for role, _ in log_of()] == ["user", "assistant", "tool", "assistant"]
        actor = Actor.objects.get(kind="support", name=PHONE)
        assert actor.state == {"channel": "sms", "status": "waiting"}
        nudge = Task.objects.get()
        assert (nudge.method, nudge.task_id) == ("nudge", "nudge")
        assert abs(nudge.due_at - timezone.now() - dt.timedelta(days=1)) < dt.timedelta(minutes=1)
        assert OutboundText.objects.get().status == "sent"

        # The admin shows it to the operator that bin/dev made.
        password = (tmp_path / "operator-password").read_text().strip()
        with httpx.Client(base_url=url, follow_redirects=True) as browser:
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get("/admin/login/").text)
            assert token is not None
            form = {"username": "operator", "password": password, "csrfmiddlewaretoken": token[1]}
            browser.post("/admin/login/", data=form, headers={"Referer": url})
            page = browser.get(f"/admin/agents/actor/{actor.pk}/change/").text
            assert PHONE in page
            assert "nudge" in page
    assert findings() == []


def test_texts_that_come_together_are_answered_by_one_run_of_the_model(tmp_path, provider):
    with site(tmp_path, "offline-delay-1") as url:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(3) as senders:
            list(senders.map(lambda n: post(provider, url, f"part {n}"), range(10)))
        wait_until(lambda: sum(r == "user" for r, _ in log_of()) == 10, 90)
        took = time.monotonic() - began
        wait_until(lambda: not Task.objects.filter(method__in=["receive", "process"]).exists(), 90)
        wait_until(all_sent, 60)
        # Whoever came before a run began is in it; those that came later have one together. One takes 1 s.
        assert Attempt.objects.filter(method="process", outcome="done").count() <= 2 + took
        assert sorted(c for r, c in log_of() if r == "user") == [f"part {n}" for n in range(10)]
        assert log_of()[-1][0] == "assistant"
    assert findings() == []


def test_acknowledgements_reads_and_pages_do_not_wait_for_a_model_that_thinks_for_long(tmp_path, provider):
    with site(tmp_path, "offline-delay-15") as url:
        post(provider, url, "text 0")
        wait_until(lambda: Attempt.objects.filter(method="process", outcome="running").exists(), 60)
        actor = Actor.objects.get(kind="support", name=PHONE)

        with concurrent.futures.ThreadPoolExecutor(20) as senders:
            took = sorted(senders.map(lambda n: post(provider, url, f"text {n}"), range(1, 21)))
        began = time.perf_counter()
        history = provider.get(f"{url}/dev/texts/", params={"to": PHONE})
        assert history.status_code == 200
        read = time.perf_counter() - began
        assert Attempt.objects.filter(actor=actor, method="process", outcome="running").exists()
        print(f"20 texts at once: median {statistics.median(took) * 1e3:.0f} ms, "
              f"p95 {took[18] * 1e3:.0f} ms; a page meanwhile {read * 1e3:.0f} ms")  # fmt: skip

        wait_until(lambda: sum(r == "user" for r, _ in log_of()) == 21, 60)
        wait_until(lambda: not Task.objects.filter(method__in=["receive", "process"]).exists(), 60)
        wait_until(all_sent, 60)
        users = [content for role, content in log_of() if role == "user"]
        arrived = list(
            Attempt.objects.filter(method="receive")
            .order_by("task_pk")
            .values_list("payload__text", flat=True)
        )
        assert users == arrived
        assert sorted(users) == sorted(f"text {n}" for n in range(21))
    assert findings() == []
    if connection.vendor == "postgresql":
        assert [f for f in audit() if f.check == "sessions"] == []
