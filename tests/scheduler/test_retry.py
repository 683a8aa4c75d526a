"""What follows a failed attempt. Pure."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from agents.exceptions import GiveUp, Retry
from scheduler import retry


def never() -> float:
    return 0.0


def test_a_failure_is_retried_max_retries_times_after_the_first_delivery_and_then_parks() -> None:
    error = ValueError("no")
    decisions = [retry.decide(error, attempts, 3, never) for attempts in (1, 2, 3, 4)]
    assert [(d.parks, d.after) for d in decisions] == [(False, 1), (False, 2), (False, 4), (True, 0)]


def test_without_retries_the_first_failure_parks() -> None:
    assert retry.decide(ValueError(), 1, 0).parks
    assert retry.decide(Retry(after=5), 1, 0).parks
    assert retry.decide(None, 1, 0).parks


def test_give_up_parks_at_once() -> None:
    decision = retry.decide(GiveUp("the number does not exist"), 1, 5)
    assert decision.parks
    assert decision.reason == "GiveUp: the number does not exist"


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (0, 0),
        (0.5, 0.5),
        (90, 90),
        (dt.timedelta(minutes=2), 120),
        (-1, 0),
        (-math.inf, 0),
        (-(10**400), 0),
        (retry.MAX_PAUSE, retry.MAX_PAUSE),
        (retry.MAX_PAUSE + 1, retry.MAX_PAUSE),
        (math.inf, retry.MAX_PAUSE),
        (10**400, retry.MAX_PAUSE),
    ],
)
def test_retry_sets_the_pause_within_bounds(after: Any, seconds: float) -> None:
    decision = retry.decide(Retry(after=after), 1, 5, never)
    assert not decision.parks
    assert decision.after == seconds


@pytest.mark.parametrize("after", [None, math.nan, "soon", True, object()])
def test_an_after_that_is_no_number_leaves_the_pause_to_the_backoff(after: Any) -> None:
    assert retry.decide(Retry(after=after), 3, 5, never).after == 4


def test_retry_counts_as_an_attempt() -> None:
    assert retry.decide(Retry(after=1), 6, 5).parks


def test_a_lost_attempt_is_retried_like_any_other_and_says_what_happened() -> None:
    decision = retry.decide(None, 1, 5, never)
    assert (decision.parks, decision.after) == (False, 1)
    assert "lost" in decision.reason
    assert retry.decide(None, 6, 5).parks


def test_a_base_exception_is_a_failure_too() -> None:
    assert retry.decide(SystemExit(1), 1, 5, never).after == 1
    assert retry.decide(KeyboardInterrupt(), 1, 5, never).reason == "KeyboardInterrupt"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError(), "ValueError"),
        (ValueError("  \n "), "ValueError"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError("nul \x00 and half \ud83d"), "ValueError: nul \ufffd and half \ufffd"),
        (UnprintableError(), "UnprintableError"),
    ],
)
def test_a_reason_is_one_storable_line(error: BaseException, line: str) -> None:
    assert retry.describe(error) == line


def test_a_reason_has_a_bounded_length() -> None:
    room = retry.REASON_MAX_LENGTH - len("ValueError: ")
    assert retry.describe(ValueError("x" * room)) == "ValueError: " + "x" * room
    long = retry.describe(ValueError("x" * (room + 1)))
    assert len(long) == retry.REASON_MAX_LENGTH
    assert long.endswith("x…")


def test_of_a_long_traceback_the_beginning_and_the_end_are_kept() -> None:
    def fails(text: str) -> str:
        try:
            raise ValueError(text)
        except ValueError as error:
            return retry.trace(error)

    short = fails("no")
    assert short.startswith("Traceback") and short.endswith("ValueError: no\n")
    long = fails("a" + "x" * 10_000_000 + "z")
    assert len(long) < retry.TRACEBACK_MAX_LENGTH + 100
    assert long.startswith("Traceback") and "ValueError: ax" in long and long.endswith("xz\n")
    assert "characters are left out" in long


def test_an_error_that_cannot_print_itself_has_a_traceback() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot")

    assert "MuteError" in retry.trace(MuteError())
