"""Cron expressions, zones, and the two odd days a year. Pure."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.exceptions import ScheduleError
from scheduler import cron


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def fires(expression: str, tz: str, after: str, until: str) -> list[str]:
    moment, end, result = at(after), at(until), []
    while (moment := cron.next_fire(expression, tz, moment)) < end:
        result.append(f"{moment:%d %H:%M}")
    return result


# The spring change


def test_a_daily_time_stays_on_the_wall_clock_on_the_spring_change_day() -> None:
    # New York, 8 March 2026: 16:04 is 20:04 UTC from this day on, 21:04 UTC the day before.
    assert cron.next_fire("4 16 * * *", "America/New_York", at("2026-03-07 21:04")) == at("2026-03-08 20:04")
    assert fires("4 16 * * *", "America/New_York", "2026-03-07 00:00", "2026-03-10 00:00") == [
        "07 21:04", "08 20:04", "09 20:04",
    ]  # fmt: skip


def test_a_time_that_does_not_exist_runs_once_at_the_end_of_the_gap() -> None:
    # Paris, 29 March 2026: 02:00 to 03:00 local does not exist; 03:00 is 01:00 UTC.
    assert fires("30 2 * * *", "Europe/Paris", "2026-03-28 00:00", "2026-03-31 00:00") == [
        "28 01:30", "29 01:00", "30 00:30",
    ]  # fmt: skip


def test_several_times_inside_the_gap_run_once_together() -> None:
    for expression in ("*/10 2 * * *", "0,15,45 2 * * *", "* 2 * * *"):
        assert fires(expression, "Europe/Paris", "2026-03-28 23:30", "2026-03-29 12:00") == ["29 01:00"]


def test_a_time_inside_the_gap_and_the_one_at_its_end_are_one_run() -> None:
    assert fires("0 2,3 * * *", "Europe/Paris", "2026-03-28 23:30", "2026-03-29 12:00") == ["29 01:00"]
    assert fires("30 2,3 * * *", "Europe/Paris", "2026-03-28 23:30", "2026-03-29 12:00") == [
        "29 01:00",
        "29 01:30",
    ]


@pytest.mark.parametrize(
    ("tz", "expression", "day", "moment"),
    [
        ("America/Santiago", "0 0 * * *", "2026-09-06", "2026-09-06 04:00"),  # midnight does not exist
        ("Africa/Cairo", "30 0 * * *", "2026-04-24", "2026-04-23 22:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04", "2026-10-03 15:30"),  # a gap of half an hour
        ("Pacific/Apia", "0 9 * * *", "2011-12-30", "2011-12-30 10:00"),  # the whole day does not exist
    ],
)
def test_gaps_of_every_shape_hold_one_run(tz: str, expression: str, day: str, moment: str) -> None:
    before = at(f"{day} 00:00") - dt.timedelta(hours=20)
    seen = []
    while (before := cron.next_fire(expression, tz, before)) <= at(moment):
        seen.append(before)
    assert seen[-1] == at(moment)
    assert len(seen) == len(set(seen)) <= 2


# The autumn change


def test_a_time_that_exists_twice_runs_once_the_first_time() -> None:
    # Paris, 25 October 2026: 02:30 is 00:30 UTC and again 01:30 UTC.
    assert fires("30 2 * * *", "Europe/Paris", "2026-10-24 00:00", "2026-10-27 00:00") == [
        "24 00:30", "25 00:30", "26 01:30",
    ]  # fmt: skip


def test_from_the_middle_of_the_repeated_hour_nothing_runs_again() -> None:
    # 01:10 UTC is 02:10 for the second time.
    assert cron.next_fire("30 2 * * *", "Europe/Paris", at("2026-10-25 01:10")) == at("2026-10-26 01:30")
    assert cron.next_fire("*/15 2-3 * * *", "Europe/Paris", at("2026-10-25 00:50")) == at("2026-10-25 02:00")


# Elapsed time


@pytest.mark.parametrize("hour", ["*", "0-23", "*/1"])
def test_an_expression_for_every_hour_keeps_its_rhythm_through_both_changes(hour: str) -> None:
    spring = fires(f"30 {hour} * * *", "Europe/Paris", "2026-03-28 23:00", "2026-03-29 04:00")
    autumn = fires(f"30 {hour} * * *", "Europe/Paris", "2026-10-24 23:00", "2026-10-25 04:00")
    assert spring == ["28 23:30", "29 00:30", "29 01:30", "29 02:30", "29 03:30"]
    assert autumn == ["24 23:30", "25 00:30", "25 01:30", "25 02:30", "25 03:30"]


TRANSITIONS = [
    ("Europe/Paris", "2026-03-29"),
    ("Europe/Paris", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/Santiago", "2026-09-06"),
    ("America/Santiago", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Asia/Kathmandu", "2026-03-29"),
]


@settings(max_examples=60, deadline=None)
@given(
    where=st.sampled_from(TRANSITIONS),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 23), min_size=1, max_size=4)),
)
def test_every_fire_around_a_change_is_the_one_that_a_look_at_each_minute_finds(
    where: tuple[str, str], minutes: set[int], hours: set[int]
) -> None:
    tz, day = where
    zone, start = ZoneInfo(tz), at(f"{day} 00:00") - dt.timedelta(hours=36)
    expression = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    expected, before = [], start.astimezone(zone).replace(tzinfo=None) - dt.timedelta(minutes=1)
    for minute in range(72 * 60):
        moment = start + dt.timedelta(minutes=minute)
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        # The clock jumped over these minutes of the wall.
        skipped = [
            before + dt.timedelta(minutes=m) for m in range(1, int((wall - before).total_seconds() // 60))
        ]
        shown = [wall] if len(hours) == 24 else [wall, *skipped] if local.fold == 0 else []
        if any(w.minute in minutes and w.hour in hours for w in shown):
            expected.append(moment)
        before = max(wall, before) if len(hours) < 24 else wall
    got, moment = [], start - dt.timedelta(seconds=1)
    while (moment := cron.next_fire(expression, tz, moment)) < start + dt.timedelta(hours=72):
        got.append(moment)
    assert got == expected


# What is accepted


@pytest.mark.parametrize(
    ("expression", "after", "fire"),
    [
        ("0 9 * * MON-FRI", "2026-11-27 10:00", "2026-11-30 09:00"),
        ("0 9 * * mon-fri", "2026-11-27 10:00", "2026-11-30 09:00"),
        ("0 0 1 JAN *", "2026-11-30 00:00", "2027-01-01 00:00"),
        ("*/15 * * * *", "2026-11-30 12:07", "2026-11-30 12:15"),
        ("0 0 L * *", "2026-11-30 12:00", "2026-12-31 00:00"),
        ("0 0 LW * *", "2026-01-15 12:00", "2026-01-30 00:00"),
        ("0 0 * * MON#2", "2026-11-30 12:00", "2026-12-14 00:00"),
        ("0 0 * * 5L", "2026-11-30 12:00", "2026-12-25 00:00"),
        ("0 0 * * 7", "2026-11-30 12:00", "2026-12-06 00:00"),
        ("0 0 29 2 *", "2026-11-30 12:00", "2028-02-29 00:00"),
        ("0 0 * 2 MON#5", "2026-11-30 12:00", "2044-02-29 00:00"),
        ("0 0 13 * FRI", "2026-11-30 12:00", "2026-12-04 00:00"),  # either is enough
        ("0 0 */2 * FRI", "2026-11-30 12:00", "2026-12-11 00:00"),  # both: the field starts with a star
        ("@hourly", "2026-11-30 12:07", "2026-11-30 13:00"),
        ("@daily", "2026-11-30 12:07", "2026-12-01 00:00"),
        ("@midnight", "2026-11-30 12:07", "2026-12-01 00:00"),
        ("@weekly", "2026-11-30 12:07", "2026-12-06 00:00"),
        ("@monthly", "2026-11-30 12:07", "2026-12-01 00:00"),
        ("@YEARLY", "2026-11-30 12:07", "2027-01-01 00:00"),
        ("@annually", "2026-11-30 12:07", "2027-01-01 00:00"),
        ("  0  12 \t * * * ", "2026-11-30 12:07", "2026-12-01 12:00"),
    ],
)
def test_the_grammar(expression: str, after: str, fire: str) -> None:
    cron.check(expression, "UTC")
    assert cron.next_fire(expression, "UTC", at(after)) == at(fire)


def test_a_fire_is_strictly_later_than_the_moment_asked_about() -> None:
    noon = at("2026-11-30 12:00")
    assert cron.next_fire("0 12 * * *", "UTC", noon) == at("2026-12-01 12:00")
    assert cron.next_fire("0 12 * * *", "UTC", noon - dt.timedelta(microseconds=1)) == noon
    assert cron.next_fire("0 12 * * *", "UTC", noon + dt.timedelta(microseconds=1)) == at("2026-12-01 12:00")
    assert cron.next_fire("0 12 * * *", "UTC", noon).tzinfo is dt.UTC


def test_the_moment_may_be_given_in_any_zone_but_not_without_one() -> None:
    tokyo = at("2026-11-30 12:00").astimezone(ZoneInfo("Asia/Tokyo"))
    assert cron.next_fire("30 13 * * *", "Europe/Paris", tokyo) == at("2026-11-30 12:30")
    with pytest.raises(ScheduleError, match="naive"):
        cron.next_fire("0 12 * * *", "UTC", dt.datetime(2026, 11, 30))


# What is refused


@pytest.mark.parametrize(
    "expression", ["0 12 31 4 *", "0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 2 *", "0 0 */30 2 MON#5"]
)
def test_a_date_that_never_comes_is_refused_at_once(expression: str) -> None:
    began = time.thread_time()
    with pytest.raises(ScheduleError, match="never"):
        cron.check(expression, "Europe/Paris")
    with pytest.raises(ScheduleError, match="never"):
        cron.next_fire(expression, "Europe/Paris", at("2026-11-30 12:00"))
    assert time.thread_time() - began < 2  # of this thread's own work


def test_a_day_that_never_comes_beside_a_weekday_means_the_weekday() -> None:
    # Either field is enough, so this is "Mondays in February", as Debian's cron reads it.
    assert cron.next_fire("0 0 31 2 1", "UTC", at("2026-11-30 12:00")) == at("2027-02-01 00:00")


@pytest.mark.parametrize(
    "expression",
    ["", " ", "* * * *", "* * * * * *", "0 */5 * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *",
     "* * 32 * *", "* * * 13 *", "* * * * 8", "x * * * *", "*/0 * * * *", "5-1 * * * *", "1,,2 * * * *",
     "? * * * *", "@reboot",
     "@", "* * * * MON#6", "-1 * * * *", "1.5 * * * *", "* * L-3 * *", "\x00 * * * *", "1/1/1 * * x *",
     "0 " * 300, "١ * * * *", None, 5, b"* * * * *"],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused(expression: Any) -> None:
    with pytest.raises(ScheduleError):
        cron.check(expression, "UTC")


def test_a_refusal_names_the_field() -> None:
    with pytest.raises(ScheduleError, match="hour"):
        cron.check("0 24 * * *", "UTC")
    with pytest.raises(ScheduleError, match="five"):
        cron.check("0 0 0 1 1 *", "UTC")


@pytest.mark.parametrize(
    "tz",
    [
        "",
        "Nowhere/Town",
        "America",
        "../etc/passwd",
        "/etc/passwd",
        "UTC\x00",
        "x" * 65,
        None,
        5,
        "Europe/Paris ",
    ],
)
def test_an_unknown_zone_is_refused(tz: Any) -> None:
    with pytest.raises(ScheduleError, match="zone"):
        cron.check("0 12 * * *", tz)
    with pytest.raises(ScheduleError, match="zone"):
        cron.next_fire("0 12 * * *", tz, at("2026-11-30 12:00"))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789*/,-#LWMONJAN@? ", max_size=24))
def test_any_text_is_accepted_or_refused_and_never_worse(expression: str) -> None:
    try:
        cron.check(expression, "Europe/Paris")
    except ScheduleError:
        return
    moment = cron.next_fire(expression, "Europe/Paris", at("2026-03-28 12:00"))
    assert moment > at("2026-03-28 12:00")
