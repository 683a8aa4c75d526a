"""The outbox, with real transactions and threads, and the official client against a real HTTP server."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from agents import clock
from agents.exceptions import OpenTransactionError
from agents.models import Actor
from conversations import outbox
from conversations.models import OutboundText, TextStatus
from tests.conversations.telnyx_api import serve
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(settings):
    with serve() as api:
        settings.AGENTS = {
            "TELNYX_API_KEY": "KEY-test",
            "TELNYX_BASE_URL": api.url,
            "SMS_TIMEOUT": 30.0,
        }
        yield api


@pytest.fixture(autouse=True)
def the_clock_stands():
    yield
    clock.reset()


@pytest.fixture
def alice_actor():
    return Actor.objects.create(kind="support", name="+15550001111")


@pytest.fixture
def bob_actor():
    return Actor.objects.create(kind="support", name="+15550002222")


def queue(actor: Actor, words: str = "hello", **more: Any) -> OutboundText:
    return OutboundText.objects.create(
        actor=actor, uid=uuid.uuid4(), from_number="+15550009999", to_number=actor.name, text=words, **more
    )


def fresh(text: OutboundText) -> OutboundText:
    text.refresh_from_db()
    return text


def in_threads(count: int, fn: Any) -> list[Any]:
    def run(_: int) -> Any:
        try:
            return fn()
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_due_text_is_sent_and_says_by_whom_and_when(api, alice_actor):
    text = queue(alice_actor)
    assert outbox.send_due() == 1
    fresh(text)
    assert (text.status, text.provider, text.provider_id) == (TextStatus.SENT, "telnyx", "message-1")
    assert text.attempts == 1
    assert text.claimed_at is not None
    assert text.sent_at is not None
    assert text.claimed_at <= text.sent_at
    assert abs(text.sent_at - timezone.now()) < dt.timedelta(seconds=10)
    assert outbox.send_due() == 0
    assert api.sent() == ["hello"]


def test_texts_of_one_actor_leave_in_order_and_those_of_others_beside_them(api, alice_actor, bob_actor):
    for number in range(5):
        queue(alice_actor, f"a{number}")
        queue(bob_actor, f"b{number}")
    assert outbox.send_due() == 10
    sent = api.sent()
    assert [words for words in sent if words[0] == "a"] == [f"a{n}" for n in range(5)]
    assert [words for words in sent if words[0] == "b"] == [f"b{n}" for n in range(5)]


def test_one_call_deals_with_no_more_than_its_limit(api, alice_actor):
    for number in range(3):
        queue(alice_actor, str(number))
    assert outbox.send_due(limit=2) == 2
    assert api.sent() == ["0", "1"]
    assert outbox.send_due(limit=2) == 1


def test_a_text_is_not_sent_before_it_is_due(api, alice_actor):
    queue(alice_actor, due_at=Now() + dt.timedelta(seconds=60))
    assert outbox.send_due() == 0
    clock.shift(dt.timedelta(seconds=61))
    assert outbox.send_due() == 1


def test_workers_at_the_same_time_send_each_text_once(api):
    actors = [Actor.objects.create(kind="support", name=f"+1555000{n:04}") for n in range(6)]
    for number in range(3):
        for actor in actors:
            queue(actor, f"{actor.name} {number}")
    handled = in_threads(4, outbox.send_due)
    # Whoever found nothing free has stopped; a text that another held up may be left for the next call.
    assert sum(handled) + outbox.send_due() == 18
    assert sorted(api.sent()) == sorted(f"{a.name} {n}" for a in actors for n in range(3))
    for actor in actors:
        assert [words for words in api.sent() if words.startswith(actor.name)] == [
            f"{actor.name} {number}" for number in range(3)
        ]


def test_no_transaction_is_open_while_the_provider_is_asked(api, alice_actor, bob_actor):
    text = queue(alice_actor)
    api.released.clear()
    sender = threading.Thread(target=in_threads, args=(1, outbox.send_due))
    sender.start()
    wait_until(lambda: api.requests)
    # The claim is committed and nothing is locked: others read it, and write.
    assert fresh(text).status == TextStatus.SENDING
    OutboundText.objects.filter(pk=text.pk).update(error="looked at meanwhile")
    queue(bob_actor)
    api.released.set()
    sender.join()
    assert fresh(text).status == TextStatus.SENT


def test_a_claim_inside_a_transaction_is_refused(api, alice_actor):
    queue(alice_actor)
    with transaction.atomic(), pytest.raises(OpenTransactionError):
        outbox.send_due()


def test_a_refusal_is_final_and_keeps_what_the_provider_said(api, alice_actor):
    api.refuse(400, "40300", "Blocked due to STOP message")
    text, later = queue(alice_actor, "first"), queue(alice_actor, "second")
    assert outbox.send_due() == 2
    assert fresh(text).status == TextStatus.FAILED
    assert "40300" in text.error
    assert "STOP message" in text.error
    assert fresh(later).status == TextStatus.FAILED, "a refused text holds nothing up"
    clock.shift(dt.timedelta(days=1))
    assert outbox.send_due() == 0


def test_what_was_not_sent_is_tried_again_after_each_pause_of_the_ladder(api, alice_actor):
    api.refuse(503)
    text, later = queue(alice_actor, "first"), queue(alice_actor, "second")
    for attempt, pause in enumerate(outbox.LADDER, start=1):
        assert outbox.send_due() == 1
        assert (fresh(text).status, text.attempts) == (TextStatus.QUEUED, attempt)
        assert "503" in text.error
        clock.shift(dt.timedelta(seconds=pause - 5))
        assert outbox.send_due() == 0, "not before the pause has passed"
        clock.shift(dt.timedelta(seconds=6))
    assert set(api.sent()) == {"first"}, "later texts wait behind it"
    assert outbox.send_due() == 2  # its last try, and the first of the text behind it
    assert (fresh(text).status, text.attempts) == (TextStatus.FAILED, len(outbox.LADDER) + 1)
    assert "gave up" in text.error
    assert fresh(later).status == TextStatus.QUEUED


def test_a_pause_that_the_provider_asks_for_lengthens_ours(api, alice_actor):
    api.refuse(429, "10011", Retry_After="90")
    queue(alice_actor)
    assert outbox.send_due() == 1
    clock.shift(dt.timedelta(seconds=80))
    assert outbox.send_due() == 0
    clock.shift(dt.timedelta(seconds=11))
    assert outbox.send_due() == 1


def test_where_nobody_listens_the_text_waits_and_is_sent_later(settings, alice_actor):
    with serve() as gone:
        pass
    settings.AGENTS = {"TELNYX_API_KEY": "KEY-test", "TELNYX_BASE_URL": gone.url}
    text = queue(alice_actor)
    assert outbox.send_due() == 1
    assert fresh(text).status == TextStatus.QUEUED
    with serve() as api:
        settings.AGENTS = {"TELNYX_API_KEY": "KEY-test", "TELNYX_BASE_URL": api.url}
        clock.shift(dt.timedelta(seconds=31))
        assert outbox.send_due() == 1
        assert api.sent() == ["hello"]
    assert (fresh(text).status, text.error) == (TextStatus.SENT, "")


@pytest.mark.parametrize("how", ["hangs up", "answers too late", "504"])
def test_a_text_that_may_have_been_sent_is_never_sent_again(api, settings, alice_actor, how):
    if how == "hangs up":
        api.hangs_up = True
    elif how == "answers too late":
        settings.AGENTS = {**settings.AGENTS, "SMS_TIMEOUT": 2.0}
        api.released.clear()
    else:
        api.refuse(504)
    text, later = queue(alice_actor, "first"), queue(alice_actor, "second")
    assert outbox.send_due(limit=1) == 1
    assert fresh(text).status == TextStatus.UNKNOWN
    assert text.error
    api.released.set()
    api.hangs_up, api.status, api.body = False, 200, None
    settings.AGENTS = {**settings.AGENTS, "SMS_TIMEOUT": 30.0}
    clock.shift(dt.timedelta(days=1))
    assert outbox.send_due() == 1, "the next text is not held up"
    assert api.sent() == ["first", "second"]
    assert fresh(text).status == TextStatus.UNKNOWN
    assert fresh(later).status == TextStatus.SENT


def test_a_text_whose_worker_died_is_unknown_after_a_minute_and_not_before(api, alice_actor):
    died = queue(alice_actor, "first", status=TextStatus.SENDING, claimed_at=Now(), attempts=1)
    later = queue(alice_actor, "second")
    clock.shift(dt.timedelta(seconds=55))
    assert outbox.send_due() == 0, "it may be under way: the texts behind it wait"
    clock.shift(dt.timedelta(seconds=6))
    assert outbox.send_due() == 2
    assert fresh(died).status == TextStatus.UNKNOWN
    assert fresh(later).status == TextStatus.SENT
    assert api.sent() == ["second"]


def test_an_answer_that_comes_after_all_is_still_written(api, alice_actor):
    text = queue(alice_actor)
    api.released.clear()
    sender = threading.Thread(target=in_threads, args=(1, outbox.send_due))
    sender.start()
    wait_until(lambda: api.requests)
    clock.shift(dt.timedelta(seconds=61))
    assert outbox.send_due() == 1
    assert fresh(text).status == TextStatus.UNKNOWN
    api.released.set()
    sender.join()
    assert (fresh(text).status, text.provider_id) == (TextStatus.SENT, "message-1")


def test_without_a_provider_texts_wait(settings, alice_actor, caplog):
    settings.AGENTS = {"SMS_PROVIDER": "telnyx"}
    text = queue(alice_actor)
    assert outbox.send_due() == 0
    assert fresh(text).status == TextStatus.QUEUED
    assert "TELNYX_API_KEY" in caplog.text


def test_waking_tells_everybody_and_never_fails(caplog):
    woken = []

    def broken() -> None:
        raise RuntimeError("the broker is away")

    def works() -> None:
        woken.append(True)

    outbox.on_wake += [broken, works]
    try:
        outbox.wake()
    finally:
        outbox.on_wake.remove(broken)
        outbox.on_wake.remove(works)
    assert woken == [True]
    assert "the broker is away" in caplog.text
