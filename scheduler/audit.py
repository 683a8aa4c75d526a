"""The audit: what must be true of the rows whatever happened to processes, broker and network.

Each check yields findings, one a broken actor or row, in bounded memory. A site at work is always in the
middle of something: ``settled`` (seconds) is how long a thing may be under way before it is a finding.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Count, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import Lag

from agents import conf, kinds
from agents.models import Actor, Event, Page, Pause, TurnRecord
from agents.saying import RECEIVE
from agents.store import get_store
from conversations.models import (
    Consent,
    ConsentState,
    InboundStatus,
    InboundText,
    Message,
    OutboundText,
    TextEvent,
    TextStatus,
)
from conversations.models.text import furthest, is_forward
from scheduler.models import Attempt, AttemptOutcome, Lane, Task


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be: which check found it, about what, and what is wrong."""

    check: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.subject}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Moment:
    """When the audit runs, by the database's clock."""

    now: dt.datetime
    settled: dt.timedelta

    @property
    def before(self) -> dt.datetime:
        return self.now - self.settled


Check = Callable[[Moment], Iterator[Finding]]

#: Clocks of providers and of this machine may differ by this.
UNWANTED_SLACK = dt.timedelta(seconds=60)


def audit(settled: float = 60.0) -> Iterator[Finding]:
    """Runs every check; yields what it finds. Nothing is changed."""
    moment = Moment(get_store().sql.now(), dt.timedelta(seconds=settled))
    for check in CHECKS:
        yield from check(moment)


def seqs(moment: Moment) -> Iterator[Finding]:
    """Message numbers are 1, 2, 3 ... up to the actor's own count."""
    rows = Message.objects.order_by().values("actor_id", "actor__kind", "actor__name", "actor__seq")
    counted = rows.annotate(n=Count("pk"), first=Min("seq"), last=Max("seq"))
    for row in counted.exclude(n=F("last"), first=1).iterator():
        yield _actor("seqs", row, f"{row['n']} messages numbered {row['first']} to {row['last']}")
    for row in counted.exclude(last=F("actor__seq")).iterator():
        yield _actor("seqs", row, f"the last message is {row['last']}, the actor says {row['actor__seq']}")
    silent = Actor.objects.filter(seq__gt=0, messages__isnull=True)
    for actor in silent.iterator():
        yield Finding("seqs", str(actor), f"no messages, the actor says {actor.seq}")


def versions(moment: Moment) -> Iterator[Finding]:
    """Every commit left its record (those that retention took were the oldest)."""
    rows = TurnRecord.objects.order_by().values("actor_id", "actor__kind", "actor__name", "actor__version")
    counted = rows.annotate(n=Count("pk"), first=Min("version"), last=Max("version"))
    for row in counted.exclude(n=F("last") - F("first") + 1, last=F("actor__version")).iterator():
        problem = f"{row['n']} records from {row['first']} to {row['last']}, version {row['actor__version']}"
        yield _actor("versions", row, problem)


def cursors(moment: Moment) -> Iterator[Finding]:
    """Events are numbered without gaps up to the actor's own count."""
    rows = Event.objects.order_by().values("actor_id", "actor__kind", "actor__name", "actor__cursor")
    counted = rows.annotate(n=Count("pk"), first=Min("cursor"), last=Max("cursor"))
    for row in counted.exclude(n=F("last") - F("first") + 1, last=F("actor__cursor")).iterator():
        problem = f"{row['n']} events from {row['first']} to {row['last']}, cursor {row['actor__cursor']}"
        yield _actor("cursors", row, problem)


def pages(moment: Moment) -> Iterator[Finding]:
    """The pages of an actor's SQL database are 1, 2, 3 ..., and none is newer than the actor."""
    rows = Page.objects.order_by().values("actor_id", "actor__kind", "actor__name", "actor__version")
    counted = rows.annotate(n=Count("number"), last=Max("number"), newest=Max("version"))
    for row in counted.exclude(n=F("last")).iterator():
        yield _actor("pages", row, f"{row['n']} pages, the last is number {row['last']}")
    for row in counted.filter(newest__gt=F("actor__version")).iterator():
        problem = f"a page of version {row['newest']}, the actor is at {row['actor__version']}"
        yield _actor("pages", row, problem)


def leases(moment: Moment) -> Iterator[Finding]:
    """No lease is long dead: a sweep or a caller takes such an actor over."""
    dead = Actor.objects.filter(token__isnull=False, lease_expires_at__lt=moment.before)
    for actor in _at_work(dead).iterator():
        yield Finding("leases", str(actor), f"a lease has been dead since {actor.lease_expires_at}")


def attempts(moment: Moment) -> Iterator[Finding]:
    """No attempt is open whose turn nobody holds."""
    held = Q(actor__token__isnull=False, actor__lease_expires_at__gte=moment.before)
    open = Attempt.objects.filter(
        outcome=AttemptOutcome.RUNNING, started_at__lt=moment.before, actor__in=_at_work(Actor.objects.all())
    )
    for attempt in open.exclude(held).select_related("actor").iterator():
        yield Finding("attempts", f"{attempt.actor} {attempt.method}", f"open since {attempt.started_at}")


def twice(moment: Moment) -> Iterator[Finding]:
    """No task was done twice. What recurs is done once for each moment at which it was due."""
    done = Attempt.objects.filter(outcome=AttemptOutcome.DONE).order_by()
    whose = ("actor__kind", "actor__name", "method", "task_pk")
    for tasks in (
        done.exclude(lane=Lane.TIMER).values(*whose),
        done.filter(lane=Lane.TIMER).values(*whose, "due_at"),
    ):
        for row in tasks.annotate(n=Count("pk")).filter(n__gt=1).iterator():
            yield _actor("twice", row, f"{row['method']} (task {row['task_pk']}) was done {row['n']} times")


def order(moment: Moment) -> Iterator[Finding]:
    """What came into an inbox first was done first. What was parked and replayed has lost its place."""
    replayed = (
        Attempt.objects.filter(lane=Lane.INBOX, number=1)
        .exclude(outcome=AttemptOutcome.RELEASED)
        .order_by()
        .values("task_pk")
        .annotate(n=Count("pk"))
        .filter(n__gt=1)
    )
    done = Attempt.objects.filter(lane=Lane.INBOX, outcome=AttemptOutcome.DONE)
    # What is said while an operator holds the conversation goes past the rest.
    taken_in = TurnRecord.objects.filter(origin="takeover").values("turn_id")
    done = done.exclude(turn_id__in=taken_in)
    rows = done.exclude(task_pk__in=replayed.values("task_pk")).annotate(
        before=Window(Lag("ended_at"), partition_by="actor_id", order_by="task_pk")
    )
    late = rows.filter(before__gt=F("ended_at")).values("actor__kind", "actor__name", "task_pk", "before")
    for row in late.iterator():
        yield _actor(
            "order", row, f"task {row['task_pk']} was done before an earlier one, at {row['before']}"
        )


def alarms(moment: Moment) -> Iterator[Finding]:
    """The alarm is the moment when the first pending task could run; of a paused actor none could."""
    # One statement, so one moment: read one after the other, a site at work would seem wrong.
    pending = Task.objects.pending().filter(actor=OuterRef("pk"))
    timer = pending.exclude(lane=Lane.INBOX).order_by("due_at").values("due_at")[:1]
    head = pending.filter(lane=Lane.INBOX).order_by("pk").values("due_at")[:1]
    said = pending.filter(lane=Lane.INBOX, method=RECEIVE).order_by("pk").values("due_at")[:1]
    rows = Actor.objects.annotate(timer=Subquery(timer), head=Subquery(head), said=Subquery(said))
    columns = ("kind", "name", "alarm", "taken_at", "paused_at", "said", "timer", "head")
    for kind, name, alarm, taken, paused, said_at, *dues in rows.values_list(*columns).iterator():
        if taken:
            first = said_at
        else:
            first = min((due for due in dues if due is not None and not paused), default=None)
        if alarm != first:
            yield Finding("alarms", f"{kind}/{name}", f"alarm {alarm}, first task {first}")


def overdue(moment: Moment) -> Iterator[Finding]:
    """What is due runs: nothing waits for longer than it should."""
    free = Q(token__isnull=True) | Q(lease_expires_at__lt=moment.now)
    for actor in _at_work(Actor.objects.filter(free, alarm__lt=moment.before)).iterator():
        why = "" if actor.kind in kinds.installed() else " (no app here declares the kind)"
        yield Finding("overdue", str(actor), f"something has been due since {actor.alarm}{why}")


def inbound(moment: Moment) -> Iterator[Finding]:
    """Every text that was acknowledged was received once, or still waits to be."""
    # Attempts tell; older ones may be gone.
    kept = moment.now - dt.timedelta(seconds=conf.get("KEEP_ATTEMPTS")) + dt.timedelta(days=1)
    for actor_id, kind, name in _texted():
        # In this order: a text is first accepted, then waits, then is received, and the site is at work.
        accepted = InboundText.objects.filter(
            actor_id=actor_id, status=InboundStatus.ACCEPTED, received_at__gte=kept
        )
        ids = list(accepted.values_list("message_id", flat=True))
        tasks = Task.objects.filter(actor_id=actor_id, method=RECEIVE)
        waiting = {_id(payload) for payload in tasks.values_list("payload", flat=True).iterator()}
        received, delivered = set(), Counter[str]()
        done = Attempt.objects.filter(actor_id=actor_id, method=RECEIVE, outcome=AttemptOutcome.DONE)
        for lane, payload in done.values_list("lane", "payload").iterator():
            received.add(_id(payload))
            if lane == Lane.INBOX:  # what an operator replays is no delivery
                delivered[_id(payload)] += 1
        for id in ids:
            if delivered[id] > 1:
                yield Finding("inbound", f"{kind}/{name} {id}", f"received {delivered[id]} times")
            elif id not in received and id not in waiting:
                yield Finding("inbound", f"{kind}/{name} {id}", "never received")


def waiting(moment: Moment) -> Iterator[Finding]:
    """No text waits for somebody who can take it."""
    texts = InboundText.objects.filter(status=InboundStatus.WAITING, received_at__lt=moment.before)
    for text in texts.iterator():
        yield Finding("waiting", f"text {text.pk} from {text.from_number}", text.error)


def outbound(moment: Moment) -> Iterator[Finding]:
    """No text is stuck between the database and its provider."""
    stuck = OutboundText.objects.filter(status=TextStatus.SENDING, claimed_at__lt=moment.before)
    late = OutboundText.objects.filter(status=TextStatus.QUEUED, due_at__lt=moment.before)
    for text in (stuck | late).iterator():
        yield Finding("outbound", f"text {text.pk} to {text.to_number}", f"{text.status} since {text.due_at}")


def reports(moment: Moment) -> Iterator[Finding]:
    """Each text is as far as its last try's reports say, and no two are one message of the provider's."""
    told = TextEvent.objects.exclude(status="").filter(text__isnull=False, received_at__lt=moment.before)
    for text in OutboundText.objects.filter(pk__in=told.values("text")).iterator():
        said = told.filter(text=text, provider_id=text.provider_id).values_list("status", flat=True)
        far = furthest(said)
        if text.provider_id and far and is_forward(text.status, far):
            yield Finding("reports", f"text {text.pk} to {text.to_number}", f"{text.status}, reported {far}")
    named = OutboundText.objects.exclude(provider_id="").order_by().values("provider", "provider_id")
    for row in named.annotate(n=Count("pk")).filter(n__gt=1).iterator():
        yield Finding(
            "reports", f"{row['provider']} {row['provider_id']}", f"{row['n']} texts have this name"
        )


def unwanted(moment: Moment) -> Iterator[Finding]:
    """Nobody got a text after they had said that they want none."""
    refusals = Consent.objects.filter(state=ConsentState.OPTED_OUT).exclude(their_number="")
    for consent in refusals.iterator():
        texts = OutboundText.objects.between(consent.their_number, consent.our_number)
        # One that was on its way at that moment is not a fault.
        after = texts.filter(claimed_at__gt=consent.changed_at + UNWANTED_SLACK, notice=False)
        for text in after.exclude(status=TextStatus.FAILED).iterator():
            problem = f"{text.status}, sent at {text.claimed_at} after {consent.changed_at}"
            yield Finding("unwanted", f"text {text.pk} to {text.to_number}", problem)


def sessions(moment: Moment) -> Iterator[Finding]:
    """No database session sits in an open transaction (PostgreSQL)."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT pid, application_name, state_change FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%%'
                  AND state_change < clock_timestamp() - interval '1 second'"""
        )
        for pid, application, since in cursor.fetchall():
            yield Finding(
                "sessions", f"{application or 'session'} {pid}", f"idle in a transaction since {since}"
            )


CHECKS: tuple[Check, ...] = (
    seqs, versions, cursors, pages, leases, attempts, twice, order, alarms, overdue, inbound, waiting,
    outbound, reports, unwanted, sessions,
)  # fmt: skip


def _at_work(actors: QuerySet[Actor]) -> QuerySet[Actor]:
    """Those that nobody has paused."""
    if Pause.objects.filter(kind=Pause.EVERYTHING).exists():
        return actors.none()
    paused = Pause.objects.values("kind")
    return actors.filter(paused_at__isnull=True, taken_at__isnull=True).exclude(kind__in=paused)


def _texted() -> Iterator[tuple[int, str, str]]:
    actors = Actor.objects.filter(inbound_texts__isnull=False).distinct()
    yield from actors.values_list("pk", "kind", "name").iterator()


def _id(payload: Any) -> str:
    return str(payload.get("id")) if isinstance(payload, dict) else ""


def _actor(check: str, row: Mapping[str, Any], problem: str) -> Finding:
    return Finding(check, f"{row['actor__kind']}/{row['actor__name']}", problem)
