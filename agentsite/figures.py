"""What the database knows, as Prometheus asks for it: what waits, since when, and what is stuck.

Each figure is read from an index of its own, and counts to ``MOST`` at most: a heap of a million parked tasks
costs a scrape no more than one of ten thousand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Min, Q, QuerySet
from django.db.models.functions import Now
from prometheus_client.core import GaugeMetricFamily, Metric

from agents import kinds
from agents.models import Actor
from agents.store import get_store
from conversations.models import OutboundText, TextStatus
from scheduler.models import Lane, Pulse, Task

#: What is counted no further: read it as "so many, or more".
MOST = 10_000
#: How long one statement may take.
PATIENCE = 2.0  # seconds

#: Texts that are on their way, and those that somebody should look at. Others are counted as they happen.
STATUSES = (
    TextStatus.QUEUED,
    TextStatus.SENDING,
    TextStatus.UNKNOWN,
    TextStatus.FAILED,
    TextStatus.UNDELIVERED,
)


def read() -> list[Metric]:
    """The figures, as they are now. Raises DatabaseError."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {int(PATIENCE * 1000)}")
        return [*_tasks(), *_texts(), *_pulses()]


def _tasks() -> Iterator[Metric]:
    now = get_store().sql.now()
    free = Q(token__isnull=True) | Q(lease_expires_at__lte=Now())
    overdue = Actor.objects.due().filter(free)
    yield _gauge(
        "agents_actors_overdue", "Free actors with a task that could run.", "kind", _by_kind(overdue, "kind")
    )
    first = overdue.order_by("alarm").values_list("alarm", flat=True).first()
    yield GaugeMetricFamily(
        "agents_actors_overdue_seconds", "Since when the first of them could run.", _age(now, first)
    )
    parked = Task.objects.parked()
    yield _gauge(
        "agents_tasks_parked", "Tasks that used up their retries.", "kind", _by_kind(parked, "actor__kind")
    )
    inbox = Task.objects.pending().filter(lane=Lane.INBOX, pk__gt=0)  # as the index says
    yield _gauge("agents_inbox_tasks", "What waits in inboxes.", "kind", _by_kind(inbox, "actor__kind"))
    yield GaugeMetricFamily(
        "agents_inbox_age_seconds", "Since when the oldest of it waits.",
        _age(now, inbox.aggregate(oldest=Min("created_at"))["oldest"]),
    )  # fmt: skip


def _texts() -> Iterator[Metric]:
    now = get_store().sql.now()
    counts = {str(status): OutboundText.objects.filter(status=status)[:MOST].count() for status in STATUSES}
    yield _gauge("agents_outbox_texts", "Texts that wait, or that went wrong, by status.", "status", counts)
    due = OutboundText.objects.filter(status=TextStatus.QUEUED, due_at__lte=Now())
    oldest = due.aggregate(oldest=Min("due_at"))["oldest"]
    yield GaugeMetricFamily(
        "agents_outbox_age_seconds", "Since when the oldest text that may be sent waits.", _age(now, oldest)
    )


def _pulses() -> Iterator[Metric]:
    yield _gauge(
        "agents_pulse_age_seconds", "When a sweep, and beat, were seen last.", "name", Pulse.objects.ages()
    )


def _by_kind(rows: QuerySet[Any], kind: str) -> dict[str, int]:
    """How many of each kind; of all together MOST at most."""
    few = rows.model._default_manager.filter(pk__in=rows.order_by()[:MOST].values("pk"))
    counts = dict(few.order_by().values_list(kind).annotate(count=Count("pk")))
    return {**dict.fromkeys(kinds.installed(), 0), **counts}


def _age(now: dt.datetime, moment: dt.datetime | None) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


def _gauge(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family
