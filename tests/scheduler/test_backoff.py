"""The pauses between attempts. Pure."""

from __future__ import annotations

import random

import pytest

from scheduler import backoff


def lowest() -> float:
    return 0.0


def highest() -> float:
    return 1.0 - 2**-53


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 64), (8, 128), (9, 256)]
)
def test_pauses_double_and_jitter_lengthens_them_by_a_tenth_at_most(attempt: int, seconds: float) -> None:
    assert backoff.delay(attempt, lowest) == seconds
    assert seconds < backoff.delay(attempt, highest) <= seconds * 1.1


def test_the_first_retry_comes_within_eleven_tenths_of_a_second() -> None:
    assert all(1.0 <= backoff.delay(1) <= 1.1 for _ in range(1000))


def test_no_pause_is_longer_than_five_minutes() -> None:
    for attempt in (9, 10, 11, 64, 1025, 2**31 - 1, 10**30):
        assert 250 < backoff.delay(attempt, lowest) <= backoff.delay(attempt, highest) <= 300


def test_a_later_attempt_never_waits_less_than_an_earlier_one_at_the_same_chance() -> None:
    for chance in (lowest, highest):
        pauses = [backoff.delay(attempt, chance) for attempt in range(1, 40)]
        assert pauses == sorted(pauses)


def test_an_attempt_number_below_one_is_taken_as_the_first() -> None:
    assert backoff.delay(0, lowest) == backoff.delay(-5, lowest) == 1.0


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    rng = random.Random(7)
    assert len({backoff.delay(10, rng.random) for _ in range(100)}) > 90
