"""Texts that come at once go in together, and nobody can tell the difference."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.models import Actor
from conversations import inbox, intake
from conversations.intake import Delivered
from conversations.models import Consent, InboundText
from conversations.providers import get_provider
from conversations.providers.base import ReceivedText
from scheduler.models import InboxKey, Task
from tests.conversations.texting import agents  # noqa: F401 - declares the kinds
from tests.servers import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

OURS = "+15550009999"


@pytest.fixture(autouse=True)
def site(settings):
    settings.AGENTS = {
        "SMS_KIND": "texting",
        "SMS_LOOP_SAME": 2,
        "SMS_LOOP_TEXTS": 12,
        "MAX_INBOX": 9,
    }


def text(number: int, sender: int, words: str, **changes: Any) -> ReceivedText:
    return ReceivedText(
        event_id=changes.get("event_id", f"event-{number}"),
        message_id=changes.get("message_id", f"message-{number}"),
        from_number=f"+1555000{sender:04}",
        to_number=OURS,
        text=words,
        media=[],
    )


def stream(rng: random.Random, count: int) -> list[Delivered]:
    """Texts of a few people: plain ones, duplicates, keywords, loops, and ones that nobody can take."""
    provider = get_provider("telnyx")
    sent: list[Delivered] = []
    for number in range(count):
        sender, chance = rng.randrange(6), rng.random()
        if sent and chance < 0.15:
            sent.append(rng.choice(sent))
            continue
        words = f"text {chr(97 + number % 26)} of {number}"
        kind = ""
        if chance < 0.25:
            words = rng.choice(["STOP", "start", "Help."])
        elif chance < 0.4:
            words = "I am a machine and say so"
        elif chance < 0.45:
            kind = "not-installed"
        sent.append(Delivered(provider, text(number, sender, words), kind))
    return sent


def facts() -> dict[str, Any]:
    texts = InboundText.objects.order_by("message_id").values_list(
        "message_id", "event_id", "status", "keyword", "text", "kind", "actor__name"
    )
    return {
        "texts": list(texts),
        "tasks": {
            name: [
                (t.payload or {}).get("id", t.method)
                for t in Task.objects.filter(actor__name=name).order_by("pk")
            ]
            for name in Actor.objects.values_list("name", flat=True)
        },
        "keys": sorted(InboxKey.objects.values_list("actor__name", "key")),
        "consent": Consent.objects.count(),
    }


@pytest.mark.parametrize("seed", range(6))
def test_batches_leave_what_the_same_texts_leave_one_by_one(seed, settings):
    rng = random.Random(seed)
    settings.AGENTS = {**settings.AGENTS, "MAX_INBOX": 10_000 if seed % 2 else 9}
    sent = stream(rng, 80)
    alone = [inbox.accept(d.provider, d.text, d.kind) for d in sent]
    expected = facts()
    for model in (Task, InboxKey, InboundText, Consent, Actor):
        model.objects.all().delete()
    together: list[Any] = []
    at = 0
    while at < len(sent):
        size = rng.randrange(1, 20)
        together += intake.accept_all(sent[at : at + size])
        at += size
    assert together == alone
    assert facts() == expected


def test_texts_that_overlap_in_several_batches_are_each_there_once(settings):
    settings.AGENTS = {**settings.AGENTS, "SMS_LOOP_TEXTS": 0, "SMS_LOOP_SAME": 0, "MAX_INBOX": 10_000}
    provider = get_provider("telnyx")
    sent = [Delivered(provider, text(n, n % 5, f"text {n}")) for n in range(60)]
    orders = [random.Random(seed).sample(sent, len(sent)) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda order: _in_thread(order), orders))
    flat = [answer for given in answers for answer in given]
    assert sorted(map(str, flat)) == ["accepted"] * 60 + ["duplicate"] * 180
    assert InboundText.objects.filter(status="accepted").count() == 60
    assert sorted((t.payload or {})["id"] for t in Task.objects.all()) == sorted(
        d.text.message_id for d in sent
    )


def _in_thread(order: list[Delivered]) -> list[Any]:
    from django.db import connections

    try:
        return [a for at in range(0, 60, 15) for a in intake.accept_all(order[at : at + 15])]
    finally:
        connections.close_all()


def test_an_error_is_its_own_texts_and_the_others_are_taken_in(settings):
    settings.AGENTS = {**settings.AGENTS, "MAX_PAYLOAD_BYTES": 2000}
    provider = get_provider("telnyx")
    sent = [Delivered(provider, text(n, n, "x" * (3000 if n == 2 else 10))) for n in range(5)]
    answers = intake.accept_all(sent)
    assert isinstance(answers[2], Exception)
    assert [a for n, a in enumerate(answers) if n != 2] == ["accepted"] * 4
    assert InboundText.objects.count() == 4


def test_sixty_texts_cost_the_database_little_more_than_six(settings):
    provider = get_provider("telnyx")

    def statements(first: int, count: int) -> int:
        sent = [Delivered(provider, text(n, n, f"text {n}")) for n in range(first, first + count)]
        with CaptureQueriesContext(connection) as captured:
            assert intake.accept_all(sent) == ["accepted"] * count
        return len(captured)

    assert statements(100, 60) <= statements(0, 6) + 2


def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, django
django.setup()
from conversations import intake
intake._threads().submit(int).result()
child = os.fork()
if not child:
    os._exit(intake._threads().submit(int).result(10))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60, cwd=ROOT)
