"""Pauses, intervals and moments at their edges. Pure."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

from agents.exceptions import ScheduleError
from scheduler import moments

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0.0), (-0.0, 0.0), (1, 1.0), (0.25, 0.25), (dt.timedelta(hours=1), 3600.0),
     (moments.FURTHEST, moments.FURTHEST)],
)  # fmt: skip
def test_a_pause_is_zero_or_more(given: Any, seconds: float) -> None:
    assert moments.pause(given) == seconds


@pytest.mark.parametrize(
    "given",
    [-1, -1e-9, -math.inf, math.inf, math.nan, -(10**400), 10**400, moments.FURTHEST + 1, dt.timedelta(-1),
     True, "60", None, Decimal(3), dt.timedelta.max],
)  # fmt: skip
def test_a_pause_that_cannot_be_kept_is_refused(given: Any) -> None:
    with pytest.raises(ScheduleError):
        moments.pause(given)


@pytest.mark.parametrize(
    "given", [0, 0.0, -1, -60.5, math.nan, math.inf, -math.inf, dt.timedelta(), 1e-9, 0.0009]
)
def test_an_interval_that_is_not_positive_is_refused(given: Any) -> None:
    with pytest.raises(ScheduleError):
        moments.interval(given)


def test_the_shortest_and_the_longest_interval() -> None:
    assert moments.interval(moments.SHORTEST_INTERVAL) == 0.001
    assert moments.interval(dt.timedelta(milliseconds=1)) == 0.001
    assert moments.interval(moments.FURTHEST) == moments.FURTHEST
    with pytest.raises(ScheduleError, match="hundred years"):
        moments.interval(moments.FURTHEST + 1)


def test_a_moment_is_given_in_utc_whatever_its_zone() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert moments.moment(dt.datetime(2026, 12, 1, 9, tzinfo=tokyo), NOW) == dt.datetime(
        2026, 12, 1, tzinfo=dt.UTC
    )
    assert moments.moment(dt.datetime(2026, 12, 1, 9, tzinfo=tokyo), NOW).tzinfo is dt.UTC


@pytest.mark.parametrize(
    "zone", [dt.UTC, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-12))]
)
def test_a_moment_that_has_passed_is_now(zone: dt.tzinfo) -> None:
    assert moments.moment(dt.datetime(1, 1, 1, tzinfo=zone), NOW) == NOW
    assert moments.moment(NOW - dt.timedelta(microseconds=1), NOW) == NOW


@pytest.mark.parametrize(
    "zone", [dt.UTC, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-12))]
)
def test_a_moment_more_than_a_hundred_years_ahead_is_refused(zone: dt.tzinfo) -> None:
    edge = NOW + dt.timedelta(seconds=moments.FURTHEST)
    assert moments.moment(edge.astimezone(zone), NOW) == edge
    for late in (edge + dt.timedelta(seconds=1), dt.datetime.max):
        with pytest.raises(ScheduleError):
            moments.moment(late.replace(tzinfo=zone) if late.tzinfo is None else late.astimezone(zone), NOW)


@pytest.mark.parametrize("given", [dt.datetime(2026, 12, 1), dt.date(2026, 12, 1), "2026-12-01", 1.0, None])
def test_a_moment_without_a_zone_is_refused(given: Any) -> None:
    with pytest.raises(ScheduleError):
        moments.moment(given, NOW)
