"""Retention: what is old goes in bounded batches, what somebody still needs stays."""

import datetime as dt
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from agents import erasing
from agents.models import Actor, TurnRecord
from agents.threads import with_connection
from conversations.models import InboundText, OutboundText
from scheduler import retention
from scheduler.models import Attempt, InboxKey, Task
from tests.agents.cast import Keeper
from tests.waiting import somebody_waits_for_a_lock, wait_until

pytestmark = pytest.mark.django_db

KEPT = dt.timedelta(days=30)


@pytest.fixture
def actor():
    return Actor.objects.create(kind="test-counter", name="old")


def turn(actor, version, age):
    return TurnRecord.objects.create(
        actor=actor, version=version, turn_id=uuid.uuid4(), origin="call", method="m", outcome="done",
        started_at=timezone.now() - age, duration_seconds=0.1, committed_at=timezone.now() - age,
    )  # fmt: skip


def attempt(actor, age, outcome="done"):
    return Attempt.objects.create(
        actor=actor, task_pk=1, task_id="t", lane="timer", method="m", number=1, turn_id=uuid.uuid4(),
        outcome=outcome, due_at=timezone.now() - age, started_at=timezone.now() - age,
    )  # fmt: skip


def test_turn_records_go_when_they_are_older_than_the_setting_says_and_not_before(actor):
    turn(actor, 1, KEPT + dt.timedelta(hours=1))
    young = turn(actor, 2, KEPT - dt.timedelta(hours=1))  # NOW was when this run began
    assert retention.prune_history()["turns"] == 1
    assert list(TurnRecord.objects.all()) == [young]


def test_an_attempt_that_is_still_running_stays_whatever_its_age(actor):
    attempt(actor, KEPT * 2)
    running = attempt(actor, KEPT * 2, outcome="running")
    assert retention.prune_history()["attempts"] == 1
    assert list(Attempt.objects.all()) == [running]


def test_inbox_keys_are_kept_for_thirty_five_days(actor):
    for days in (34, 36):
        InboxKey.objects.create(
            actor=actor, key=str(days), accepted_at=timezone.now() - dt.timedelta(days=days)
        )
    retention.prune_history()
    assert [k.key for k in InboxKey.objects.all()] == ["34"]


def test_texts_that_are_not_finished_stay(actor):
    old = timezone.now() - dt.timedelta(days=400)
    for status in ("queued", "sending", "sent", "delivered", "failed", "unknown"):
        OutboundText.objects.create(
            actor=actor,
            uid=uuid.uuid4(),
            from_number="1",
            to_number="2",
            text="t",
            status=status,
            created_at=old,
        )
    InboundText.objects.create(provider="p", event_id="e", message_id="m", received_at=old)
    pruned = retention.prune_history()
    assert (pruned["inbound texts"], pruned["outbound texts"]) == (1, 4)
    assert {t.status for t in OutboundText.objects.all()} == {"queued", "sending"}


def test_pruning_goes_in_batches_and_a_limit_leaves_the_rest_for_the_next_time(actor, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 3)
    for version in range(1, 11):
        turn(actor, version, KEPT * 2)
    assert retention.prune_history(limit=4)["turns"] == 4
    assert retention.prune_history()["turns"] == 6


def test_young_rows_end_the_walk(actor, django_assert_max_num_queries, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    for version in range(1, 21):
        turn(actor, version, dt.timedelta(0))
    with django_assert_max_num_queries(len(retention.HISTORIES)):
        retention.prune_history()


def test_the_command_says_what_it_deleted(actor, capsys):
    turn(actor, 1, KEPT * 2)
    call_command("prune_history")
    assert "turns: 1" in capsys.readouterr().out


@pytest.mark.django_db(transaction=True)
def test_a_kind_has_times_of_its_own_and_its_idle_actors_are_erased(settings):
    settings.AGENTS = {
        **settings.AGENTS,
        "KEEP_BY_KIND": {"short": {"KEEP_TEXTS": 86_400.0, "KEEP_ACTORS": 10 * 86_400.0}},
    }
    now = timezone.now()
    for kind in ("short", "long"):
        for name, age in (("idle", 20), ("fresh", 5), ("busy", 20)):
            created = now - dt.timedelta(days=age)
            due = now + dt.timedelta(days=1) if name == "busy" else None
            actor = Actor.objects.create(kind=kind, name=name, created_at=created, alarm=due)
            InboundText.objects.create(
                actor=actor, provider="memory", event_id=f"{kind}{name}", message_id=f"{kind}{name}",
                from_number="+15550001111", to_number="+15550009999", received_at=now - dt.timedelta(days=2),
            )  # fmt: skip
    assert retention.prune_history()["inbound texts"] == 3
    assert InboundText.objects.filter(actor__kind="long").count() == 3
    left = Actor.objects.filter(kind="short").order_by("name").values_list("name", flat=True)
    assert list(left) == ["busy", "fresh"]
    assert Actor.objects.filter(kind="long").count() == 3


@pytest.mark.django_db(transaction=True)
def test_an_actor_that_is_told_something_while_others_are_erased_stays(settings, monkeypatch):
    settings.AGENTS = {**settings.AGENTS, "KEEP_BY_KIND": {"test-keeper": {"KEEP_ACTORS": 86_400.0}}}
    old = timezone.now() - dt.timedelta(days=20)
    for name in ("first", "second"):
        Actor.objects.create(kind="test-keeper", name=name, created_at=old)

    def tell(actor, words):
        assert Keeper.named("second" if actor.name == "first" else "first").sync.tell("keep", "a text")
        return {}

    monkeypatch.setattr(erasing, "ERASERS", [*erasing.ERASERS, tell])
    assert retention.prune_history()["actors"] == 1
    (left,) = Actor.objects.filter(kind="test-keeper")
    assert Task.objects.filter(actor=left).count() == 1


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_what_is_told_to_an_idle_actor_while_its_erasure_waits_for_its_row_keeps_it(settings):
    settings.AGENTS = {**settings.AGENTS, "KEEP_BY_KIND": {"test-keeper": {"KEEP_ACTORS": 86_400.0}}}
    Actor.objects.create(kind="test-keeper", name="k", created_at=timezone.now() - dt.timedelta(days=20))
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            assert Keeper.named("k").sync.tell("keep", "a text")
            pruned = thread.submit(with_connection, retention.prune_history)
            wait_until(lambda: somebody_waits_for_a_lock() or pruned.done())
        assert "actors" not in pruned.result(30)
        thread.submit(lambda: connection.close()).result(30)
    assert Task.objects.filter(actor__name="k").count() == 1
