"""What happened in each hour, by kind: turns, texts, attempts, failures, lateness. For plots.

An hour that is over is counted once and kept (``HourTally``): by dispatchers each hour, and by whoever looks
at it before. The last two are counted anew each time. So a look costs what a few hours hold, not what the
week holds. What retention deletes later, and what is erased, stays counted: these are numbers alone.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, Count, DurationField, ExpressionWrapper, F, Max, Q, QuerySet
from django.db.models.functions import TruncHour
from django.utils import timezone

from agents.models import TurnRecord
from agents.models.turn import Outcome
from conversations.models import InboundText, OutboundText, TextStatus
from scheduler.models import Attempt, AttemptOutcome, HourTally

HOUR = dt.timedelta(hours=1)
#: An hour is counted for good this long after its end: what is on its way arrives.
SETTLED = dt.timedelta(hours=1)
#: Hours that one look counts at most, of those that nobody has counted.
AT_ONCE = 12
#: Hours back that are looked at.
WEEK = 7 * 24

_BAD_TEXTS = [TextStatus.FAILED, TextStatus.UNDELIVERED, TextStatus.UNKNOWN]


@dataclass(frozen=True)
class Hours:
    """The tallies of some hours, one for each busy kind, oldest first; and the hours nobody has counted."""

    tallies: list[HourTally]
    uncounted: list[dt.datetime]


def kept(count: int, now: dt.datetime | None = None) -> Hours:
    """The last ``count`` hours, this one too, as far as they are kept."""
    this = (now or timezone.now()).replace(minute=0, second=0, microsecond=0)
    first = this - HOUR * (min(count, WEEK) - 1)
    tallies = list(HourTally.objects.filter(hour__gte=first, hour__lte=this))
    known = {tally.hour for tally in tallies}
    hours = (first + HOUR * n for n in range(min(count, WEEK)))
    return Hours(_busy(tallies), [hour for hour in hours if hour not in known])


def hours(count: int, now: dt.datetime | None = None) -> Hours:
    """The same, with the newest AT_ONCE of what was not counted yet."""
    now = now or timezone.now()
    found = kept(count, now)
    missing, rest = found.uncounted[-AT_ONCE:], found.uncounted[:-AT_ONCE]
    return Hours(_busy(found.tallies + _count_and_keep(missing, now)), rest)


def settle(now: dt.datetime | None = None) -> int:
    """Counts the hours of the week that are over and that nobody has counted, each by itself; how many."""
    now = now or timezone.now()
    over = [hour for hour in kept(WEEK, now).uncounted if _over(hour, now)]
    for hour in reversed(over):
        _count_and_keep([hour], now)
    return len(over)


def _busy(tallies: Iterable[HourTally]) -> list[HourTally]:
    return sorted((tally for tally in tallies if tally.kind), key=lambda tally: (tally.hour, tally.kind))


def _over(hour: dt.datetime, now: dt.datetime) -> bool:
    return hour + HOUR + SETTLED <= now


def _count_and_keep(hours: list[dt.datetime], now: dt.datetime) -> list[HourTally]:
    if not hours:
        return []
    counted = [tally for tally in _count(hours[0], hours[-1] + HOUR) if tally.hour in set(hours)]
    _keep(counted, [hour for hour in hours if _over(hour, now)])
    return counted


def _keep(tallies: Iterable[HourTally], over: list[dt.datetime]) -> None:
    rows = [tally for tally in tallies if tally.hour in set(over)]
    # Without a kind: that the hour was counted, even if nothing happened in it.
    rows += [HourTally(hour=hour, kind="") for hour in over]
    if rows:
        HourTally.objects.bulk_create(rows, ignore_conflicts=True)


def _count(start: dt.datetime, end: dt.datetime) -> list[HourTally]:
    tallies: dict[tuple[dt.datetime, str], HourTally] = {}

    def add(rows: QuerySet[Any], moment: str, **numbers: Any) -> None:
        within = rows.filter(**{f"{moment}__gte": start, f"{moment}__lt": end, "actor__isnull": False})
        grouped = within.order_by().annotate(at_hour=TruncHour(moment, tzinfo=dt.UTC))
        for row in grouped.values("at_hour", "actor__kind").annotate(**numbers):
            key = row["at_hour"], row["actor__kind"]
            tally = tallies.setdefault(key, HourTally(hour=key[0], kind=key[1]))
            for name in numbers:
                value = row[name]
                seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
                setattr(tally, name, seconds or 0)

    late = ExpressionWrapper(F("started_at") - F("due_at"), output_field=DurationField())
    partial = [Outcome.CHECKPOINT, Outcome.STEP]
    add(TurnRecord.objects.exclude(outcome__in=partial), "committed_at", turns=Count("pk"))
    add(InboundText.objects.all(), "received_at", texts_in=Count("pk"))
    add(
        OutboundText.objects.all(), "created_at",
        texts_out=Count("pk"), texts_failed=Count("pk", filter=Q(status__in=_BAD_TEXTS)),
    )  # fmt: skip
    failed = Q(outcome__in=[AttemptOutcome.FAILED, AttemptOutcome.LOST])
    add(
        Attempt.objects.annotate(late=late), "started_at",
        attempts=Count("pk"), failures=Count("pk", filter=failed),
        # Of first deliveries: a retry waits on purpose.
        late_seconds=Avg("late", filter=Q(number=1)), latest_seconds=Max("late", filter=Q(number=1)),
    )  # fmt: skip
    return list(tallies.values())


def by_hour(tallies: Iterable[HourTally]) -> dict[dt.datetime, HourTally]:
    """The kinds of each hour together."""
    sums: dict[dt.datetime, HourTally] = defaultdict(HourTally)
    weights: dict[dt.datetime, float] = defaultdict(float)
    for tally in tallies:
        total = sums[tally.hour]
        for name in ("turns", "texts_in", "texts_out", "texts_failed", "attempts", "failures"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        weights[tally.hour] += tally.late_seconds * tally.attempts
        total.latest_seconds = max(total.latest_seconds, tally.latest_seconds)
        total.late_seconds = weights[tally.hour] / total.attempts if total.attempts else 0.0
    return dict(sums)
