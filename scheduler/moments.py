"""What may be given as a pause, an interval or a moment. Pure; every refusal is a ScheduleError."""

from __future__ import annotations

import datetime as dt
import math

from agents.exceptions import ScheduleError

#: How far ahead a task may lie, and how long an interval may be: a hundred years.
FURTHEST = 36_525 * 86_400.0  # seconds
#: The shortest interval of a recurring task. Anything shorter would only spin. Seconds.
SHORTEST_INTERVAL = 0.001


def pause(seconds: float | dt.timedelta) -> float:
    """Seconds from now: zero or more, at most FURTHEST."""
    value = _seconds(seconds)
    if value < 0:
        raise ScheduleError(f"seconds must not be negative, got {seconds!r}")
    return value


def interval(seconds: float | dt.timedelta) -> float:
    """Seconds between two runs: positive, at least SHORTEST_INTERVAL, at most FURTHEST."""
    value = _seconds(seconds)
    if value <= 0:
        raise ScheduleError(f"interval must be positive, got {seconds!r}")
    if value < SHORTEST_INTERVAL:
        raise ScheduleError(f"interval must be at least {SHORTEST_INTERVAL} s, got {seconds!r}")
    return value


def moment(at: dt.datetime, now: dt.datetime) -> dt.datetime:
    """A due time in UTC. A moment that has passed is ``now``."""
    if not isinstance(at, dt.datetime):
        raise ScheduleError(f"a datetime is needed, got {type(at).__name__}")
    if at.utcoffset() is None:
        raise ScheduleError(f"an aware datetime is needed, got the naive {at.isoformat()}")
    # Compared before converting: the first and last days of the calendar have no UTC time in some zones.
    if at <= now:
        return now
    if at > now + dt.timedelta(seconds=FURTHEST):
        raise ScheduleError(f"{at.isoformat()} is more than a hundred years ahead")
    return at.astimezone(dt.UTC)


def _seconds(value: float | dt.timedelta) -> float:
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScheduleError(f"seconds must be a number or a timedelta, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ScheduleError(f"seconds must be finite, got {value!r}")
    if value > FURTHEST:
        raise ScheduleError(f"at most a hundred years ({FURTHEST:.0f} s) ahead, got more")
    return float(max(value, -1))  # an integer below any float is only known to be negative
