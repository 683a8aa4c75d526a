"""What ``self.sms.send`` promises beyond the plain text: pace, quiet hours, parts, providers by number."""

from __future__ import annotations

import datetime as dt
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from agents import clock
from agents.models import Actor
from agents.testing import drain
from conversations import outbox
from conversations.exceptions import EmptyTextError, TemporaryFailure, TextTooLongError
from conversations.models import OutboundText, Pace
from conversations.providers import memory
from conversations.sandbox import Sandbox
from tests.conversations.texting.agents import TextedAgent

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS, OTHER = "+15550001111", "+15550009999", "+15550008888"


@pytest.fixture(autouse=True)
def site(settings):
    settings.AGENTS = {"SMS_PROVIDER": "memory"}
    memory.outbox.clear()
    memory.failures.clear()
    yield
    clock.reset()


@pytest.fixture
def texted() -> Any:
    return TextedAgent.named(THEIRS).sync


def configure(settings: Any, **changes: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, **changes}


def hear(texted: Any, words: str = "hello", to: str = OURS, ago: float = 0) -> None:
    """They write; ``ago`` seconds before now."""
    at = timezone.now() + clock.offset - dt.timedelta(seconds=ago)
    texted.tell(
        "receive",
        {
            "text": words, "from": THEIRS, "to": to, "id": uuid.uuid4().hex, "event_id": "e",
            "received_at": at.isoformat(), "media": [], "channel": "sms",
        },
    )  # fmt: skip
    drain()


def sent() -> list[str]:
    while outbox.send_due():
        pass
    return [text.text for text in memory.outbox]


def later(seconds: float) -> None:
    clock.shift(dt.timedelta(seconds=seconds))


def queue(number: int, sender: str = OURS) -> OutboundText:
    actor, _ = Actor.objects.get_or_create(kind="texting", name=f"+1555000{number:04}")
    return OutboundText.objects.create(
        actor=actor, uid=uuid.uuid4(), from_number=sender, to_number=actor.name, text=f"text {number}"
    )


# Parts


def test_a_long_text_becomes_several_and_they_leave_in_order(texted):
    hear(texted)
    words = " ".join(f"word{number}" for number in range(500))
    uid = texted.say(words)
    rows = list(OutboundText.objects.order_by("pk"))
    assert len(rows) == 3 and str(rows[0].uid) == uid
    assert all(row.segments <= 10 for row in rows)
    assert " ".join(sent()) == words


def test_beyond_the_parts_that_are_allowed_it_is_refused(texted, settings):
    hear(texted)
    words = "word " * 1000
    with pytest.raises(TextTooLongError) as caught:
        texted.say(words)
    assert caught.value.maximum == 30
    configure(settings, SMS_MAX_PARTS=4)
    texted.say(words)
    assert OutboundText.objects.count() == 4


def test_typographic_characters_are_replaced_unless_it_is_turned_off(texted, settings):
    hear(texted)
    texted.say("It’s fine")
    texted.say("It’s fine", smart=False)
    configure(settings, SMS_SMART=False)
    texted.say("It’s fine")
    assert sent() == ["It's fine", "It’s fine", "It’s fine"]
    assert set(OutboundText.objects.values_list("text", "encoding", "segments")) == {
        ("It's fine", "GSM-7", 1),
        ("It’s fine", "UCS-2", 1),
    }


def test_a_text_without_words_needs_a_picture(texted):
    hear(texted)
    with pytest.raises(EmptyTextError):
        texted.say(" ")
    texted.say("", media=["https://example.org/a.png"])
    assert sent() == [""]
    assert memory.outbox[0].media == ("https://example.org/a.png",)


# Quiet hours


def quiet(settings: Any, hours_from_now: float) -> None:
    """Quiet hours that end so many hours from now."""
    now = timezone.now()
    end = now + dt.timedelta(hours=hours_from_now)
    start = now - dt.timedelta(hours=1)
    configure(settings, SMS_QUIET_HOURS={"start": f"{start:%H:%M}", "end": f"{end:%H:%M}", "zone": "UTC"})


def test_in_quiet_hours_a_text_waits_for_their_end(texted, settings):
    hear(texted, ago=7200)
    quiet(settings, 2)
    texted.say("good morning")
    assert sent() == []
    row = OutboundText.objects.get()
    assert row.due_at > timezone.now() + dt.timedelta(minutes=100)
    later(2 * 3600 + 60)
    assert sent() == ["good morning"]


def test_an_answer_to_what_they_have_just_written_goes_at_once_and_is_not_held_up(texted, settings):
    hear(texted, ago=7200)
    quiet(settings, 2)
    texted.say("for tomorrow")
    hear(texted, "are you there?")
    texted.say("yes")
    assert sent() == ["yes"]
    later(901)
    texted.say("and more for tomorrow")
    assert sent() == ["yes"]
    later(2 * 3600)
    assert sent() == ["yes", "for tomorrow", "and more for tomorrow"]


def test_an_urgent_text_goes_in_the_night_and_so_does_one_outside_of_it(texted, settings):
    hear(texted, ago=7200)
    quiet(settings, 2)
    texted.say("the house is on fire", urgent=True)
    assert sent() == ["the house is on fire"]
    now = timezone.now()
    configure(
        settings,
        SMS_QUIET_HOURS={
            "start": f"{now + dt.timedelta(hours=1):%H:%M}",
            "end": f"{now - dt.timedelta(hours=1):%H:%M}",
        },
    )
    texted.say("by day")
    assert sent() == ["the house is on fire", "by day"]


def quiet_between(settings: Any, start: float, end: float) -> None:
    """Quiet hours from so many hours from now until so many hours from now."""
    now = timezone.now()
    moments = [f"{now + dt.timedelta(hours=hours):%H:%M}" for hours in (start, end)]
    configure(settings, SMS_QUIET_HOURS={"start": moments[0], "end": moments[1], "zone": "UTC"})


def test_what_was_left_lying_until_quiet_hours_waits_for_their_end_without_a_try(texted, settings):
    hear(texted, ago=7200)
    quiet_between(settings, 1, 3)
    texted.say("by day")
    texted.say("now", urgent=True)
    hear(texted, "and?")
    texted.say("an answer")
    later(1.5 * 3600)  # nobody sent in between
    assert sent() == ["now", "an answer"]
    row = OutboundText.objects.get(text="by day")
    assert (row.status, row.attempts, row.holds, row.error) == ("queued", 0, False, "")
    assert abs((row.due_at - timezone.now()).total_seconds() - 3 * 3600) < 120
    later(2 * 3600)
    assert sent() == ["now", "an answer", "by day"]


def test_a_text_whose_place_in_the_row_is_in_quiet_hours_takes_another_when_they_end(texted, settings):
    hear(texted, ago=7200)
    quiet_between(settings, 1, 3)
    configure(settings, SMS_RATE=1 / 5400)
    texted.say("one")
    texted.say("two")
    texted.say("three")
    assert sent() == ["one"]
    later(1.6 * 3600)
    assert sent() == ["one"], "its place was 1.5 hours after the first"
    later(1.5 * 3600)
    assert sent() == ["one", "two"]
    later(1.4 * 3600)
    assert sent() == ["one", "two"], "they still go one in an hour and a half"
    later(0.2 * 3600)
    assert sent() == ["one", "two", "three"]


def test_a_try_that_would_come_in_quiet_hours_comes_after_them(texted, settings):
    hear(texted, ago=7200)
    quiet_between(settings, 1, 3)
    texted.say("by day")
    later(0.9 * 3600)
    memory.failures.append(TemporaryFailure("not now", retry_after=1800))
    assert sent() == []
    later(0.6 * 3600)
    assert sent() == []
    assert OutboundText.objects.get().attempts == 1
    later(2 * 3600)
    assert sent() == ["by day"]


def test_quiet_hours_that_cannot_be_read_hold_back_only_what_would_have_to_wait_for_them(texted, settings):
    hear(texted, ago=7200)
    quiet_between(settings, 1, 3)
    texted.say("by day")
    queue(7)
    configure(settings, SMS_QUIET_HOURS={"start": "late"})
    assert sent() == ["text 7"]
    assert "SMS_QUIET_HOURS" in OutboundText.objects.get(text="by day").error
    configure(settings, SMS_QUIET_HOURS=None)
    later(31)
    assert sent() == ["text 7", "by day"]


# Pace


def test_a_number_sends_no_faster_than_it_may_and_others_beside_it(settings):
    configure(settings, SMS_NUMBERS={OURS: {"rate": 0.5}})
    for number in range(3):
        queue(number)
    queue(10, OTHER)
    assert sent() == ["text 0", "text 10"]
    later(1.5)
    assert len(sent()) == 2
    later(0.6)
    assert len(sent()) == 3
    later(2)
    assert sent() == ["text 0", "text 10", "text 1", "text 2"]


def test_many_workers_keep_to_one_pace(settings):
    configure(settings, SMS_RATE=1)
    for number in range(12):
        queue(number)

    def send(_: int) -> None:
        try:
            outbox.send_due()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert len(memory.outbox) == 1
    places = sorted(OutboundText.objects.filter(status="queued").values_list("due_at", flat=True))
    gaps = [(b - a).total_seconds() for a, b in pairwise(places)]
    assert len(places) == 11
    assert all(abs(gap - 1) < 0.001 for gap in gaps)


def test_where_the_pace_is_quick_one_call_waits_for_the_next_place(settings):
    configure(settings, SMS_RATE=20)
    for number in range(3):
        queue(number)
    assert outbox.send_due() >= 2
    assert len(memory.outbox) >= 2


def test_when_the_provider_says_too_much_the_numbers_other_texts_wait_as_long(settings):
    configure(settings, SMS_CONCURRENCY=1)
    queue(0)
    queue(1)
    queue(2, OTHER)
    memory.failures.append(
        TemporaryFailure("too many requests", reason="10011", retry_after=90, crowded=True)
    )
    assert sent() == ["text 2"]
    assert Pace.objects.get().number == OURS
    later(60)
    assert sent() == ["text 2"]
    later(35)
    assert sorted(sent()) == ["text 0", "text 1", "text 2"]


# Providers


def test_each_number_has_its_provider(settings):
    with Sandbox(delay=0.02) as sandbox:
        configure(
            settings,
            **sandbox.settings,
            SITE_URL="https://agents.example.org",
            SMS_NUMBERS={OURS: {"provider": "telnyx"}, OTHER: {"provider": "twilio"}},
        )
        for number, sender in enumerate((OURS, OTHER, "+15550007777")):
            queue(number, sender)
        while outbox.send_due():
            pass
        assert {message.sender: message.provider for message in sandbox.sent} == {
            OURS: "telnyx",
            OTHER: "twilio",
        }
        assert [text.text for text in memory.outbox] == ["text 2"]
        rows = dict(OutboundText.objects.values_list("from_number", "provider"))
        assert rows == {OURS: "telnyx", OTHER: "twilio", "+15550007777": "memory"}
        # Each is told where to report, by a name that finds the text.
        for message in sandbox.sent:
            row = OutboundText.objects.get(from_number=message.sender)
            base = f"https://agents.example.org/webhooks/{message.provider}"
            assert message.callback == f"{base}?text={row.uid}&try=1"


def test_a_provider_that_cannot_reach_us_is_given_no_address(settings):
    with Sandbox(delay=0.02) as sandbox:
        configure(
            settings, **{**sandbox.settings, "TELNYX_BASE_URL": sandbox.telnyx_url}, SMS_PROVIDER="telnyx"
        )
        queue(0)
        outbox.send_due()
        assert sandbox.sent[0].callback.startswith("http://127.0.0.1:8000/"), "the sandbox can"
    from conversations.public import reachable_url

    assert reachable_url("https://api.telnyx.com/v2") == ""


def test_a_text_whose_provider_lacks_its_key_waits_without_holding_up_others(settings, caplog):
    configure(settings, SMS_NUMBERS={OURS: {"provider": "telnyx"}})
    text = queue(0)
    queue(1, OTHER)
    assert sent() == ["text 1"]
    text.refresh_from_db()
    assert (text.status, text.attempts) == ("queued", 0)
    assert "TELNYX_API_KEY" in text.error
    assert caplog.text.count("texts wait") == 1
    configure(settings, SMS_NUMBERS={})
    later(31)
    assert sent() == ["text 1", "text 0"]
