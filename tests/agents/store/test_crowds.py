"""Two of everything: threads and processes that want the same actor at the same moment."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from agents.models import Actor
from agents.store.requests import Claim, Claimed, Committed
from agents.turn import Tell
from scheduler.models import Attempt, InboxKey, Task
from tests.agents.store import worker
from tests.agents.store.stage import KIND, Stage, in_threads


def test_of_many_that_claim_an_actor_one_wins(stage: Stage) -> None:
    for drain in (False, True):
        for _ in range(5):
            actor = stage.actor()
            stage.told(actor, 1)
            results = in_threads(*[lambda: stage.try_claim(actor, drain=drain)] * 8)  # noqa: B023
            (won,) = [r for r in results if r is not None]
            assert stage.row(actor).token == won.token
            assert Attempt.objects.filter(actor_id=actor).count() == int(drain)
            stage.expire(actor)
            stage.try_claim(actor)


def test_of_many_that_take_over_a_dead_lease_one_wins_and_the_attempt_is_lost_once(stage: Stage) -> None:
    for _ in range(5):
        actor = stage.actor()
        stage.told(actor, 1)
        stage.drain(actor)
        stage.expire(actor)
        results = in_threads(*[lambda: stage.try_claim(actor)] * 6)  # noqa: B023
        assert len([r for r in results if r is not None]) == 1
        assert Attempt.objects.get(actor_id=actor).outcome == "lost"
        assert Task.objects.get(actor_id=actor).attempts == 1


def test_tells_that_race_the_drain_of_their_actor_all_run(stage: Stage) -> None:
    """Nobody sweeps here: the last to free the lease sees in the alarm what was told meanwhile."""
    actor, tellers, each = stage.actor(), 4, 12
    address = stage.address(actor)
    told: list[str] = []
    ran: list[str] = []
    due = threading.Semaphore(0)

    def tell() -> None:
        for n in range(each):
            tell = stage.tell_to(*address, payload=n)
            told.append(tell.task_id)
            _, alarms = stage.store.tell([tell])
            if any(a.due for a in alarms):
                due.release()

    def drain() -> None:
        deadline = time.monotonic() + 200
        while len(ran) < tellers * each and time.monotonic() < deadline:
            if not due.acquire(timeout=30):
                return  # nobody woke us: the test fails below
            claimed = stage.try_claim(actor, drain=True)
            if claimed is None:
                row = stage.store.inspect(actor)
                if row is not None and not row["leased"]:
                    due.release()  # its row was locked for a moment
                continue
            if claimed.task is None:
                committed = stage.commit(stage.release(claimed))
            else:
                ran.extend(stage.run_drain(claimed))
                committed = None
            after = stage.store.sql.alarms([actor], claimed.actor.now)
            if committed is None or any(a.at is not None for a in after):
                due.release()

    in_threads(*[tell] * tellers, drain)
    assert sorted(ran) == sorted(told)
    assert Attempt.objects.filter(outcome="done").count() == tellers * each
    stage.audit(quiet=True)


def test_whoever_frees_a_lease_sees_what_was_told_meanwhile(stage: Stage) -> None:
    """A tell that comes between the claim and the release is in the release's alarm."""
    actor = stage.actor()
    for _ in range(10):
        claimed = stage.claim(actor)
        address = stage.address(actor)
        (committed, _) = in_threads(
            lambda: stage.commit(stage.dirty(claimed)),  # noqa: B023
            lambda: stage.store.tell([stage.tell_to(*address)]),  # noqa: B023
        )
        alarm = stage.row(actor).alarm
        assert alarm is not None
        # Either the commit came first and the tell woke, or the commit saw it and wakes.
        assert isinstance(committed, Committed)
        if committed.alarms[0].at is None:
            assert committed.now is not None and alarm >= committed.now
        stage.run_all(actor)


def test_one_key_from_many_threads_is_one_task(stage: Stage) -> None:
    actor = stage.actor()
    address = stage.address(actor)
    results = in_threads(*[lambda: stage.store.tell([stage.tell_to(*address, key="event-1")])[0]] * 8)
    assert sorted(results) == [[False]] * 7 + [[True]]
    assert Task.objects.filter(actor_id=actor).count() == 1


def test_one_key_stays_known_after_its_task_is_done(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1, key="event-1")
    assert len(stage.run_all(actor)) == 1
    assert stage.store.tell([stage.tell(actor, key="event-1")])[0] == [False]
    assert stage.store.tell([stage.tell(stage.actor(), key="event-1")])[0] == [True]
    assert InboxKey.objects.count() == 2


def test_many_first_messages_make_one_actor(stage: Stage) -> None:
    for _ in range(4):
        name = stage.name()
        in_threads(*[lambda: stage.store.tell([Tell(KIND, name, "go", None)])] * 6)  # noqa: B023
        assert Task.objects.filter(actor=Actor.objects.get(kind=KIND, name=name)).count() == 6


def test_turns_that_tell_the_same_new_actors_make_each_once(stage: Stage) -> None:
    names = [stage.name() for _ in range(4)]

    def turn(order: list[str]) -> Callable[[], Any]:
        claimed = stage.claim(stage.actor())
        commit = stage.dirty(claimed, tells=[Tell(KIND, name, "go", None) for name in order])
        return lambda: stage.commit(commit)

    in_threads(*[turn(names if n % 2 else names[::-1]) for n in range(6)])
    assert Task.objects.filter(actor__name__in=names).count() == 24
    assert Actor.objects.filter(name__in=names).count() == 4


def test_batches_that_tell_the_same_actors_in_any_order_all_commit(stage: Stage) -> None:
    targets = [stage.actor() for _ in range(5)]

    def batch(shift: int) -> Callable[[], list[Any]]:
        commits = [
            stage.dirty(
                stage.claim(stage.actor()),
                messages=1,
                tells=[stage.tell(targets[(n + shift) % 5]), stage.tell(targets[(shift - n) % 5])],
            )
            for n in range(5)
        ]
        return lambda: stage.store.commit(commits)

    for results in in_threads(*[batch(shift) for shift in range(4)]):
        assert all(isinstance(r, Committed) for r in results), results
    assert Task.objects.filter(lane="inbox").count() == 40


def test_claims_of_the_same_actors_in_opposite_orders_never_wait(stage: Stage) -> None:
    actors = [stage.actor() for _ in range(10)]

    def claim(order: list[int]) -> Callable[[], list[Any]]:
        return lambda: stage.store.claim([Claim(id, uuid.uuid4()) for id in order])

    for _ in range(5):
        both = in_threads(claim(actors), claim(actors[::-1]))
        held = [c for claims in both for c in claims if isinstance(c, Claimed)]
        assert len({c.actor.id for c in held}) == len(held)
        for claimed in held:
            stage.commit(stage.release(claimed))
        stage.audit(quiet=True)


# Processes


@pytest.mark.processes
def test_two_processes_that_lock_the_same_rows_in_opposite_order_see_no_deadlock(stage: Stage) -> None:
    """STATE-06: 100 rounds of turns and of tells, each naming the actors in its own order."""
    actors = [stage.actor() for _ in range(6)]
    first, second, *targets = actors
    rounds = 100 if connection.vendor == "postgresql" else 30
    said = worker.go(
        worker.start("cross_tells", actors=[first, *targets], rounds=rounds),
        worker.start("lock_and_tell", actors=[*targets[::-1], second], rounds=rounds),
    )
    assert said == [{"errors": []}, {"errors": []}]
    for target in targets:
        assert Task.objects.filter(actor_id=target).count() == 2 * rounds
    stage.audit(quiet=True)


@pytest.mark.processes
def test_two_processes_that_read_and_write_one_actor_lose_no_update(stage: Stage) -> None:
    actor = stage.actor()
    worker.go(*[worker.start("count", actor=actor, rounds=100) for _ in range(2)])
    row = stage.row(actor)
    assert (row.state, row.version) == ({"n": 200}, 200)


@pytest.mark.processes
def test_first_messages_from_two_processes_go_to_one_actor(stage: Stage) -> None:
    """STATE-08: two texts from a new number, handled by two processes at once."""
    name = stage.name()
    ids = worker.go(*[worker.start("first_messages", name=name, rounds=20) for _ in range(2)])
    assert ids[0] == ids[1]
    assert Actor.objects.filter(name__startswith=name).count() == 20
    assert Task.objects.count() == 40
