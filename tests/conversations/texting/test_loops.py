"""Two machines that answer each other are noticed and paused, visibly; people are heard."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client

from agents import clock
from agents.testing import drain
from conversations import inbox, outbox
from conversations.loops import why_held
from conversations.management.commands.text import event as telnyx_event
from conversations.models import InboundText
from conversations.providers import memory
from conversations.signatures import sign
from scheduler.audit import audit
from tests.conversations.texting import agents  # noqa: F401 - declares the kinds
from tests.conversations.texting.test_cross_checks import KEY

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"
BOUNCE = "say Sorry, the format of your input is invalid"  # the agent repeats it


@pytest.fixture(autouse=True)
def site(settings):
    settings.AGENTS = {
        "TELNYX_PUBLIC_KEYS": [base64.b64encode(KEY.public_key().public_bytes_raw()).decode()],
        "SMS_PROVIDER": "memory",
        "SMS_KIND": "texting",
    }
    memory.outbox.clear()
    yield
    clock.reset()


def write(words: str, sender: str = THEIRS) -> str:
    """A text comes in and is answered."""
    body = json.dumps(telnyx_event(sender, OURS, words)).encode()
    answer = Client().generic("POST", "/webhooks/telnyx/", body, "application/json", headers=sign(body, KEY))
    drain()
    while outbox.send_due():
        pass
    status: str = answer.json()["status"]
    return status


def later(seconds: float) -> None:
    clock.shift(dt.timedelta(seconds=seconds))


def test_a_machine_that_repeats_itself_is_answered_four_times_and_then_held(caplog):
    statuses = []
    for number in range(10):
        statuses.append(write(BOUNCE))
        later(5)
        assert len(memory.outbox) == min(number + 1, 4)
    assert statuses == ["accepted"] * 4 + ["held"] * 6
    held = InboundText.objects.filter(status="held")
    assert held.count() == 6
    text = held.first()
    assert text is not None and text.actor is not None, "it is in the conversation's list of texts"
    assert "the same text came 4 times" in text.error
    assert "is held" in caplog.text
    assert [f for f in audit(settled=0) if f.check in ("inbound", "waiting")] == []


def test_a_person_who_writes_something_else_later_is_answered_again():
    for _ in range(6):
        write(BOUNCE)
    assert write("say Hello, this is Ann, is anybody there?") == "accepted"
    assert memory.outbox[-1].text == "Hello, this is Ann, is anybody there?"
    # While the machine goes on it stays paused; when it was quiet for long enough, it is heard.
    assert write(BOUNCE) == "held"
    later(601)
    assert write(BOUNCE) == "accepted"


def test_another_persons_texts_are_their_own():
    for _ in range(6):
        write(BOUNCE)
    assert write(BOUNCE, "+15550002222") == "accepted"


def test_counters_case_and_blanks_make_no_other_text():
    for number in range(4):
        assert write(f"say Your ticket  no. {number} was received") == "accepted"
    assert write("SAY your ticket no. 17 was received") == "held"


def test_a_short_answer_may_come_as_often_as_there_are_questions():
    for _ in range(12):
        assert write("yes") == "accepted"


def test_many_texts_in_a_short_time_are_a_machines_whatever_they_say():
    for number in range(30):
        assert write(f"a text that is new each time: {'x' * number}") == "accepted"
    assert write("and one more") == "held"
    later(601)
    assert write("and one more") == "accepted"


def test_words_about_consent_are_heeded_all_the_same():
    for _ in range(6):
        write(BOUNCE)
    assert write("STOP") == "keyword"


def test_an_operator_may_give_a_held_text_to_its_agent():
    for _ in range(5):
        write(BOUNCE)
    text = InboundText.objects.get(status="held")
    assert inbox.release(text) == "accepted"
    drain()
    outbox.send_due()
    assert len(memory.outbox) == 5
    text.refresh_from_db()
    assert (text.status, text.error) == ("accepted", "")
    assert inbox.release(text) == "duplicate"


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"SMS_LOOP_SAME": 2}, True),
        ({"SMS_LOOP_SAME": 0}, False),
        ({"SMS_LOOP_SAME": 0, "SMS_LOOP_TEXTS": 2}, True),
    ],
)
def test_the_limits_are_settings_and_zero_means_never(settings, changes, held):
    settings.AGENTS = {**settings.AGENTS, **changes}
    before: list[Any] = ["the same text as ever"] * 2
    assert bool(why_held("the same text as ever", before)) is held
