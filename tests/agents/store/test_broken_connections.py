"""Connections that die in the middle of everything the store does.

Each operation is run once for each of its statements, which is cut; then what it did must be there exactly
once, its answer must be right, and no lease may be left behind.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from agents import faults
from agents.models import Actor, TurnRecord
from agents.store.requests import Claim, Committed, Next
from agents.turn import Tell
from conversations.models import Message
from scheduler.models import Attempt, InboxKey, Task
from tests.agents.store.lines import AFTER, BEFORE, LATE, Breaker, Line, breakable_line
from tests.agents.store.stage import KIND, Stage
from tests.waiting import wait_until

Scene = tuple[Callable[[], Any], Callable[[Any], None]]


@pytest.fixture
def line(stage: Stage) -> Iterator[Line | Breaker]:
    with breakable_line() as line:
        yield line


def play(stage: Stage, line: Line | Breaker, scene: Callable[[Stage], Scene], how: str) -> None:
    act, check = scene(stage)
    line.cut(0, how)
    result = act()
    statements = line.passed
    check(result)
    for at in range(1, statements + 1):
        act, check = scene(stage)
        line.cut(at, how)
        result = act()
        assert line.was_cut, f"statement {at} of {statements} never came"
        line.cut(0, how)
        if how == LATE and result == [None]:
            # A claim waits for nobody: for a moment the row was locked by what came late.
            result = wait_until(lambda: (again := act()) != [None] and again)  # noqa: B023
        check(result)


# The scenes: what is done, and what must be true after it


def a_claim(stage: Stage) -> Scene:
    actor = stage.actor()
    claim = Claim(actor, uuid.uuid4())

    def check(result: Any) -> None:
        (claimed,) = result
        row = stage.row(actor)
        assert (row.token, row.turn_id) == (claimed.token, claim.turn_id)
        assert isinstance(stage.commit(stage.dirty(claimed, messages=1)), Committed)

    return lambda: stage.store.claim([claim]), check


def two_claims_of_which_one_finds_a_dead_lease(stage: Stage) -> Scene:
    free, dead = stage.actor(), stage.actor()
    stage.told(dead, "work")
    stage.drain(dead)
    stage.expire(dead)
    claims = [Claim(free, uuid.uuid4()), Claim(dead, uuid.uuid4(), wants_on_parked=True)]

    def check(result: Any) -> None:
        for claim, claimed in zip(claims, result, strict=True):
            assert stage.row(claim.actor_id).token == claimed.token
        assert list(Attempt.objects.filter(actor_id=dead).values_list("outcome")) == [("lost",)]
        task = Task.objects.get(actor_id=dead)
        assert (task.attempts, task.status) == (1, "pending")
        assert task.due_at > result[1].actor.now

    return lambda: stage.store.claim(claims), check


def a_drain(stage: Stage) -> Scene:
    actor = stage.actor()
    first, _ = stage.told(actor, 1, 2)

    def check(result: Any) -> None:
        (claimed,) = result
        assert (claimed.task.task_id, claimed.task.attempt, len(claimed.due)) == (first.task_id, 1, 1)
        tries = Attempt.objects.filter(task_pk=first.pk)
        assert tries.get(outcome="running").pk == claimed.task.attempt_pk
        assert Task.objects.get(pk=first.pk).attempts == 1
        assert stage.run_drain(claimed) == [t.task_id for t in (first, _)]

    return lambda: stage.store.claim([Claim(actor, uuid.uuid4(), drain=True)]), check


def a_commit_of_everything(stage: Stage) -> Scene:
    actor, other = stage.actor(), stage.actor()
    claimed = stage.claim(actor)
    commit = stage.dirty(
        claimed,
        messages=2,
        events=1,
        timers=[{"task_id": "nudge"}],
        tells=[
            stage.tell(other, key="once"), stage.tell(other, key="once"), stage.tell(actor),
            Tell(KIND, stage.name(), "hello", None),
        ],
        state={"status": "busy"},
        state_changed=True,
    )  # fmt: skip

    def check(result: Any) -> None:
        (committed,) = result
        assert isinstance(committed, Committed), committed
        assert committed.version == 1
        told = {a.actor_id for a in committed.alarms if a.due}
        assert {actor, other} < told and len(told) == 3
        row = stage.row(actor)
        assert (row.token, row.state, row.seq, row.cursor) == (None, {"status": "busy"}, 2, 1)
        assert Task.objects.filter(actor_id=actor).count() == 2
        assert Task.objects.filter(actor_id=other).count() == 1
        assert InboxKey.objects.filter(actor_id=other).count() == 1

    return lambda: stage.store.commit([commit]), check


def a_batch_of_commits(stage: Stage) -> Scene:
    actors = [stage.actor() for _ in range(3)]
    commits = [stage.dirty(stage.claim(actor), messages=1) for actor in actors]

    def check(result: Any) -> None:
        assert [r.version for r in result] == [1, 1, 1]
        assert not Actor.objects.filter(pk__in=actors).exclude(token=None).exists()

    return lambda: stage.store.commit(commits), check


def a_commit_that_begins_the_next_task(stage: Stage) -> Scene:
    actor = stage.actor()
    first, second = stage.told(actor, 1, 2)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    following = stage.next(claimed)
    commit = stage.dirty(claimed, messages=1, task=stage.done(claimed.task), next=following)

    def check(result: Any) -> None:
        (committed,) = result
        assert committed.version == 1
        assert (committed.next.task_id, committed.next.attempt) == (second.task_id, 1)
        assert list(Task.objects.filter(actor_id=actor)) == [second]
        outcomes = Attempt.objects.filter(actor_id=actor).order_by("pk").values_list("task_pk", "outcome")
        assert list(outcomes) == [(first.pk, "done"), (second.pk, "running")]
        assert stage.row(actor).turn_id == following.turn_id
        last = stage.dirty(
            claimed, after=committed, turn_id=following.turn_id, task=stage.done(committed.next)
        )
        assert stage.commit(last).version == 2

    return lambda: stage.store.commit([commit]), check


def a_commit_that_begins_the_drain_that_follows(stage: Stage) -> Scene:
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    following = Next(uuid.uuid4(), [], claimed.actor.now, anew=True)
    commit = stage.dirty(claimed, task=stage.done(claimed.task), next=following, timers=[{}])

    def check(result: Any) -> None:
        (committed,) = result
        assert (committed.version, committed.next.method, committed.next.attempt) == (1, "tick", 1)
        assert committed.anew == []
        assert [a.number for a in Attempt.objects.filter(actor_id=actor, outcome="running")] == [1]
        assert stage.row(actor).turn_id == following.turn_id
        last = stage.dirty(
            claimed, after=committed, turn_id=following.turn_id, task=stage.done(committed.next)
        )
        assert stage.commit(last).version == 2

    return lambda: stage.store.commit([commit]), check


def a_failed_task(stage: Stage) -> Scene:
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    end = stage.failed(claimed.task, 60, claimed.actor.now)
    commit = stage.dirty(claimed, outcome="failed", task=end)

    def check(result: Any) -> None:
        (committed,) = result
        assert [a.due for a in committed.alarms] == [False]
        task = Task.objects.get(actor_id=actor)
        assert (task.attempts, task.error, task.due_at) == (1, "boom", end.due_at)
        attempt = Attempt.objects.get(actor_id=actor)
        assert (attempt.outcome, attempt.traceback) == ("failed", "Traceback ...")

    return lambda: stage.store.commit([commit]), check


def a_checkpoint(stage: Stage) -> Scene:
    actor = stage.actor()
    claimed = stage.claim(actor)
    commit = stage.dirty(claimed, messages=1, outcome="checkpoint", release=False)

    def check(result: Any) -> None:
        (committed,) = result
        assert stage.row(actor).token == claimed.token
        stage.commit(stage.dirty(claimed, after=committed, messages=1))
        assert Message.objects.filter(actor_id=actor).count() == 2
        assert TurnRecord.objects.filter(actor_id=actor, turn_id=claimed.turn_id).count() == 2

    return lambda: stage.store.commit([commit]), check


def a_release(stage: Stage) -> Scene:
    actor = stage.actor()
    claimed = stage.claim(actor)

    def check(result: Any) -> None:
        (committed,) = result
        assert isinstance(committed, Committed), committed
        assert committed.version == 0
        assert stage.row(actor).token is None

    return lambda: stage.store.commit([stage.release(claimed)]), check


def a_tell(stage: Stage) -> Scene:
    actor, new = stage.actor(), stage.name()
    tells = [
        stage.tell(actor, payload=1), stage.tell(actor, key="k"), stage.tell(actor, key="k"),
        Tell(KIND, new, "go", None),
    ]  # fmt: skip

    def check(result: Any) -> None:
        accepted, alarms = result
        assert accepted == [True, True, False, True]
        assert len(alarms) == 2 and all(a.due for a in alarms)
        assert Task.objects.filter(actor_id=actor).count() == 2
        assert Task.objects.get(actor__name=new).task_id == tells[-1].task_id
        assert stage.store.tell([stage.tell(actor, key="k")])[0] == [False]

    return lambda: stage.store.tell(tells), check


def a_renewal(stage: Stage) -> Scene:
    held = [stage.claim(stage.actor()) for _ in range(2)]
    lost = stage.claim(stage.actor())
    stage.expire(lost.actor.id)
    leases = [(c.actor.id, c.token) for c in (*held, lost)]

    def check(result: Any) -> None:
        assert result == {c.token: True for c in held}
        for claimed in held:
            stage.commit(stage.release(claimed))

    return lambda: stage.store.renew(leases), check


def a_stop(stage: Stage) -> Scene:
    claimed = stage.claim(stage.actor())

    def check(result: Any) -> None:
        assert result == claimed.turn_id
        assert stage.store.stops([claimed.actor.id]) == {claimed.actor.id: claimed.turn_id}

    return lambda: stage.store.stop(claimed.actor.id), check


def a_voided_lease(stage: Stage) -> Scene:
    claimed = stage.claim(stage.actor())

    def check(result: Any) -> None:
        assert result is True
        assert stage.try_claim(claimed.actor.id) is not None

    return lambda: stage.store.free(claimed.actor.id, claimed.token), check


def a_look_around(stage: Stage) -> Scene:
    actor, waiting = stage.actor(), stage.claim(stage.actor())
    stage.told(actor, 1)

    def act() -> Any:
        store = stage.store
        store.mark_waiting(waiting.actor.id)
        store.wait_for(waiting.actor.id, waiting.token, actor)
        due = [a.actor_id for a in store.sweep([KIND], 1000, dt.timedelta())]
        return store.inspect(waiting.actor.id), store.stops([actor]), due, store.find([(KIND, "nobody")])

    def check(result: Any) -> None:
        seen, stops, due, nobody = result
        assert seen["waiting"] and seen["leased"] and seen["waits_for_id"] == actor
        assert stops == {} and nobody == {}
        assert actor in due and waiting.actor.id not in due

    return act, check


SCENES = [
    a_claim, two_claims_of_which_one_finds_a_dead_lease, a_drain, a_commit_of_everything, a_batch_of_commits,
    a_commit_that_begins_the_next_task, a_commit_that_begins_the_drain_that_follows, a_failed_task,
    a_checkpoint, a_release, a_tell, a_renewal, a_stop, a_voided_lease, a_look_around,
]  # fmt: skip

SCENES_WITH_A_COMMIT_TO_LOOK_UP = [
    a_claim, a_drain, a_commit_of_everything, a_commit_that_begins_the_next_task,
    a_commit_that_begins_the_drain_that_follows, a_batch_of_commits, a_tell,
]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("how", [BEFORE, AFTER])
def test_a_connection_that_dies_at_any_statement_loses_and_doubles_nothing(
    stage: Stage, line: Line | Breaker, scene: Callable[[Stage], Scene], how: str
) -> None:
    play(stage, line, scene, how)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "scene",
    SCENES_WITH_A_COMMIT_TO_LOOK_UP,
    ids=lambda s: s.__name__,
)
def test_what_the_server_does_after_its_client_gave_up_is_waited_for(
    stage: Stage, line: Line | Breaker, scene: Callable[[Stage], Scene]
) -> None:
    """A COMMIT that is still on the line when its outcome is looked up."""
    play(stage, line, scene, LATE)


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["commit.begin", "commit.locked", "commit.written", "commit.commit"])
def test_a_session_that_the_server_ends_in_the_middle_of_a_commit_is_replaced(
    stage: Stage, point: str
) -> None:
    claimed = stage.claim(stage.actor())
    ended: list[int] = []

    def end_session() -> None:
        if not ended:
            pid = connection.connection.info.backend_pid
            ended.append(pid)
            terminate(pid)

    with faults.at(point, end_session):
        assert stage.commit(stage.dirty(claimed, messages=1)).version == 1
    assert ended


def test_an_undone_claim_leaves_the_attempt_of_somebody_else_alone(stage: Stage) -> None:
    """A claim that never happened is given back: it must not touch who holds the actor now."""
    actor = stage.actor()
    stage.told(actor, 1)
    claimed = stage.drain(actor)
    stage.store._claims._undo([Claim(actor, uuid.uuid4(), drain=True)])
    assert stage.row(actor).token == claimed.token
    assert Attempt.objects.get(actor_id=actor).outcome == "running"


def terminate(pid: int) -> None:
    import psycopg

    info = connection.connection.info
    with psycopg.connect(
        host=info.host, port=info.port, user=info.user, password=info.password, dbname=info.dbname
    ) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
