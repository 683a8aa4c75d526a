"""Leases between claim and commit: renewals, stops, marks; and the sweep."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any

import pytest
from django.db import connection

from agents import clock
from agents.exceptions import TurnLostError
from agents.models import Actor
from agents.store.postgres import PostgresStatements
from agents.store.rows import TASK
from tests.agents.store.stage import KIND, Stage, in_threads

SOON = dt.timedelta(seconds=90)


def test_a_renewal_lengthens_the_leases_that_are_ours_and_live(stage: Stage) -> None:
    ours, expired, freed = (stage.claim(stage.actor()) for _ in range(3))
    foreign = stage.claim(stage.actor())
    stage.expire(expired.actor.id)
    stage.commit(stage.release(freed))
    before = {a.pk: a.lease_expires_at for a in Actor.objects.all()}
    leases = [(c.actor.id, c.token) for c in (ours, expired, freed)]
    leases += [(foreign.actor.id, uuid.uuid4()), (0, uuid.uuid4())]
    assert stage.store.renew(leases) == {ours.token: True}
    after = {a.pk: a.lease_expires_at for a in Actor.objects.all()}
    assert [id for id in after if after[id] != before[id]] == [ours.actor.id]
    renewed = after[ours.actor.id]
    assert renewed is not None
    left = renewed - stage.store.sql.now()
    assert dt.timedelta(seconds=14) < left <= dt.timedelta(seconds=15)


def test_a_lease_that_ended_is_not_revived(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    clock.shift(dt.timedelta(seconds=15.5))
    assert stage.store.renew([(actor, claimed.token)]) == {}
    assert stage.claim(actor).token != claimed.token


def test_a_renewed_lease_keeps_others_away(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    for _ in range(3):
        clock.shift(dt.timedelta(seconds=10))
        assert stage.store.renew([(actor, claimed.token)]) == {claimed.token: True}
        assert stage.try_claim(actor) is None
    assert stage.commit(stage.dirty(claimed)).version == 1


def test_a_renewal_and_a_commit_may_race(stage: Stage) -> None:
    """Whichever is first: the commit happens, and no lease is left behind."""
    for _ in range(10):
        claimed = stage.claim(stage.actor())
        commit = stage.dirty(claimed)
        lease = (claimed.actor.id, claimed.token)
        in_threads(
            lambda: stage.commit(commit).version,  # noqa: B023
            lambda: len(stage.store.renew([lease])),  # noqa: B023
        )
        assert stage.row(claimed.actor.id).version == 1
    stage.audit(quiet=True)


def test_a_voided_lease_is_free_at_once_and_its_turn_is_lost(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    assert not stage.store.free(actor, uuid.uuid4())
    assert stage.try_claim(actor) is None
    assert stage.store.free(actor, claimed.token)
    assert stage.store.renew([(actor, claimed.token)]) == {}
    assert isinstance(stage.refused(stage.dirty(claimed)), TurnLostError)
    taken = stage.claim(actor)
    assert not stage.store.free(actor, claimed.token)
    stage.commit(stage.release(taken))


def test_a_stop_is_for_the_turn_that_runs_now(stage: Stage) -> None:
    actor = stage.actor()
    assert stage.store.stop(actor) is None
    claimed = stage.claim(actor)
    assert stage.store.stop(actor, uuid.uuid4()) is None
    assert stage.store.stops([actor]) == {}
    assert stage.store.stop(actor, claimed.turn_id) == claimed.turn_id
    assert stage.store.stops([actor, stage.actor(), 0]) == {actor: claimed.turn_id}
    stage.commit(stage.release(claimed))
    assert stage.store.stops([actor]) == {}
    assert stage.store.stop(actor) is None
    following = stage.claim(actor)
    assert stage.store.stop(actor, claimed.turn_id) is None
    assert stage.store.stops([actor]) == {}
    assert stage.store.stop(actor) == following.turn_id


def test_a_stop_does_not_outlive_its_turn_s_lease(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    stage.store.stop(actor)
    stage.expire(actor)
    assert stage.store.stop(actor) is None
    assert stage.store.stop(actor, claimed.turn_id) is None
    stage.claim(actor)
    assert stage.store.stops([actor]) == {}


def test_a_checkpoint_keeps_a_stop_that_is_waiting(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    stage.store.stop(actor)
    stage.commit(stage.dirty(claimed, release=False))
    assert stage.store.stops([actor]) == {actor: claimed.turn_id}


def test_a_turn_that_waits_for_another_actor_says_so_on_its_row(stage: Stage) -> None:
    actor, other = stage.actor(), stage.actor()
    claimed = stage.claim(actor)
    stage.store.wait_for(actor, uuid.uuid4(), other)
    assert stage.row(actor).waits_for_id is None
    stage.store.wait_for(actor, claimed.token, other)
    seen = stage.store.inspect(actor)
    assert seen is not None
    assert (seen["waits_for_id"], seen["leased"], seen["turn_id"]) == (other, True, claimed.turn_id)
    stage.store.wait_for(actor, claimed.token, None)
    assert stage.row(actor).waits_for_id is None
    stage.store.wait_for(actor, claimed.token, other)
    stage.commit(stage.release(claimed))
    assert stage.row(actor).waits_for_id is None


def test_an_actor_is_seen_as_it_stands(stage: Stage) -> None:
    actor = stage.actor()
    kind, name = stage.address(actor)
    assert stage.store.inspect(0) is None
    free = stage.store.inspect(actor)
    assert free == {
        "id": actor, "kind": kind, "name": name, "turn_id": None, "turn_started_at": None,
        "waits_for_id": None, "waiting_at": None, "alarm": None, "leased": False, "waiting": False,
    }  # fmt: skip
    claimed = stage.claim(actor)
    (task,) = stage.told(actor, 1)
    held = stage.store.inspect(actor)
    assert held is not None
    assert (held["leased"], held["turn_id"], held["alarm"]) == (True, claimed.turn_id, task.due_at)
    stage.expire(actor)
    dead = stage.store.inspect(actor)
    assert dead is not None and not dead["leased"]


def test_a_mark_is_not_made_again_while_it_is_fresh(stage: Stage) -> None:
    actor = stage.actor()
    stage.claim(actor)
    stage.store.mark_waiting(actor)
    first = stage.row(actor).waiting_at
    stage.store.mark_waiting(actor)
    assert stage.row(actor).waiting_at == first
    clock.shift(dt.timedelta(seconds=0.3))
    stage.store.mark_waiting(actor)
    again = stage.row(actor).waiting_at
    assert first is not None and again is not None and again > first


# The sweep


def swept(stage: Stage, *kinds: str, limit: int = 100) -> list[int]:
    return [a.actor_id for a in stage.store.sweep(kinds or (KIND,), limit, SOON)]


def test_a_sweep_finds_what_is_due_oldest_first(stage: Stage) -> None:
    now = stage.store.sql.now()
    at = {"now": 0, "earlier": -60, "soon": 60, "later": 3600}
    actors = {}
    for name, seconds in at.items():
        actors[name] = stage.actor()
        moment = now + dt.timedelta(seconds=seconds)
        claimed = stage.claim(actors[name])
        commit = stage.dirty(claimed)
        commit.writes.insert(TASK, stage.timer(actors[name], moment))
        stage.commit(commit)
    stage.actor()
    assert swept(stage) == [actors["earlier"], actors["now"], actors["soon"]]
    assert swept(stage, limit=1) == [actors["earlier"]]
    earlier, _, soon = stage.store.sweep([KIND], 100, SOON)
    assert (earlier.due, soon.due, earlier.seconds) == (True, False, 0.0)
    assert 0 < soon.seconds <= 60
    assert (earlier.kind, earlier.name) == stage.address(actors["earlier"])


def test_a_sweep_leaves_what_is_leased_until_the_lease_is_dead(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    stage.claim(actor)
    assert swept(stage) == []
    stage.expire(actor)
    assert swept(stage) == [actor]


def test_a_sweep_asks_for_installed_kinds_only(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    assert swept(stage, "another", "and-another") == []
    assert swept(stage, "another", KIND) == [actor]
    assert stage.store.sweep([], 100, SOON) == []


@pytest.mark.postgres
def test_a_sweep_reads_what_is_due_and_its_cost_does_not_grow_with_what_is_not(stage: Stage) -> None:
    """1,000 tasks that are due, among 2,000 and then among 100,000 pending ones."""
    try:
        few = cost_of_a_sweep(stage, pending=2_000, due=1_000)
        many = cost_of_a_sweep(stage, pending=100_000, due=1_000)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE agents_actor CASCADE")
    # Pages of the index and of the table: those of the due actors, and a level or two of the index more.
    assert many <= few * 1.5 + 20, (few, many)


def cost_of_a_sweep(stage: Stage, *, pending: int, due: int) -> int:
    """The pages that it reads, when ``due`` actors among ``pending`` with a task have one that is due."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE agents_actor CASCADE")
        cursor.execute(
            """INSERT INTO agents_actor (kind, name, alarm)
               SELECT %s, 'a' || n,
                      now() + CASE WHEN n <= %s THEN interval '-1 hour' ELSE n * interval '1 hour' END
                 FROM generate_series(1, %s) n""",
            [KIND, due, pending],
        )
        cursor.execute(
            """INSERT INTO scheduler_task
                      (actor_id, task_id, lane, method, status, due_at, cron, tz, attempts, max_retries,
                       error)
               SELECT id, 'x', 'timer', 'm', 'pending', alarm, '', '', 0, 5, '' FROM agents_actor"""
        )
        cursor.execute("VACUUM ANALYZE agents_actor, scheduler_task")
    for prepared in range(7):  # the plan of a prepared statement is made anew at first, then kept
        assert len(swept(stage, limit=2 * due)) == due, prepared
    plan = explained(stage, limit=2 * due)
    assert "Index Scan using agents_actor_due" in plan, plan
    assert "(alarm <=" in plan.split("agents_actor_due")[1], plan
    rows = int(plan.split("agents_actor_due")[1].split("actual")[1].split("rows=")[1].split()[0])
    assert rows == due, plan
    assert "scheduler_task" not in plan, plan
    whole = plan.split("Buffers:")[1].splitlines()[0]  # of the outermost node: that counts all below it
    return sum(map(int, re.findall(r"=(\d+)", whole)))


def explained(stage: Stage, *, limit: int) -> str:
    """The plan of the sweep's own statement."""

    class Explained(PostgresStatements):
        plan = ""

        def _ask(self, query: str, *params: Any, convert: Any = None) -> Any:
            rows = super()._ask("EXPLAIN (ANALYZE, BUFFERS) " + query, *params, convert=list)
            self.plan = "\n".join(row[0] for row in rows)
            return []

    statements = Explained()
    statements.sweep([KIND], limit, SOON)
    return statements.plan
