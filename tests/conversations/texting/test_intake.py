"""Texts that come at once go in together, and nobody can tell the difference."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import faults, store
from agents.erasing import erase
from agents.models import Actor
from agents.observing import announcing
from conversations import inbox, intake
from conversations.intake import Delivered
from conversations.models import Consent, InboundText
from conversations.providers import get_provider
from conversations.providers.base import ReceivedText
from conversations.signals import text_received
from scheduler.models import InboxKey, Task
from tests.agents.store.lines import AFTER, BEFORE, LATE, breakable_line
from tests.agents.store.test_wire import explained, planned
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


@pytest.fixture
def plain(settings) -> None:
    """Nothing but what a test is about keeps a text from its inbox."""
    settings.AGENTS = {**settings.AGENTS, "SMS_LOOP_TEXTS": 0, "SMS_LOOP_SAME": 0, "MAX_INBOX": 10_000}


def some(first: int, senders: Iterable[int]) -> list[Delivered]:
    provider = get_provider("telnyx")
    return [Delivered(provider, text(n, s, f"text {n}")) for n, s in enumerate(senders, first)]


def inboxes() -> dict[str, list[str]]:
    """Message ids by actor, in the order in which they will be read."""
    tasks: dict[str, list[str]] = {}
    for name, payload in Task.objects.order_by("pk").values_list("actor__name", "payload"):
        tasks.setdefault(name, []).append((payload or {})["id"])
    return tasks


def trips_of(work: Callable[[], Any]) -> int:
    """Round trips on this thread's connection, as libpq sends them: each ends with a Sync, or is a Query."""
    connection.ensure_connection()
    pgconn = connection.connection.pgconn
    with tempfile.TemporaryFile() as file:
        pgconn.trace(file.fileno())
        try:
            work()
        finally:
            pgconn.untrace()
        file.seek(0)
        said = [line.split("\t") for line in file.read().decode(errors="replace").splitlines()]
    return sum(line[1] == "F" and line[3] in ("Sync", "Query") for line in said if len(line) > 3)


@pytest.mark.postgres
def test_a_batch_is_three_round_trips_and_four_where_somebody_is_new(plain):
    trips: dict[str, list[int]] = {"new": [], "known": []}
    for at, count in enumerate((1, 8, 60)):
        for again, who in enumerate(("new", "known")):
            sent = some(1000 * at + 100 * again, range(100 * at, 100 * at + count))
            trips[who].append(trips_of(lambda: intake.accept_all(sent)))  # noqa: B023
    assert trips == {"new": [4, 4, 4], "known": [3, 3, 3]}
    assert Task.objects.count() == InboundText.objects.filter(status="accepted").count() == 138


@pytest.mark.postgres
def test_a_look_made_for_an_empty_table_finds_its_rows_by_key_in_a_full_one(plain):
    intake.accept_all(some(0, range(20)))
    plans = {
        statement: explained(name)
        for name, statement in planned()
        if "conversations_inboundtext" in statement and statement.startswith("SELECT")
    }
    assert len(plans) >= 3
    for statement, plan in plans.items():
        said = f"{statement}\n{plan}"
        assert "Seq Scan" not in plan, said
        assert plan.count("Index Scan") + plan.count("Index Only Scan") == plan.count("Index Cond"), said
    (same,) = (plan for statement, plan in plans.items() if "event" in statement)
    assert "event_id <=" in same and "message_id <=" in same


def test_rows_are_in_the_order_of_arrival_and_signals_name_them(plain):
    told: list[int] = []

    def listen(pk: int, **kwargs: Any) -> None:
        told.append(pk)

    text_received.connect(listen)
    try:
        intake.accept_all(some(0, [3, 1, 3, 2, 1, 3]))
        assert announcing.flush()
    finally:
        text_received.disconnect(listen)
    rows = InboundText.objects.order_by("pk")
    assert [row.message_id for row in rows] == [f"message-{n}" for n in range(6)]
    assert told == [row.pk for row in rows]
    assert {row.actor.name == row.from_number for row in rows if row.actor} == {True}
    assert inboxes() == {
        "+15550000003": ["message-0", "message-2", "message-5"],
        "+15550000001": ["message-1", "message-4"],
        "+15550000002": ["message-3"],
    }


def test_the_actors_of_a_batch_are_woken(plain):
    woken: list[str] = []

    def listen(alarms: Any) -> None:
        woken.extend(alarm.name for alarm in alarms if alarm.due)

    store.on_alarms.append(listen)
    try:
        intake.accept_all(some(0, [1, 2, 1]))
    finally:
        store.on_alarms.remove(listen)
    assert sorted(woken) == ["+15550000001", "+15550000002"]


async def test_nobodys_text_overtakes_theirs_in_a_slow_batch_and_others_go_beside_it(plain):
    looked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if not looked.is_set():
            looked.set()
            assert go_on.wait(30)

    with faults.at("intake.looked", hold):
        first, second, *others = some(0, [1, 1, 2, 3])
        slow = asyncio.create_task(intake.accept(first))
        assert await asyncio.to_thread(looked.wait, 30)
        behind = asyncio.create_task(intake.accept(second))
        try:
            assert await asyncio.gather(*map(intake.accept, others)) == ["accepted"] * 2
            assert not behind.done()
        finally:
            go_on.set()
        assert await asyncio.gather(slow, behind) == ["accepted"] * 2
    assert (await asyncio.to_thread(inboxes))["+15550000001"] == ["message-0", "message-1"]


# What changes between the look and the write


@contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[None]:
    """``work`` is done once, when a batch has looked and not yet written."""
    done: list[int] = []

    def once() -> None:
        if not done:
            done.append(1)
            work()

    with faults.at("intake.looked", once):
        yield
    assert done


def test_a_text_that_another_process_takes_in_after_the_look_is_its_duplicate(plain):
    sent = some(0, range(5))
    with meanwhile(lambda: inbox.accept(sent[2].provider, sent[2].text)):
        answers = intake.accept_all(sent)
    assert answers == ["accepted", "accepted", "duplicate", "accepted", "accepted"]
    assert InboundText.objects.filter(status="accepted").count() == Task.objects.count() == 5


def test_an_event_that_comes_again_under_another_message_after_the_look_is_refused(plain):
    sent = some(0, range(3))
    other = text(7, 1, "the same event", event_id="event-1")
    with meanwhile(lambda: inbox.accept(sent[1].provider, other)):
        assert intake.accept_all(sent) == ["accepted", "duplicate", "accepted"]
    assert inboxes()["+15550000001"] == ["message-7"]


def test_an_actor_that_is_erased_after_the_look_begins_anew_with_the_text(plain):
    intake.accept_all(some(0, range(3)))
    before = Actor.objects.get(name="+15550000001").pk
    with meanwhile(lambda: erase("texting", "+15550000001", by="a test")):
        assert intake.accept_all(some(10, range(3))) == ["accepted"] * 3
    again = Actor.objects.get(name="+15550000001")
    assert again.pk != before
    assert inboxes()["+15550000001"] == ["message-11"]
    assert InboundText.objects.get(message_id="message-11").actor == again
    assert inboxes()["+15550000002"] == ["message-2", "message-12"]


def test_an_actor_that_is_made_after_the_look_gets_the_text(plain):
    with meanwhile(lambda: Actor.objects.create(kind="texting", name="+15550000001")):
        assert intake.accept_all(some(0, range(3))) == ["accepted"] * 3
    assert Actor.objects.filter(name="+15550000001").count() == 1
    assert inboxes()["+15550000001"] == ["message-1"]


# What a batch stumbles over


def test_what_is_too_much_for_an_inbox_waits_and_the_others_are_taken(plain, settings):
    settings.AGENTS = {**settings.AGENTS, "MAX_INBOX": 9}
    answers = intake.accept_all(some(0, [*[1] * 12, 2, 3]))
    assert answers == ["accepted"] * 9 + ["waiting"] * 3 + ["accepted"] * 2
    assert len(inboxes()["+15550000001"]) == 9
    # Nobody else goes alone because of it; and nothing of theirs overtakes what waits.
    with CaptureQueriesContext(connection) as captured:
        assert intake.accept_all(some(20, [2, 3])) == ["accepted"] * 2
        assert not [q for q in captured if "INSERT INTO" in q["sql"]]
    Task.objects.filter(actor__name="+15550000001").delete()
    assert intake.accept_all(some(30, [2, 1, 3])) == ["accepted", "waiting", "accepted"]


def test_a_text_whose_row_is_gone_and_whose_inbox_remembers_it_leaves_nothing(plain):
    intake.accept_all(some(0, range(3)))
    InboundText.objects.get(message_id="message-1").delete()
    sent = some(10, [0]) + some(1, [1]) + some(12, [2])
    assert intake.accept_all(sent) == ["accepted", "duplicate", "accepted"]
    assert inboxes()["+15550000001"] == ["message-1"]
    assert not InboundText.objects.filter(message_id="message-1").exists()


def test_texts_of_an_agent_that_names_its_actors_go_together_too(plain):
    provider = get_provider("telnyx")
    sent = [Delivered(provider, text(n, n % 4, f"text {n}"), "texting-elsewhere") for n in range(8)]
    sent.append(Delivered(provider, replace(text(8, 0, "hello"), from_number="+15550006666"), sent[0].kind))
    assert intake.accept_all(sent) == ["accepted"] * 8 + ["waiting"]
    assert inboxes()["customer 0001"] == ["message-1", "message-5"]


@pytest.mark.parametrize("how", [BEFORE, AFTER, pytest.param(LATE, marks=pytest.mark.postgres)])
def test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing(plain, how):
    with breakable_line() as line:
        assert intake.accept_all(some(0, [1, 2, 1])) == ["accepted"] * 3
        for at in itertools.count(1):
            sent = some(100 * at, [1, 2, 3, 1, 1000 + at])
            line.cut(at, how)
            answers = intake.accept_all(sent)
            was_cut = line.was_cut
            line.cut(0, how)
            if any(isinstance(answer, Exception) for answer in answers):
                answers = intake.accept_all(sent)  # their provider delivers them again
            assert {str(answer) for answer in answers} <= {"accepted", "duplicate"}
            ids = [d.text.message_id for d in sent]
            assert InboundText.objects.filter(message_id__in=ids, status="accepted").count() == 5
            assert inboxes()["+15550000001"][-2:] == [ids[0], ids[3]]
            if not was_cut:
                break
    assert at > 8, "the batch's statements did not pass here"
    assert Task.objects.count() == InboundText.objects.count() == InboxKey.objects.count()


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
