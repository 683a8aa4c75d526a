"""The fence: token, lease and version. A turn whose fence has moved writes nothing."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from agents import clock, faults
from agents.exceptions import TurnLostError
from agents.models import Actor, TurnRecord
from agents.store.requests import Claimed, Commit
from agents.writes import Table, Writes
from conversations.models import Message
from scheduler.models import Attempt, Step, Task
from tests.agents.store.stage import Stage, in_threads

STEP = Table("scheduler.Step", ("actor_id", "task_pk", "name", "use", "result", "saved_at"))


def written(actor_id: int) -> tuple[int, int, int]:
    row = Actor.objects.get(pk=actor_id)
    return row.version, row.seq, Message.objects.filter(actor_id=actor_id).count()


def test_a_turn_commits_and_frees_its_lease(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    committed = stage.commit(stage.dirty(claimed, messages=2, state={"a": 1}, state_changed=True))
    row = stage.row(actor)
    assert (committed.version, row.version, row.state, row.committed_by) == (1, 1, {"a": 1}, claimed.turn_id)
    assert (row.token, row.lease_expires_at, row.turn_id, row.started) == (None, None, None, True)
    record = TurnRecord.objects.get(actor_id=actor, version=1)
    assert (record.turn_id, record.outcome, record.committed_at) == (
        claimed.turn_id,
        "done",
        committed.now,
    )


def test_a_stale_token_commits_nothing(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    stale = stage.dirty(claimed, messages=1)
    stale.token = uuid.uuid4()
    assert isinstance(stage.refused(stale), TurnLostError)
    assert written(actor) == (0, 0, 0)
    assert stage.row(actor).token == claimed.token


def test_a_stale_version_commits_nothing(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor)
    claimed = stage.claim(actor)
    stale = stage.dirty(claimed, messages=1)
    stale.version -= 1
    assert isinstance(stage.refused(stale), TurnLostError)
    assert written(actor) == (1, 0, 0)


def test_a_lease_that_ended_commits_nothing_even_when_nobody_else_claimed(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    stage.expire(actor)
    error = stage.refused(stage.dirty(claimed, messages=1))
    assert isinstance(error, TurnLostError)
    assert error.turn_id == claimed.turn_id
    assert isinstance(stage.refused(stage.release(claimed)), TurnLostError)
    assert written(actor) == (0, 0, 0)


def test_a_lease_is_judged_by_the_database_s_time(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    lease = Actor.objects.get(pk=actor).lease_expires_at
    assert lease is not None
    assert dt.timedelta(seconds=14) < lease - claimed.actor.now <= dt.timedelta(seconds=15.1)
    clock.shift(dt.timedelta(seconds=14))
    assert stage.try_claim(actor) is None
    clock.shift(dt.timedelta(seconds=1.1))
    assert isinstance(stage.refused(stage.dirty(claimed)), TurnLostError)
    taken = stage.claim(actor)
    assert taken.token != claimed.token
    assert isinstance(stage.refused(stage.dirty(claimed)), TurnLostError)
    assert stage.commit(stage.dirty(taken)).version == 1


def test_a_commit_repeated_is_refused(stage: Stage) -> None:
    actor = stage.actor()
    commit = stage.dirty(stage.claim(actor), messages=1)
    assert stage.commit(commit).version == 1
    assert isinstance(stage.refused(commit), TurnLostError)
    assert written(actor) == (1, 1, 1)


def test_a_commit_repeated_after_a_checkpoint_is_refused(stage: Stage) -> None:
    actor = stage.actor()
    checkpoint = stage.dirty(stage.claim(actor), messages=1, release=False)
    stage.commit(checkpoint)
    assert isinstance(stage.refused(checkpoint), TurnLostError)
    assert written(actor) == (1, 1, 1)


def test_a_checkpoint_keeps_the_lease_and_the_turn_goes_on(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    before = stage.row(actor).lease_expires_at
    kept = stage.commit(stage.dirty(claimed, messages=1, release=False, outcome="checkpoint"))
    row = stage.row(actor)
    assert (row.token, row.turn_id, row.version) == (claimed.token, claimed.turn_id, 1)
    assert row.lease_expires_at is not None and before is not None and row.lease_expires_at > before
    assert stage.try_claim(actor) is None
    stage.commit(stage.dirty(claimed, after=kept, messages=1))
    records = TurnRecord.objects.filter(actor_id=actor).order_by("version")
    assert list(records.values_list("turn_id", "outcome")) == [
        (claimed.turn_id, "checkpoint"),
        (claimed.turn_id, "done"),
    ]


def test_a_step_is_saved_under_the_fence_and_goes_with_its_task(stage: Stage) -> None:
    actor = stage.actor()
    (task,) = stage.told(actor, 1)
    claimed = stage.drain(actor)

    def save(at: int) -> Writes:
        writes = Writes()
        row = {"actor_id": actor, "task_pk": task.pk, "name": "reply", "use": at, "result": {"n": at}}
        writes.insert(STEP, row | {"saved_at": claimed.actor.now})
        return writes

    first = stage.commit(stage.dirty(claimed, writes=save(1), release=False, outcome="step"))
    stale = stage.dirty(claimed, writes=save(2), release=False, outcome="step")
    assert isinstance(stage.refused(stale), TurnLostError)
    assert Step.objects.count() == 1
    assert claimed.task is not None
    stage.commit(stage.dirty(claimed, after=first, task=stage.done(claimed.task)))
    assert not Step.objects.exists()


def test_a_turn_that_wrote_nothing_moves_nothing_but_its_lease(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor)
    released = stage.commit(stage.release(stage.claim(actor)))
    assert (released.version, stage.row(actor).token) == (1, None)
    assert TurnRecord.objects.count() == 1


def test_every_commit_is_found_by_the_id_of_its_turn(stage: Stage) -> None:
    """The lookup after a connection died around a commit: whose turn raised the version?"""
    actor = stage.actor()
    claimed = stage.claim(actor)
    ids = [claimed.turn_id]
    after = stage.commit(stage.dirty(claimed, release=False, outcome="checkpoint"))
    for _ in range(3):
        committed = stage.commit(stage.dirty(claimed, after=after, turn_id=ids[-1], release=False))
        after, ids = committed, [*ids, claimed.turn_id]
    stage.commit(stage.dirty(claimed, after=after))
    for version in range(1, 6):
        assert stage.store.sql.committed_by(actor, version) == claimed.turn_id
    assert stage.store.sql.committed_by(actor, 6) is None


def test_no_lookup_takes_another_turn_s_commit_for_this_one(stage: Stage) -> None:
    """Both commits carry the same version; only one turn's id is on the record."""
    actor = stage.actor()
    lost = stage.dirty(stage.claim(actor), messages=1)
    stage.expire(actor)
    stage.turn(actor)
    assert stage.store._commits._happened(lost) is None
    assert isinstance(stage.refused(lost), TurnLostError)


def steal(stage: Stage, actor: int) -> Callable[[], None]:
    """Ends the lease and gives the actor to somebody else, over another connection."""

    def handler() -> None:
        def other() -> None:
            stage.expire(actor)
            stage.claim(actor)

        in_threads(other)

    return handler


def test_a_lease_lost_between_the_begin_of_a_commit_and_its_locks_is_seen(stage: Stage) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("an immediate transaction has the whole database: nobody can come between")
    actor = stage.actor()
    claimed = stage.claim(actor)
    with faults.at("commit.begin", steal(stage, actor)):
        assert isinstance(stage.refused(stage.dirty(claimed, messages=1)), TurnLostError)
    assert written(actor) == (0, 0, 0)
    assert stage.row(actor).token not in (None, claimed.token)


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["commit.locked", "commit.written", "commit.commit"])
def test_no_lease_can_be_taken_once_the_commit_has_its_locks(stage: Stage, point: str) -> None:
    """Time passes and others try: the row lock keeps them away, and the commit stands."""
    actor = stage.actor()
    claimed = stage.claim(actor)
    tried: list[Any] = []

    def late() -> None:
        clock.shift(dt.timedelta(seconds=60))
        tried.extend(in_threads(lambda: stage.try_claim(actor), lambda: stage.try_claim(actor, drain=True)))

    with faults.at(point, late):
        assert stage.commit(stage.dirty(claimed, messages=1)).version == 1
    assert tried == [None, None]
    assert written(actor) == (1, 1, 1)


def test_a_lease_that_ends_while_a_claim_is_made_is_somebody_s_once(stage: Stage) -> None:
    """A claim that takes over a dead lease, with time passing between its statements."""
    actor = stage.actor()
    stage.told(actor, 1)
    stage.drain(actor)
    stage.expire(actor)
    with faults.at("claim.leased", lambda: clock.shift(dt.timedelta(seconds=30))):
        claimed = stage.claim(actor)
    clock.reset()
    assert stage.row(actor).token == claimed.token
    assert Attempt.objects.get(actor_id=actor).outcome == "lost"
    # The lease itself was written before the jump.
    assert isinstance(stage.commit(stage.dirty(claimed)).version, int)


def test_a_commit_for_an_erased_actor_is_lost(stage: Stage) -> None:
    claimed = stage.claim(stage.actor())
    commit = stage.dirty(claimed, messages=1)
    Actor.objects.filter(pk=claimed.actor.id).delete()
    assert isinstance(stage.refused(commit), TurnLostError)
    assert isinstance(stage.refused(stage.release(claimed)), TurnLostError)
    assert not Message.objects.exists()


def test_a_claim_of_an_erased_actor_is_none(stage: Stage) -> None:
    actor = stage.actor()
    Actor.objects.filter(pk=actor).delete()
    assert stage.try_claim(actor) is None
    assert stage.try_claim(actor, drain=True) is None


def test_the_numbers_of_a_commit_stay_where_it_names_none(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, messages=3, events=2, state={"a": 1}, state_changed=True)
    commit = stage.dirty(stage.claim(actor))
    commit.seq = commit.cursor = None
    stage.commit(commit)
    row = stage.row(actor)
    assert (row.seq, row.cursor, row.state) == (3, 2, {"a": 1})


def test_only_a_turn_s_own_commit_says_that_the_actor_has_started(stage: Stage) -> None:
    """Not a step's result nor a failure's record, whatever it keeps: ``on_create`` is yet to come."""
    actor = stage.actor()
    claimed = stage.claim(actor)
    after = stage.commit(stage.dirty(claimed, release=False, outcome="step"))
    assert not stage.row(actor).started
    stage.commit(stage.dirty(claimed, after=after, messages=1, outcome="failed"))
    assert not stage.row(actor).started
    claimed = stage.claim(actor)
    assert not claimed.actor.started
    stage.commit(stage.dirty(claimed))
    assert stage.row(actor).started
    assert stage.claim(actor).actor.started


def test_a_claim_says_whether_it_takes_over_from_a_dead_process(stage: Stage) -> None:
    actor = stage.actor()
    assert not stage.claim(actor).takes_over
    for drain in (False, True):
        stage.expire(actor)
        assert stage.claim(actor, drain=drain).takes_over


def test_a_commit_may_replace_the_state_by_nothing(stage: Stage) -> None:
    actor = stage.actor()
    stage.turn(actor, state={"a": 1}, state_changed=True)
    stage.turn(actor, state=None, state_changed=True)
    assert stage.row(actor).state is None


def test_a_record_says_what_its_turn_did(stage: Stage) -> None:
    actor = stage.actor()
    claimed: Claimed = stage.claim(actor)
    commit: Commit = stage.dirty(claimed, messages=2)
    commit.record = {
        **(commit.record or {}),
        "first_seq": 1,
        "last_seq": 2,
        "state_change": {"patch": {"a": None, "b": {"c": []}}},
    }
    stage.commit(commit)
    record = TurnRecord.objects.get()
    assert (record.first_seq, record.last_seq) == (1, 2)
    assert record.state_change == {"patch": {"a": None, "b": {"c": []}}}
    assert record.started_at == claimed.actor.now
    assert not Task.objects.exists()
