"""What is stuck, for the admin's front page: each thing with its number and the list that has it.

Every question is answered by an index of its own or stops counting at MOST, so that the page costs the same
in a large database. Whoever asks sees what they may (``agents/permissions.py``).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents import conf, permissions
from agents.display import list_url, seconds, short, when
from agents.models import Actor
from conversations.models import Conversation, InboundText, OutboundText, TextStatus
from scheduler.checks import SILENCE
from scheduler.models import Attempt, AttemptOutcome, HourTally, Pulse, PulseName, Task

#: Rows that are counted of one thing.
MOST = 1_000
#: What is due for less than this is on its way.
LATE = dt.timedelta(seconds=60)
#: People who have waited for less are not stuck.
WAITED = dt.timedelta(minutes=10)
#: Parts of one thing that are named.
NAMED = 5

TODAY = dt.timedelta(hours=24)


@dataclass(frozen=True)
class Part:
    """Some of the stuck things, alike: a method of a kind, a status."""

    text: str
    count: str
    url: str
    more: SafeString | str = ""


@dataclass(frozen=True)
class Stuck:
    """One question, and its answer."""

    title: str
    count: int
    url: str
    #: Said where there is nothing.
    fine: str
    parts: list[Part] = field(default_factory=list)

    @property
    def number(self) -> str:
        return bounded(self.count)


@dataclass(frozen=True)
class Sign:
    """Somebody who must be at work, and when they were seen."""

    name: str
    seen: str
    good: bool


def bounded(count: int) -> str:
    return f"{MOST:,}+" if count > MOST else f"{count:,}"


def stuck(user: Any, tallies: Iterable[HourTally]) -> Iterator[Stuck]:
    """What this user may know to be stuck. ``tallies``: of the last 24 hours."""
    now = timezone.now()
    questions: list[tuple[str, Callable[[Any, dt.datetime], Stuck]]] = [
        ("scheduler.view_task", parked),
        ("agents.view_actor", overdue),
        ("scheduler.view_attempt", lost),
        ("conversations.view_message", waiting),
        ("conversations.view_outboundtext", undelivered),
        ("conversations.view_inboundtext", unreceived),
    ]
    for permission, question in questions:
        # Whoever operates a kind sees its actors without a permission for every kind.
        allowed = (
            permissions.is_operator(user)
            if permission == permissions.EVERY_KIND
            else permissions.may(user, permission)
        )
        if allowed:
            yield question(user, now)
    if permissions.may(user, "scheduler.view_attempt"):
        yield failing(tallies)


def parked(user: Any, now: dt.datetime) -> Stuck:
    rows = _seen(user, Task.objects.parked()).order_by("-parked_at")
    found = list(rows.values_list("actor__kind", "method", "error")[: MOST + 1])
    groups = Counter((kind, method) for kind, method, _ in found)
    why: dict[tuple[str, str], str] = {}
    for kind, method, error in found:
        why.setdefault((kind, method), error)
    return Stuck(
        "Parked tasks",
        len(found),
        list_url(Task, status="parked"),
        "No task has given up.",
        [
            Part(
                f"{kind}: {method}",
                f"{count:,}",
                list_url(Task, status="parked", kind=kind, method=method),
                short(why[kind, method], 120),
            )
            for (kind, method), count in groups.most_common(NAMED)
        ],
    )


def overdue(user: Any, now: dt.datetime) -> Stuck:
    rows = _seen(user, Actor.objects.due(now - LATE), "kind").exclude(lease_expires_at__gt=now)
    found = list(rows.order_by("alarm").values_list("kind", "alarm")[: MOST + 1])
    oldest: dict[str, dt.datetime] = {}
    for kind, alarm in found:
        oldest.setdefault(kind, alarm)
    parts = Counter(kind for kind, _ in found).most_common(NAMED)
    return Stuck(
        "Overdue",
        len(found),
        list_url(Actor, stuck="due"),
        "Everything due has begun.",
        [
            Part(
                kind,
                f"{count:,}",
                list_url(Actor, stuck="due", kind=kind),
                format_html("the oldest {}", when(oldest[kind], late=True)),
            )
            for kind, count in parts
        ],
    )


def lost(user: Any, now: dt.datetime) -> Stuck:
    rows = _seen(user, Attempt.objects.filter(outcome=AttemptOutcome.RUNNING))
    count = rows.filter(actor__lease_expires_at__lt=now)[: MOST + 1].count()
    url = list_url(Actor, stuck="lost")
    return Stuck("Turns whose process died", count, url, "Every turn that runs is held.")


def waiting(user: Any, now: dt.datetime) -> Stuck:
    rows = _seen(user, Conversation.objects.waiting().filter(asked_at__lt=now - WAITED)).order_by("asked_at")
    found = list(rows.values_list("actor__kind", "asked_at")[: MOST + 1])
    oldest: dict[str, dt.datetime] = {}
    for kind, asked_at in found:
        oldest.setdefault(kind, asked_at)
    return Stuck(
        "People without an answer",
        len(found),
        list_url(Conversation, waiting="10m"),
        f"Nobody has waited for {seconds(WAITED.total_seconds())}.",
        [
            Part(
                kind,
                f"{n:,}",
                list_url(Conversation, waiting="10m", kind=kind),
                format_html("the oldest {}", when(oldest[kind], late=True)),
            )
            for kind, n in Counter(kind for kind, _ in found).most_common(NAMED)
        ],
    )


def undelivered(user: Any, now: dt.datetime) -> Stuck:
    mine = _seen(user, OutboundText.objects.all())
    bad = [TextStatus.FAILED, TextStatus.UNDELIVERED, TextStatus.UNKNOWN]
    today = mine.filter(created_at__gte=now - TODAY, status__in=bad)
    groups = Counter(today.values_list("status", flat=True)[: MOST + 1])
    late = mine.filter(status__in=[TextStatus.QUEUED, TextStatus.SENDING], due_at__lt=now - LATE)
    groups[TextStatus.QUEUED] += late[: MOST + 1].count()
    return Stuck(
        "Texts that did not arrive, 24 h",
        sum(groups.values()),
        list_url(OutboundText),
        "Every text has gone out.",
        [
            Part(status, bounded(count), list_url(OutboundText, status=status))
            for status, count in groups.most_common()
            if count
        ],
    )


def unreceived(user: Any, now: dt.datetime) -> Stuck:
    rows = _seen(user, InboundText.objects.filter(status="waiting"))
    return Stuck(
        "Texts that no agent took",
        rows[: MOST + 1].count(),
        list_url(InboundText, status="waiting"),
        "Every text that came was taken.",
    )


def failing(tallies: Iterable[HourTally]) -> Stuck:
    """Of the last 24 hours; a kind whose attempts fail."""
    attempts, failures = Counter[str](), Counter[str]()
    for tally in tallies:
        attempts[tally.kind] += tally.attempts
        failures[tally.kind] += tally.failures
    return Stuck(
        "Failed attempts, 24 h",
        sum(failures.values()),
        list_url(Attempt, outcome="failed"),
        "No attempt has failed.",
        [
            Part(
                kind,
                f"{count:,}",
                list_url(Attempt, outcome="failed", kind=kind),
                f"{count / max(attempts[kind], 1):.0%} of {attempts[kind]:,}",
            )
            for kind, count in failures.most_common(NAMED)
            if count
        ],
    )


def signs() -> list[Sign]:
    """Who sweeps, and who beats where beat is needed."""
    ages = Pulse.objects.ages()
    celery = conf.get("DISPATCHER") == "celery"
    names = {PulseName.SWEEP: "Workers" if celery else "Scheduler"} | (
        {PulseName.BEAT: "Beat"} if celery else {}
    )
    return [
        Sign(
            called,
            "never seen" if (age := ages.get(name)) is None else f"seen {seconds(max(age, 0))} ago",
            age is not None and age <= SILENCE,
        )
        for name, called in names.items()
    ]


def _seen(user: Any, rows: QuerySet[Any], field: str = "actor__kind") -> QuerySet[Any]:
    return permissions.visible(user, rows, field)
