"""A site that texts, as a process: its log says what happened, and neither to whom nor what was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from conversations.models import InboundText, OutboundText, TextStatus
from conversations.sandbox import Sandbox
from scheduler.models import Task, TaskStatus
from tests.agents.observing.model import echoing
from tests.processes import database_url
from tests.servers import Web, production, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

THEIRS, OTHERS, OURS = "+15550001111", "+15005621610", "+15550009999"
WORD = "aubergine"
SECRETS = {
    "SECRET_KEY": "the-secret-key-of-this-site-which-is-long-enough-for-production-to-take-it",
    "OPENAI_API_KEY": "sk-0123456789-of-the-model",
    "METRICS_TOKEN": "token-0123456789-of-metrics",
}
TELNYX_KEY = "KEY0123456789-of-telnyx"


@pytest.fixture
def story(tmp_path: Path) -> Any:
    """Plays it; returns what the site's process has said, and what ``/metrics`` has."""
    sandbox = Sandbox(telnyx_key=TELNYX_KEY, signing_key=Ed25519PrivateKey.generate(), delay=0.05)

    def play(**variables: str) -> tuple[str, str]:
        with sandbox, echoing() as (model, _):
            env = production(
                database_url(), "", tmp_path,
                DJANGO_SETTINGS_MODULE="agentsite.settings", ENV_FILE="", SECURE_SSL_REDIRECT="false",
                AGENTS_DISPATCHER="local", AGENT_APPS="tests.agents.observing.texted",
                TELNYX_API_KEY=TELNYX_KEY, TELNYX_BASE_URL=sandbox.telnyx_url,
                TELNYX_PUBLIC_KEY=sandbox.settings["TELNYX_PUBLIC_KEYS"][0], SMS_KIND="observed",
                OPENAI_BASE_URL=model, MODEL="echo-1", LOG_LEVEL="DEBUG", **SECRETS, **variables,
            )  # fmt: skip
            site = Web("site", tmp_path, env)
            env["WEBHOOK_BASE_URL"] = site.url
            site.env = env
            with running(site):
                hook = f"{site.url}/webhooks/telnyx/"
                texts = [
                    (THEIRS, f"{WORD}, please"),
                    (THEIRS, f"break the {WORD}"),
                    (THEIRS, f"refuse the {WORD}"),
                    (OTHERS, f"{WORD} for others"),  # what they are sent is not delivered
                ]
                for sender, text in texts:
                    sandbox.text("telnyx", sender, OURS, text, webhook=hook)
                wait_until(lambda: Task.objects.filter(status=TaskStatus.PARKED).count() == 2, 60)
                done = OutboundText.objects.filter(status=TextStatus.DELIVERED)
                wait_until(lambda: done.count() == 1, 60)
                wait_until(lambda: OutboundText.objects.filter(status=TextStatus.UNDELIVERED).exists(), 60)
                sandbox.text("telnyx", THEIRS, OURS, "STOP", webhook=hook)
                wait_until(lambda: InboundText.objects.count() == 5, 60)
                sandbox.settle()
                bearer = {"Authorization": f"Bearer {SECRETS['METRICS_TOKEN']}"}
                metrics = httpx.get(f"{site.url}/metrics", headers=bearer, timeout=30).text
                httpx.get(f"{site.url}/agents/observed/{THEIRS}/nothing-there", timeout=30)
                site.terminate()
            return site.said(), metrics

    return play


def test_nothing_that_was_said_no_number_and_no_secret_is_in_the_log(story: Any):
    said, metrics = story(LOG_FORMAT="json")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(lines) > 5
    for hidden in (WORD, THEIRS, OTHERS, OURS, THEIRS[1:], TELNYX_KEY, *SECRETS.values()):
        assert hidden not in said, [line for line in said.splitlines() if hidden in line][:3]
        assert hidden not in metrics
    parked = [line for line in lines if "is parked" in line["message"]]
    assert {line["message"].rpartition(": ")[2] for line in parked} == {"ValueError", "BadRequestError"}
    for line in parked:
        assert line["actor"] == "observed/+***1111"
        assert line["turn"] and line["request_id"] and line["actor_id"]
    assert len({line["request_id"] for line in parked}) == 2
    assert 'agents_texts_received_total{acceptance="accepted",provider="telnyx"} 4.0' in metrics
    assert 'agents_texts_moved_total{provider="telnyx",status="undelivered"} 1.0' in metrics
    assert 'agents_task_failures_total{kind="observed",then="park"} 2.0' in metrics
    assert 'agents_tasks_parked{kind="observed"} 2.0' in metrics
