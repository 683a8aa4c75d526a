"""``self.sms``: texts are part of their turn, whole turns through the engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError

from agents import Agent, ReadOnlyTurnError, Retry, reads
from agents.exceptions import StepWriteError, TurnEndedError
from agents.testing import advance, drain, reset_clock
from agents.threads import with_connection
from conversations import outbox
from conversations.exceptions import BadNumberError, EmptyTextError, NobodyToTextError, TextTooLongError
from conversations.models import Correspondent, OutboundText, TextStatus
from conversations.providers.memory import MemoryProvider

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"
kept: list[Any] = []


class TexterAgent(Agent):
    """Says what it is told to say."""

    async def receive(self, message):
        if message["text"]:
            await self.sms.send(message["text"])

    async def say(self, text: str, **how: Any) -> str:
        return await self.sms.send(text, **how)

    async def say_twice(self, first: str, second: str) -> list[str]:
        return [await self.sms.send(first), await self.sms.send(second)]

    async def fail_after(self, text: str) -> None:
        await self.sms.send(text)
        raise RuntimeError("after the text")

    async def fail_once(self, text: str) -> None:
        await self.sms.send(text)
        if not kept:
            kept.append(True)
            raise Retry(after=0)

    async def stay(self, text: str) -> None:
        await self.sms.send(text)
        await self.checkpoint()
        raise RuntimeError("after the checkpoint")

    async def keep(self) -> None:
        kept.append(self.sms)

    async def in_a_step(self) -> None:
        await self.step("text", self.sms.send, "no")

    @reads
    async def look(self) -> None:
        await self.sms.send("no")


@pytest.fixture(autouse=True)
def an_end() -> Iterator[None]:
    kept.clear()
    yield
    reset_clock()


@pytest.fixture
def texter() -> Any:
    return TexterAgent.named(THEIRS).sync


def received(text: str = "", **change: Any) -> dict[str, Any]:
    return {
        "text": text,
        "from": THEIRS,
        "to": OURS,
        "id": uuid.uuid4().hex,
        "event_id": uuid.uuid4().hex,
        "received_at": "2026-11-30T12:00:00+00:00",
        "media": [],
        "channel": "sms",
        **change,
    }


def receive(texter: Any, *texts: dict[str, Any]) -> None:
    for text in texts:
        texter.tell("receive", text)
    drain()


def queued() -> list[tuple[str, str, str]]:
    return list(OutboundText.objects.order_by("id").values_list("from_number", "to_number", "text"))


def test_a_text_is_a_row_of_the_turns_commit_under_the_id_that_send_gave(texter):
    receive(texter, received())
    uid = texter.say("hello")
    text = OutboundText.objects.get()
    assert str(text.uid) == uid
    assert (text.from_number, text.to_number, text.text) == (OURS, THEIRS, "hello")
    assert text.actor is not None
    assert (text.status, text.attempts, text.actor.name) == (TextStatus.QUEUED, 0, THEIRS)
    assert abs((text.due_at - text.created_at).total_seconds()) < 1


def test_a_reply_goes_to_the_writer_from_the_number_they_wrote_to_in_the_same_turn(texter):
    receive(texter, received("hello"))
    assert queued() == [(OURS, THEIRS, "hello")]
    person = Correspondent.objects.get()
    assert (person.their_number, person.our_number) == (THEIRS, OURS)
    assert person.wrote_at.isoformat() == "2026-11-30T12:00:00+00:00"


def test_whoever_wrote_last_is_answered_from_the_number_they_wrote_to_last(texter):
    receive(texter, received("one"), received("two", to="+15550008888"), received("", to="+15550007777"))
    texter.say("three")
    assert queued() == [
        (OURS, THEIRS, "one"),
        ("+15550008888", THEIRS, "two"),
        ("+15550007777", THEIRS, "three"),
    ]
    assert Correspondent.objects.count() == 1


def test_what_came_by_another_way_makes_nobody_a_correspondent(texter):
    receive(texter, received(channel="web"), {**received(), "from": None})
    assert not Correspondent.objects.exists()
    with pytest.raises(NobodyToTextError):
        texter.say("hello")


def test_given_numbers_are_normalised_and_need_no_correspondent(texter):
    texter.say("a", to="15550002222", sender="(1) 555 000-9999")
    texter.say("b", to="22395", sender="MyShop")
    assert queued() == [(OURS, "+15550002222", "a"), ("MyShop", "22395", "b")]
    with pytest.raises(NobodyToTextError):
        texter.say("c", to="+15550002222")
    receive(texter, received())
    texter.say("d", to="+15550002222")
    texter.say("e", sender="22395")
    assert queued()[2:] == [(OURS, "+15550002222", "d"), ("22395", THEIRS, "e")]


@pytest.mark.parametrize(
    "numbers",
    [
        {"to": "nobody", "sender": OURS},
        {"to": "MyBank", "sender": OURS},
        {"to": "+4479", "sender": OURS},
        {"to": "12", "sender": OURS},
        {"to": THEIRS, "sender": "A name too long"},
        {"to": THEIRS, "sender": "me@example.org"},
    ],
)
def test_a_number_that_no_text_can_go_to_or_come_from_is_refused(texter, numbers):
    with pytest.raises(BadNumberError):
        texter.say("hello", **numbers)
    assert queued() == []


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_is_refused(texter, text):
    receive(texter, received())
    with pytest.raises(EmptyTextError):
        texter.say(text)


@pytest.mark.parametrize(("letter", "most"), [("a", 1530), ("á", 670), ("]", 760)])
def test_ten_segments_are_sent_and_one_character_more_is_refused(texter, letter, most):
    receive(texter, received())
    texter.say(letter * most)
    with pytest.raises(TextTooLongError) as caught:
        texter.say(letter * (most + 1), split=False)
    assert (caught.value.maximum, caught.value.actual) == (10, 11)
    assert len(queued()) == 1


def test_text_that_no_database_takes_is_cleaned(texter):
    receive(texter, received())
    texter.say("a\0b")
    assert queued() == [(OURS, THEIRS, "a\ufffdb")]


def test_a_turn_that_fails_sends_nothing(texter):
    receive(texter, received())
    with pytest.raises(RuntimeError):
        texter.fail_after("hello")
    assert queued() == []


def test_a_receive_that_fails_leaves_no_correspondent_either(texter):
    receive(texter, received("x" * 5000))
    assert queued() == []
    assert not Correspondent.objects.exists()


def test_a_retry_sends_the_text_once(texter):
    receive(texter, received())
    texter.tell("fail_once", "hello")
    drain()
    advance(1)
    drain()
    assert queued() == [(OURS, THEIRS, "hello")]


def test_a_checkpoint_keeps_the_text_and_the_rest_of_the_turn_does_not_send_it_again(texter):
    receive(texter, received())
    with pytest.raises(RuntimeError):
        texter.stay("hello")
    assert queued() == [(OURS, THEIRS, "hello")]


def test_texts_of_one_turn_leave_in_their_order_and_wake_the_outbox_once(texter):
    receive(texter, received())
    woken = []

    def listener() -> None:  # called on the loop of the turns
        with ThreadPoolExecutor(1) as pool:
            woken.append(pool.submit(with_connection, OutboundText.objects.count).result())

    outbox.on_wake.append(listener)
    try:
        texter.say_twice("one", "two")
    finally:
        outbox.on_wake.remove(listener)
    assert woken == [2], "after the commit, and once"
    assert [text for _, _, text in queued()] == ["one", "two"]
    assert outbox.send_due() == 2
    assert set(OutboundText.objects.values_list("status", flat=True)) == {TextStatus.SENT}


def test_a_read_and_a_step_send_nothing_and_neither_does_a_turn_that_is_over(texter):
    receive(texter, received())
    with pytest.raises(ReadOnlyTurnError):
        texter.look()
    with pytest.raises(StepWriteError):
        texter.in_a_step()
    texter.keep()
    with pytest.raises(TurnEndedError):
        asyncio.run(kept[0].send("no"))
    assert queued() == []


def test_what_became_of_a_text_is_written_when_the_database_is_back(texter, settings, monkeypatch):
    """Three failures in a moment are nothing: a database that restarts is away for seconds."""
    settings.AGENTS = {**settings.AGENTS, "SMS_PROVIDER": "memory"}
    texter.say("hello", to=THEIRS, sender=OURS)
    write, failures = outbox._write, iter(range(6))

    def away(*args: Any) -> None:
        if next(failures, None) is not None:
            raise OperationalError("the database system is starting up")
        write(*args)

    monkeypatch.setattr(outbox, "_write", away)
    assert outbox.send_due() == 1
    assert OutboundText.objects.get().status == TextStatus.SENT


def test_a_provider_has_loaded_what_it_needs_before_it_is_given_texts(texter, settings, monkeypatch):
    settings.AGENTS = {**settings.AGENTS, "SMS_PROVIDER": "memory"}
    texter.say("hello", to=THEIRS, sender=OURS)
    seen = []
    warm = lambda self: seen.append(OutboundText.objects.get().status)  # noqa: E731
    monkeypatch.setattr(MemoryProvider, "warm", warm)
    assert outbox.send_due() == 1
    assert seen[0] == TextStatus.QUEUED


AT_THE_END = """
import concurrent.futures.thread as futures, os, time, types
import django

django.setup()
from conversations import outbox


class Provider:
    name = "late"

    def send(self, outgoing):
        return f"sent {outgoing.text.uid}"


def late():
    while not futures._shutdown:
        time.sleep(0.01)
    texts = [types.SimpleNamespace(text=types.SimpleNamespace(uid=n)) for n in range(3)]
    claimed = [outbox.Claimed(Provider(), text) for text in texts]
    print(outbox._send_all(claimed), flush=True)


futures.ThreadPoolExecutor(1).submit(late)
"""


def test_texts_that_are_claimed_while_the_process_ends_are_sent():
    """An interpreter that ends waits for its threads, and starts no other: not one for each text, either."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['sent 0', 'sent 1', 'sent 2']", done.stderr
