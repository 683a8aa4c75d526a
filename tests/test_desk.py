"""The admin's front page: what is stuck, who is at work, and plots of the day and the week."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.adminkit import TookTooLongError
from agents.models import Actor, TurnRecord
from conversations.models import Conversation, InboundText, OutboundText
from scheduler import tally
from scheduler.models import Attempt, HourTally, Pulse, Task
from tests.adminpages import HOSTILE, page, signed_in
from tests.servers import ROOT

pytestmark = pytest.mark.django_db

FRONT = "/admin/"
MOST_QUERIES = 20


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


def ago(**span: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(**span)


def an_actor(name: str = "x", kind: str = "support", **fields: Any) -> Actor:
    return Actor.objects.create(kind=kind, name=name, **fields)


def an_attempt(actor: Actor, **fields: Any) -> Attempt:
    fields = {
        "task_pk": 1, "task_id": "t", "lane": "timer", "method": "process", "number": 1,
        "turn_id": uuid.uuid4(), "outcome": "done", "due_at": ago(minutes=5), "started_at": ago(minutes=5),
    } | fields  # fmt: skip
    return Attempt.objects.create(actor=actor, **fields)


def a_text(actor: Actor, status: str, **fields: Any) -> OutboundText:
    return OutboundText.objects.create(
        actor=actor, uid=uuid.uuid4(), from_number="+1", to_number="+2", text="x", status=status, **fields
    )


def everything_stuck(name: str = "x", kind: str = "support") -> Actor:
    actor = an_actor(name, kind, alarm=ago(hours=2), token=uuid.uuid4(), lease_expires_at=ago(minutes=3))
    parked = {"status": "parked", "parked_at": ago(hours=1), "error": "RateLimitError: 429"}
    Task.objects.create(actor=actor, task_id="p", method="process", due_at=ago(hours=2), **parked)
    an_attempt(actor, outcome="running")
    an_attempt(actor, outcome="failed", error="boom")
    Conversation.objects.create(actor=actor, last_at=ago(hours=3), asked_seq=1, asked_at=ago(hours=3))
    a_text(actor, "undelivered")
    a_text(actor, "queued", due_at=ago(minutes=9))
    InboundText.objects.create(
        actor=actor, provider="telnyx", event_id=name, message_id=name, from_number="+1", to_number="+2",
        status="waiting",
    )  # fmt: skip
    return actor


TITLES = [
    "1 Parked tasks", "1 Overdue", "1 Turns whose process died", "1 People without an answer",
    "2 Texts that did not arrive", "1 Texts that no agent took", "1 Failed attempts",
]  # fmt: skip


def test_a_site_at_rest_says_that_nothing_is_stuck(client: Client) -> None:
    an_actor()
    seen = page(client, FRONT)
    assert seen.status == 200 and "Nothing is stuck." in seen.text


def test_each_thing_that_is_stuck_leads_to_the_list_that_has_it(client: Client) -> None:
    everything_stuck()
    seen = page(client, FRONT)
    for title in TITLES:
        assert title in seen.text, title
    assert "support: process 1 RateLimitError: 429" in seen.text
    lists = [url for url in seen.hrefs() if "?" in url and "/admin/" in url]
    assert len(lists) >= 12
    for url in lists:
        found = client.get(url).context["cl"].result_list
        assert [getattr(row, "actor_id", row.pk) for row in found] == [Actor.objects.get().pk] * len(found), (
            url
        )
        assert found, url


def test_an_operator_of_one_kind_sees_what_is_stuck_there_and_nothing_else(charlie: Any) -> None:
    everything_stuck("mine", "support")
    everything_stuck("theirs", "secretive")
    charlie.is_staff = True
    charlie.save()
    other = signed_in(charlie)
    bare = page(other, FRONT).text
    assert "Stuck" not in bare and "secretive" not in bare
    wanted = ["view_kind_support", "view_task", "view_attempt", "view_message", "view_outboundtext",
              "view_inboundtext"]  # fmt: skip
    charlie.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    seen = page(other, FRONT)
    for title in TITLES:
        assert title in seen.text, title
    assert "secretive" not in seen.html
    charlie.user_permissions.remove(Permission.objects.get(codename="view_task"))
    assert "Parked" not in page(other, FRONT).text


def test_it_says_when_workers_and_beat_were_seen(client: Client, settings: Any) -> None:
    assert "Scheduler never seen" in page(client, FRONT).text
    settings.AGENTS = {**getattr(settings, "AGENTS", {}), "DISPATCHER": "celery"}
    Pulse.objects.create(name="sweep", seen_at=ago(seconds=20))
    Pulse.objects.create(name="beat", seen_at=ago(minutes=7))
    seen = page(client, FRONT)
    assert "Workers seen 20 s ago" in seen.text and "Beat seen 7 min ago" in seen.text
    tones = [a.get("data-tone") for tag, a in seen.elements if a.get("class") == "agents-badge"]
    assert tones == ["good", "bad"]


def test_plots_of_day_and_week_have_words_and_numbers_beside_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "AT_ONCE", tally.WEEK)
    actor = an_actor()
    for hours in (0, 1, 1, 30):
        at = ago(hours=hours)
        an_attempt(actor, due_at=at - dt.timedelta(seconds=4), started_at=at, outcome="failed")
        text = a_text(actor, "delivered")
        OutboundText.objects.filter(pk=text.pk).update(created_at=at)
        TurnRecord.objects.create(
            actor=actor, version=TurnRecord.objects.count() + 1, turn_id=uuid.uuid4(), origin="task",
            method="m", outcome="done", started_at=at, duration_seconds=1, committed_at=at,
        )  # fmt: skip
    for query, total in (({}, 3), ({"span": "week"}, 4), ({"span": "'\"><nonsense"}, 3)):
        seen = page(client, FRONT, **query)
        assert seen.html.count('class="pygal-chart"') == 4 and seen.harmless
        drawings = [a["aria-label"] or "" for _, a in seen.elements if a.get("role") == "img"]
        assert [label.split(",")[0] for label in drawings] == [
            "Texts",
            "Turns",
            "Lateness of tasks",
            "Failures",
        ]
        assert "mean: 4 s at most" in drawings[2]
        plots = seen.response.context["plots"]
        assert sum(plots[1].series[0].values) == sum(plots[0].series[1].values) == total
        assert sum(plots[3].series[0].values) == total
        assert "<script" not in "".join(plot.svg() for plot in plots)


def test_an_hour_that_is_over_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "AT_ONCE", tally.WEEK)
    now = dt.datetime(2026, 11, 30, 12, 30, tzinfo=dt.UTC)
    actor, early = an_actor(), now - dt.timedelta(hours=5)
    an_attempt(actor, started_at=early, due_at=early)
    an_attempt(actor, started_at=now, due_at=now - dt.timedelta(seconds=8), outcome="failed")

    def seen() -> list[tuple[int, int, int]]:
        return [(t.hour.hour, t.attempts, t.failures) for t in tally.hours(24, now).tallies]

    assert seen() == [(7, 1, 0), (12, 1, 1)]
    assert HourTally.objects.filter(kind="").count() == 22
    an_attempt(actor, started_at=early, due_at=early)  # too late to be counted
    an_attempt(actor, started_at=now, due_at=now)
    assert seen() == [(7, 1, 0), (12, 2, 1)]
    an_attempt(an_actor(kind="billing"), started_at=now, due_at=now)
    assert tally.by_hour(tally.hours(24, now).tallies)[now.replace(minute=0)].attempts == 3


def test_a_look_counts_so_many_hours_at_most_and_says_how_many_are_left(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "AT_ONCE", 100)
    actor = an_actor()
    for hours in (1, 50, 150):
        an_attempt(actor, started_at=ago(hours=hours), outcome="failed")

    def seen() -> tuple[int, bool]:
        shown = page(client, FRONT, span="week")
        return sum(shown.response.context["plots"][3].series[0].values), "not counted yet" in shown.text

    assert seen() == (2, True)
    assert seen() == (3, False)
    assert "not counted yet" not in page(client, FRONT).text


def test_hours_that_are_over_are_counted_without_a_look(django_assert_num_queries: Any) -> None:
    now = dt.datetime(2026, 11, 30, 12, 30, tzinfo=dt.UTC)
    actor = an_actor()
    for hours in (1, 3, 100):
        an_attempt(actor, started_at=now - dt.timedelta(hours=hours))
    assert tally.settle(now) == tally.WEEK - 2
    with django_assert_num_queries(1):
        assert tally.settle(now) == 0
    left = tally.kept(tally.WEEK, now)
    assert ([t.hour.hour for t in left.tallies], [hour.hour for hour in left.uncounted]) == ([8, 9], [11, 12])
    Attempt.objects.all().delete()
    assert sum(t.attempts for t in tally.hours(tally.WEEK, now).tallies) == 2


def test_where_counting_takes_too_long_the_page_has_what_is_kept(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_attempt(an_actor(), started_at=ago(hours=30))
    tally.settle()

    def slow(*args: Any) -> Any:
        raise TookTooLongError

    monkeypatch.setattr(tally, "hours", slow)
    shown = page(client, FRONT, span="week")
    assert "of the hours are not counted yet" in shown.text
    assert sum(one.attempts for one in tally.kept(tally.WEEK).tallies) == 1


def test_more_rows_are_not_more_queries(client: Client) -> None:
    def count(span: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(FRONT, {"span": span}).status_code == 200
        return len(queries)

    everything_stuck()
    few = [(count("day"), count(span))[1] for span in ("day", "week")]
    for n in range(20):
        everything_stuck(f"n{n}", "support" if n % 2 else "billing")
    assert [count(span) for span in ("day", "week")] <= few
    assert max(few) <= MOST_QUERIES


def test_what_people_and_models_wrote_is_text(client: Client) -> None:
    for hostile in HOSTILE:
        actor = an_actor(hostile, kind=hostile[:60], alarm=ago(hours=1))
        Task.objects.create(
            actor=actor, task_id="p", method=hostile, due_at=ago(hours=2), status="parked",
            parked_at=ago(hours=1), error=hostile,
        )  # fmt: skip
        an_attempt(actor, outcome="failed")
    assert page(client, FRONT).harmless


def test_a_process_that_has_drawn_a_plot_finds_its_packages():
    code = """
import importlib.metadata, sys
from scheduler.plots import Plot, Series
assert "<svg" in Plot("texts", ["1", "2"], [Series("texts", [1, 2])]).svg()
try:
    import setuptools  # looks for what the backport of importlib.metadata left, and takes it out
except ImportError:
    pass
assert importlib.metadata.version("redis")
assert "importlib_metadata" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60, cwd=ROOT)
