"""The audit: a healthy database has no findings, and each kind of damage is found and named."""

import datetime as dt
import uuid
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from agents.models import Actor, Event, TurnRecord
from agents.testing import drain
from conversations.models import InboundText, Message, OutboundText
from scheduler.audit import CHECKS, audit
from scheduler.models import Attempt, Task
from tests.agents.cast import Writer, outside

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = dt.timedelta(hours=1)


@pytest.fixture
def actor():
    """One that wrote, scheduled, texted and has run a task."""
    outside.clear()
    Writer.named("healthy").sync.tell("everything")
    drain()
    OutboundText.objects.update(status="sent")
    return Actor.objects.get(name="healthy")


def found():
    return {finding.check for finding in audit()}


def test_a_healthy_database_has_no_findings(actor, capsys):
    call_command("audit")
    assert f"{len(CHECKS)} checks, nothing found" in capsys.readouterr().out


def test_a_message_that_is_gone_is_found(actor):
    Message.objects.all().delete()
    assert found() == {"seqs"}


def test_a_gap_in_the_message_numbers_is_found(actor):
    Message.objects.update(seq=2)
    assert found() == {"seqs"}


def test_a_commit_without_its_record_is_found(actor):
    TurnRecord.objects.create(
        actor=actor, version=9, turn_id=uuid.uuid4(), origin="call", method="m", outcome="done",
        started_at=timezone.now(), duration_seconds=0,
    )  # fmt: skip
    assert found() == {"versions"}


def test_a_gap_in_the_events_is_found(actor):
    Event.objects.filter(cursor=1).update(cursor=7)
    assert found() == {"cursors"}


def test_a_lease_that_nobody_took_over_is_found(actor):
    Actor.objects.update(token=uuid.uuid4(), lease_expires_at=timezone.now() - LONG_AGO)
    assert found() == {"leases"}


def test_an_attempt_that_nobody_runs_is_found(actor):
    Attempt.objects.update(outcome="running", started_at=timezone.now() - LONG_AGO)
    assert found() == {"attempts"}


#: Keys of tasks behind whatever the database has given out by now.
FAR = 10**15


def told(method, task_pk, minutes, **changes):
    """An attempt of the inbox that was done so many minutes after what the actor did."""
    at = timezone.now() + dt.timedelta(minutes=minutes)
    fields = {
        "actor": Actor.objects.get(), "task_pk": task_pk, "task_id": str(task_pk), "lane": "inbox",
        "method": method, "number": 1, "turn_id": uuid.uuid4(), "outcome": "done",
        "due_at": at, "started_at": at, "ended_at": at,
    }  # fmt: skip
    return Attempt.objects.create(**{**fields, **changes})


def test_a_task_that_was_done_twice_is_found(actor):
    told("receive", FAR + 1, 1)
    assert found() == set()
    told("receive", FAR + 1, 2, number=2)
    assert found() == {"twice"}


def test_a_recurring_task_is_done_once_for_each_moment(actor):
    due = timezone.now() - LONG_AGO
    for minutes in range(3):
        told("tick", FAR + 1, minutes + 1, lane="timer", due_at=due + dt.timedelta(minutes=minutes))
    assert found() == set()
    told("tick", FAR + 1, 5, lane="timer", due_at=due)
    assert found() == {"twice"}


def test_a_text_that_was_received_before_an_earlier_one_is_found(actor):
    told("receive", FAR + 1, 2)
    told("receive", FAR + 2, 3)
    assert found() == set()
    told("receive", FAR + 3, 1)
    assert found() == {"order"}


def test_what_was_parked_and_replayed_or_given_back_has_not_overtaken_anybody(actor):
    told("receive", FAR + 1, 1, outcome="failed")
    told("receive", FAR + 2, 2, outcome="released")
    told("receive", FAR + 2, 3)
    told("receive", FAR + 1, 9)  # when an operator had replayed it
    assert found() == set()


def test_an_alarm_that_would_ring_at_the_wrong_time_is_found(actor):
    Actor.objects.update(alarm=None)
    assert found() == {"alarms"}


def test_a_task_that_nobody_runs_is_found(actor):
    due = timezone.now() - LONG_AGO
    Task.objects.update(due_at=due)
    Actor.objects.update(alarm=due)
    assert found() == {"overdue"}


def test_a_text_that_was_acknowledged_and_lost_is_found(actor):
    InboundText.objects.create(actor=actor, provider="telnyx", event_id="e", message_id="m")
    assert found() == {"inbound"}


def test_a_text_that_is_stuck_on_its_way_out_is_found(actor):
    OutboundText.objects.update(status="sending", claimed_at=timezone.now() - LONG_AGO)
    assert found() == {"outbound"}


def test_the_command_exits_with_one_and_counts_what_it_did_not_print(actor):
    Actor.objects.update(alarm=None, seq=5)
    with pytest.raises(CommandError, match="2 findings") as error:
        call_command("audit", "--most", "1")
    assert error.value.returncode == 1


def test_every_check_is_explained_to_operators():
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    assert [check.__name__ for check in CHECKS if f"| `{check.__name__}` |" not in page] == []
