"""Recurring tasks over a day, on a clock that jumps: each firing once, at its moment, never two at once.

A month of a thousand actors is ``python -m tests.scheduler.month``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from agents.models import Actor
from scheduler.models import Attempt, Task
from tests.scheduler import recurring
from tests.scheduler.recurring import EVERY, START, Punctual, begun, play, wrong_attempts, wrong_states

pytestmark = pytest.mark.django_db(transaction=True)

ACTORS = 12
DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _clock() -> Iterator[None]:
    recurring.reset()
    yield
    recurring.reset()


def copy_of(attempt: Attempt) -> Attempt:
    copy = Attempt.objects.get(pk=attempt.pk)
    copy.pk = None
    return copy


def counts() -> set[tuple[int, int]]:
    """How often they were fired, and how often at another moment than it should have been."""
    states = Actor.objects.values_list("state", flat=True)
    return {(state["count"], state["off"]) for state in states if state}


def test_every_five_minutes_for_a_day_neither_drifts_nor_overlaps():
    ids = begun(ACTORS)
    for _ in range(DAY // EVERY):
        Punctual.moment += EVERY
        play(ids)
    assert wrong_attempts(ACTORS, START, START + DAY) == []
    assert wrong_states(ACTORS, START + DAY) == []


def test_a_firing_that_is_missing_late_or_doubled_is_seen():
    """What the month is judged by finds what it is there for."""
    ids = begun(3)
    for _ in range(4):
        Punctual.moment += EVERY
        play(ids)
    until = START + 4 * EVERY
    assert wrong_attempts(3, START, until) == wrong_states(3, until) == []
    kept = list(Attempt.objects.filter(method="tick").order_by("pk"))
    first = Attempt.objects.filter(pk=kept[0].pk)
    for break_it in (
        lambda: first.delete(),
        lambda: Attempt.objects.bulk_create([copy_of(kept[0])]),
        lambda: first.update(due_at=kept[0].due_at + EVERY),
        lambda: first.update(due_at=kept[0].due_at + dt.timedelta(seconds=1)),
        lambda: first.update(outcome="failed"),
        lambda: first.update(number=2),
    ):
        break_it()
        assert len(wrong_attempts(3, START, until)) >= 1
        Attempt.objects.filter(method="tick").delete()
        Attempt.objects.bulk_create(kept)
        assert wrong_attempts(3, START, until) == []
    Actor.objects.filter(pk=ids[0]).update(alarm=until)
    assert len(wrong_states(3, until)) == 1


def test_three_hours_without_anybody_are_caught_up_once_by_each_of_fifty_actors():
    """SCH-10: one run each, then the rhythm that it was."""
    ids = begun(50)
    Punctual.moment += dt.timedelta(hours=3)
    play(ids)
    play(ids)
    assert counts() == {(1, 1)}
    for _ in range(3):
        Punctual.moment += EVERY
        play(ids)
    assert counts() == {(4, 1)}
    assert Task.objects.filter(method="tick").count() == 50
    assert Punctual.overlaps == 0
