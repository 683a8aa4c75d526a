"""Cron expressions in a time zone. Pure: no clock, no database; the grammar is cronsim's (Debian's cron).

Five fields: minute, hour, day of month, month, day of week. Names (``MON-FRI``, ``JAN``), lists, ranges,
steps, ``L`` and ``LW`` (last day, last weekday of the month), ``MON#2`` and ``5L`` (second Monday, last
Friday), Sunday as 0 or 7. ``@hourly``, ``@daily`` or ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly`` or
``@annually``. No seconds. When day of month and day of week are both given, either is enough; when one of
them starts with a star, both must match (Debian's rule).

The two odd days of a year:

- An expression that names its hours (``30 2 * * *``, ``*/15 9-17 * * *``, ``0 */6 * * *``) means the clock on
  the wall, each time once. Times that the spring change skips run once, together, at the first instant
  after the gap: 02:30 in Paris on 29 March 2026 runs at 03:00 local, 01:00 UTC. Times that the autumn change
  repeats run when the clock shows them first.
- An expression for every hour (``*/10 * * * *``, ``5 * * * *``) means elapsed time: nothing falls into the
  gap, and the repeated hour runs twice, as any two hours.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from agents.exceptions import ScheduleError

EXPRESSION_MAX_LENGTH = 255  # characters, the column's width
ZONE_MAX_LENGTH = 64  # characters, the column's width

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_EVERY_HOUR = set(range(24))
# 29 February of a given weekday comes back after at most 40 years; a full cycle is not needed.
_PROBE = dt.datetime(2025, 1, 1)
# No zone changes its offset twice within this time and is back at the first.
_LOOK = dt.timedelta(days=7)


def check(expression: str, tz: str) -> None:
    """Raises ScheduleError, saying what is wrong, for an expression or a zone that cannot be kept."""
    zone(tz)
    _checked(_text(expression))


def next_fire(expression: str, tz: str, after: dt.datetime) -> dt.datetime:
    """The first moment later than ``after`` (aware) at which the expression matches in the zone, in UTC.

    Raises ScheduleError as ``check`` does.
    """
    if after.utcoffset() is None:
        raise ScheduleError("a cron expression needs an aware datetime to start from, got a naive one")
    where = zone(tz)
    fields, every_hour = _checked(_text(expression))
    after = after.astimezone(dt.UTC)
    return _next_elapsed(fields, where, after) if every_hour else _next_wall(fields, where, after)


def zone(tz: str) -> ZoneInfo:
    """The IANA zone of this name; ScheduleError if there is none."""
    if not isinstance(tz, str) or not tz or len(tz) > ZONE_MAX_LENGTH:
        raise ScheduleError(f"time zone must be an IANA name such as 'Europe/Paris', got {tz!r:.100}")
    try:
        return ZoneInfo(tz)
    # A name with "..", a directory ("America"), a file that is no zone.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(
            f"unknown time zone {tz!r}: an IANA name such as 'Europe/Paris' is needed"
        ) from None


def _text(expression: str) -> str:
    if not isinstance(expression, str):
        raise ScheduleError(f"cron expression must be text, got {type(expression).__name__}")
    if len(expression) > EXPRESSION_MAX_LENGTH:
        raise ScheduleError(f"cron expression is longer than {EXPRESSION_MAX_LENGTH} characters")
    return expression


@lru_cache(maxsize=1024)
def _checked(expression: str) -> tuple[str, bool]:
    """The expression as five fields, and whether it runs in every hour of the day."""
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise ScheduleError(f"unknown cron alias {text!r}: there are {', '.join(ALIASES)}")
        text = ALIASES[text.lower()]
    parts = text.split()
    if len(parts) != 5:
        raise ScheduleError(
            f"cron expression {expression!r} has {len(parts)} fields, five are needed: minute, hour, day of"
            " month, month, day of week"
        )
    try:
        schedule = CronSim(" ".join(parts), _PROBE)
    except CronSimError as error:
        any_day, any_month = [*parts[:2], "*", *parts[3:]], [*parts[:3], "*", parts[4]]
        if _parses(any_day) and _parses(any_month):  # then it is the two together
            raise _never(expression) from None
        raise ScheduleError(f"cron expression {expression!r}: {str(error).lower()}") from None
    every_hour = schedule.hours == _EVERY_HOUR
    # cronsim gives up when fifty years hold no match.
    if next(schedule, None) is None:
        raise _never(expression)
    return " ".join(parts), every_hour


def _parses(parts: list[str]) -> bool:
    try:
        CronSim(" ".join(parts), _PROBE)
    except CronSimError:
        return False
    return True


def _never(expression: str) -> ScheduleError:
    return ScheduleError(f"cron expression {expression!r} never matches: none of its months has such a day")


# Placing in the zone. cronsim steps through the calendar without a zone: its own stepping through zones
# misses times beside changes of half an hour, and skips times in the gap when the minute has a star.


def _next_wall(fields: str, where: ZoneInfo, after: dt.datetime) -> dt.datetime:
    """The next time of the wall clock, each once."""
    # Placing keeps the order of wall times, so the first one later than ``after`` is the answer.
    walls = CronSim(fields, after.astimezone(where).replace(tzinfo=None))
    return next(moment for wall in walls if (moment := _place(wall, where)) > after)


def _place(wall: dt.datetime, where: ZoneInfo) -> dt.datetime:
    """The instant (UTC) at which the zone's clock shows ``wall`` first, or the end of the gap it falls in."""
    first = wall.replace(tzinfo=where, fold=0).astimezone(dt.UTC)
    if first.astimezone(where).replace(tzinfo=None, fold=0) == wall:
        return first
    # PEP 495: in a gap, fold=0 reads the clock with the offset before the change and fold=1 with the one
    # after it, so the two instants lie on either side of the change.
    return _change(where, wall.replace(tzinfo=where, fold=1).astimezone(dt.UTC), first)


def _next_elapsed(fields: str, where: ZoneInfo, after: dt.datetime) -> dt.datetime:
    """The next time in elapsed hours: within one offset the calendar decides, then from the change on."""
    wall = after.astimezone(where).replace(tzinfo=None)
    while True:
        match = next(CronSim(fields, wall))
        moment = (match - _offset(where, after)).replace(tzinfo=dt.UTC)
        change = _first_change(where, after, moment)
        if change is None:
            return moment
        after = change
        wall = change.astimezone(where).replace(tzinfo=None) - dt.timedelta(
            seconds=1
        )  # the change itself counts


def _first_change(where: ZoneInfo, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    """The first instant later than ``after``, up to ``until``, from which another offset holds."""
    while after < until:
        look = min(after + _LOOK, until)
        if _offset(where, look) != _offset(where, after):
            return _change(where, after, look)
        after = look
    return None


def _change(where: ZoneInfo, before: dt.datetime, behind: dt.datetime) -> dt.datetime:
    """The instant between two of different offsets from which the first one's no longer holds."""
    offset = _offset(where, before)
    while behind - before > dt.timedelta(seconds=1):  # changes happen on whole seconds
        middle = (before + (behind - before) / 2).replace(microsecond=0)
        if _offset(where, middle) == offset:
            before = middle
        else:
            behind = middle
    return behind


def _offset(where: ZoneInfo, moment: dt.datetime) -> dt.timedelta:
    return moment.astimezone(where).utcoffset() or dt.timedelta()
