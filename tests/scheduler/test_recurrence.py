"""The next fire of a recurring task. Pure."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator

import pytest
from django.test import override_settings

from scheduler.recurrence import next_due

START = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def process_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("django_zone", "process"),
    [
        ("Europe/Lisbon", "UTC"),
        ("Pacific/Kiritimati", "America/New_York"),
        ("Pacific/Pago_Pago", "Asia/Tokyo"),
    ],
)
def test_an_interval_of_ten_seconds_runs_six_times_a_minute_in_every_zone(
    django_zone: str, process: str, process_zone: None
) -> None:
    os.environ["TZ"] = process
    time.tzset()
    with override_settings(TIME_ZONE=django_zone):
        runs, due = 0, START + dt.timedelta(seconds=10)
        for second in range(61):
            now = START + dt.timedelta(seconds=second)
            if due <= now:
                runs += 1
                due = next_due(10.0, "", "", now) or now
        assert runs == 6


def test_after_an_outage_a_task_runs_once_and_then_keeps_its_rhythm() -> None:
    back = START + dt.timedelta(hours=3, seconds=7)
    assert next_due(300.0, "", "", back) == back + dt.timedelta(seconds=300)
    assert next_due(None, "*/5 * * * *", "UTC", back) == START + dt.timedelta(hours=3, minutes=5)


def test_a_task_that_runs_once_has_no_next_fire() -> None:
    assert next_due(None, "", "", START) is None
