"""``agents.testing``: what users' tests, and ours, are written with."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from agents import Agent, clock, faults, testing
from agents.exceptions import DatabaseUnavailableError
from agents.models import Actor
from agents.testing import CrashError, advance, crash_at, drain
from scheduler.models import Task
from tests.agents.cast import Counter, Keeper, Timely, Writer, outside
from tests.agents.facts import attempts, messages, tasks

pytestmark = pytest.mark.django_db(transaction=True)


def test_drain_runs_until_nothing_is_due_and_says_how_much():
    stub = Keeper.named("k")
    stub.sync.plan([["queue", ["again", 5], {"id": "again"}]])
    assert drain() == 5
    assert messages(stub) == ["again 5", "again 4", "again 3", "again 2", "again 1"]
    assert drain() == 0


def test_drain_runs_only_the_actors_that_it_is_given():
    for name in "abc":
        Keeper.named(name).sync.tell("keep", name)
    assert drain(Keeper.named("a"), Keeper.named("b")) == 2
    assert [messages(Keeper.named(n)) for n in "abc"] == [["a"], ["b"], []]


def test_drain_does_not_spin_for_ever():
    class Spinner(Agent):
        kind = "test-spinner"

        async def spin(self) -> None:
            await self.queue("spin")

    Spinner.named("s").sync.tell("spin")
    with pytest.raises(AssertionError, match="50"):
        drain(limit=50)


def test_a_retry_does_not_run_in_the_drain_of_its_failure_however_long_that_takes():
    stub = Keeper.named("k")
    stub.sync.tell("keep_unless", {"text": "x", "failures": 1})
    with faults.at("commit.committed", lambda: advance(3)):
        assert drain() == 1
    assert attempts(stub) == ["failed"]
    assert drain() == 1
    assert messages(stub) == ["x"]


def test_advance_moves_what_is_due_by_seconds_or_a_timedelta():
    stub = Keeper.named("k")
    stub.sync.plan(
        [["schedule", [3600, "keep", "hour"], {}], ["schedule", [dt.timedelta(days=3), "keep", "days"], {}]]
    )
    assert drain() == 0
    advance(3540)
    assert drain() == 0
    advance(60)
    assert drain() == 1
    advance(dt.timedelta(days=3))
    assert drain() == 1
    assert messages(stub) == ["hour", "days"]
    testing.reset_clock()
    assert clock.offset == dt.timedelta()


def test_the_moved_clock_is_the_agents_now():
    class Watch(Agent):
        kind = "test-watch"

        async def look(self) -> dt.datetime:
            return self.now()

    before = timezone.now()
    advance(86_400)
    seen = Watch.named("w").sync.look()
    assert dt.timedelta(0) <= seen - before - dt.timedelta(days=1) < dt.timedelta(minutes=1)


@pytest.mark.parametrize("point", ["claim.commit", "commit.begin", "commit.locked",
                                   "commit.written", "commit.commit"])  # fmt: skip
def test_a_crash_before_a_commit_leaves_nothing(point):
    stub = Counter.named("c")
    with crash_at(point), pytest.raises((CrashError, DatabaseUnavailableError)):
        stub.sync.add()
    assert not Actor.objects.exclude(state=None, token=None).exists()
    assert stub.sync.add() == 1


def test_a_crash_happens_as_often_as_it_is_asked_for():
    stub = Writer.named("w")
    stub.sync.tell("everything")
    with crash_at("commit.commit", times=2):  # the turn's own commit, and that of its failure's record
        drain()
    assert messages(stub) == []
    assert attempts(stub) == ["running"]
    advance(60)  # the lease is dead: whoever comes next finds the attempt and records it as lost
    drain()
    assert attempts(stub) == ["lost"]
    advance(2)
    drain()
    assert attempts(stub) == ["lost", "done"]
    assert messages(stub) == ["hello"]


# An overridden now()


def test_an_overridden_now_moves_what_the_agent_sees_and_what_is_due():
    Timely.time = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    stub = Timely.named("t")
    assert stub.sync.plan(3600) == "2030-01-01T00:00:00+00:00"
    assert Task.objects.get().due_at == dt.datetime(2030, 1, 1, 1, tzinfo=dt.UTC)
    assert drain() == 0
    Timely.time += dt.timedelta(seconds=3599)
    assert drain() == 0
    Timely.time += dt.timedelta(seconds=1)  # due exactly now
    assert drain() == 1
    assert messages(stub) == ["struck"]


def test_a_clock_that_is_behind_the_databases_makes_nothing_spin():
    from scheduler.dispatchers import local

    Timely.time = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    stub = Timely.named("t")
    local.start(sweeping=False)
    claims = []
    with faults.at("claim.leased", lambda: claims.append(1)):
        stub.sync.plan(3600)  # long ago by the database's clock
        import time

        time.sleep(0.5)
    assert len(claims) < 5
    assert tasks(stub) == [("strike", "pending", 0)]
    Timely.time += dt.timedelta(hours=1)
    local.stop()
    assert drain() == 1
    assert messages(stub) == ["struck"]
    assert outside == []
    assert Actor.objects.get().alarm is None
