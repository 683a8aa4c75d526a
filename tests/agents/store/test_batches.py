"""Batches: many turns in one transaction, and one bad turn that harms no other."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, DataError, IntegrityError, connection, transaction

from agents import conf, faults
from agents.exceptions import InboxFullError, LimitError, TurnLostError
from agents.leases import Heartbeat, Lease
from agents.models import Actor
from agents.store import ToldBefore, patience, statements
from agents.store.requests import Claim, Commit, Committed
from agents.store.statements import Delayed, Interrupted
from agents.turn import Tell
from agents.writes import Writes
from conversations.models import Message
from scheduler.models import Task
from tests.agents.store.stage import KIND, MESSAGE, Stage, in_threads, on_postgres
from tests.waiting import wait_until


def good(stage: Stage) -> Commit:
    return stage.dirty(stage.claim(stage.actor()), messages=1, events=1, timers=[{}])


def with_value(stage: Stage, content: Any) -> Commit:
    claimed = stage.claim(stage.actor())
    writes = Writes()
    writes.insert(MESSAGE, stage.message(claimed.actor.id, 1, claimed.actor.now, content))
    commit = stage.dirty(claimed, writes=writes)
    commit.seq = 1
    return commit


# Bad turns: each makes one, and says what it must end with


def a_value_that_the_database_refuses(stage: Stage) -> tuple[Commit, type[BaseException]]:
    return with_value(stage, None), IntegrityError


def a_message_that_is_there_already(stage: Stage) -> tuple[Commit, type[BaseException]]:
    actor = stage.actor()
    stage.turn(actor, messages=1)
    claimed = stage.claim(actor)
    writes = Writes()
    writes.insert(MESSAGE, stage.message(actor, 1, claimed.actor.now))
    return stage.dirty(claimed, writes=writes), IntegrityError


def too_many_tasks(stage: Stage) -> tuple[Commit, type[BaseException]]:
    return stage.dirty(stage.claim(stage.actor()), messages=1, timers=[{} for _ in range(6)]), LimitError


def a_tell_to_a_full_inbox(stage: Stage) -> tuple[Commit, type[BaseException]]:
    full = stage.actor()
    stage.told(full, *range(5))
    return stage.dirty(stage.claim(stage.actor()), tells=[stage.tell(full)]), InboxFullError


def a_stale_fence(stage: Stage) -> tuple[Commit, type[BaseException]]:
    commit = stage.dirty(stage.claim(stage.actor()), messages=1)
    commit.token = uuid.uuid4()
    return commit, TurnLostError


def a_function_that_raises(stage: Stage) -> tuple[Commit, type[BaseException]]:
    def fail() -> None:
        raise KeyError("of the application")

    return stage.dirty(stage.claim(stage.actor()), messages=1, at_commit=[(fail, ())]), KeyError


def a_function_that_breaks_a_constraint(stage: Stage) -> tuple[Commit, type[BaseException]]:
    kind, name = stage.address(stage.actor())
    create = Actor.objects.create
    call = (lambda: create(kind=kind, name=name), ())
    return stage.dirty(stage.claim(stage.actor()), messages=1, at_commit=[call]), IntegrityError


def a_function_that_swallows_the_database_s_error(stage: Stage) -> tuple[Commit, type[BaseException]]:
    kind, name = stage.address(stage.actor())

    def fail() -> None:
        try:
            with transaction.atomic(savepoint=False):
                Actor.objects.create(kind=kind, name=name)
        except IntegrityError:
            pass

    commit = stage.dirty(stage.claim(stage.actor()), messages=1, at_commit=[(fail, ())])
    return commit, transaction.TransactionManagementError


def a_function_that_asks_for_a_rollback(stage: Stage) -> tuple[Commit, type[BaseException]]:
    call = (transaction.set_rollback, (True,))
    commit = stage.dirty(stage.claim(stage.actor()), messages=1, at_commit=[call])
    return commit, transaction.TransactionManagementError


BAD = [
    a_value_that_the_database_refuses, a_message_that_is_there_already, too_many_tasks,
    a_tell_to_a_full_inbox, a_stale_fence, a_function_that_raises, a_function_that_breaks_a_constraint,
    a_function_that_swallows_the_database_s_error, a_function_that_asks_for_a_rollback,
]  # fmt: skip


@pytest.fixture(autouse=True)
def low_limits(settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "MAX_PENDING_TASKS": 5, "MAX_INBOX": 5}


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
def test_one_bad_turn_harms_no_other(
    stage: Stage, bad: Callable[[Stage], tuple[Commit, type[BaseException]]]
) -> None:
    commit, error = bad(stage)
    tasks = Task.objects.count()
    version = stage.row(commit.actor_id).version
    batch = [good(stage), commit, good(stage), good(stage)]
    results = stage.store.commit(batch)
    assert isinstance(results.pop(1), error)
    for done, other in zip(results, [batch[0], *batch[2:]], strict=True):
        assert isinstance(done, Committed), done
        assert [a.actor_id for a in done.alarms] == [other.actor_id]
        assert stage.row(other.actor_id).seq == 1
    assert Task.objects.count() == tasks + 3
    row = stage.row(commit.actor_id)
    assert (row.version, row.token is None) == (version, False)  # the lease is still the turn's, to end it


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
def test_a_bad_turn_alone_gets_its_error_and_can_be_ended(
    stage: Stage, bad: Callable[[Stage], tuple[Commit, type[BaseException]]]
) -> None:
    commit, error = bad(stage)
    assert isinstance(stage.refused(commit), error)
    if error is not TurnLostError:
        release = Commit(commit.actor_id, commit.token, commit.turn_id, commit.version, dirty=False)
        assert isinstance(stage.commit(release), Committed)


def test_a_batch_of_lost_turns_writes_nothing(stage: Stage) -> None:
    batch = [good(stage) for _ in range(3)]
    for commit in batch:
        stage.expire(commit.actor_id)
    assert [type(r) for r in stage.store.commit(batch)] == [TurnLostError] * 3
    assert not Message.objects.exists()


def test_all_bad_turns_together_leave_the_good_ones(stage: Stage) -> None:
    pairs = [bad(stage) for bad in BAD]
    batch: list[Commit] = []
    for commit, _ in pairs:
        batch += [good(stage), commit]
    results = stage.store.commit(batch)
    assert [type(r) for r in results[::2]] == [Committed] * len(BAD)
    for result, (_, error) in zip(results[1::2], pairs, strict=True):
        assert isinstance(result, error)


def test_results_come_in_the_order_of_the_requests(stage: Stage) -> None:
    batch = [good(stage) for _ in range(5)]
    batch[1].at_commit = [(str, ())]
    batch[3].token = uuid.uuid4()
    shuffled = [batch[at] for at in (3, 1, 4, 0, 2)]
    results = stage.store.commit(shuffled)
    assert isinstance(results.pop(0), TurnLostError)
    for commit, result in zip(shuffled[1:], results, strict=True):
        assert isinstance(result, Committed)
        assert [a.actor_id for a in result.alarms] == [commit.actor_id]


def test_one_actor_twice_in_a_batch_commits_twice_in_order(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    first = stage.dirty(claimed, messages=1, release=False)
    second = stage.dirty(claimed, seq_before=1)
    second.version = 1
    second.record = {**(second.record or {}), "version": 2}
    results = stage.store.commit([good(stage), first, good(stage), second])
    assert [r.version for r in results] == [1, 1, 1, 2]  # type: ignore[union-attr]


def test_one_actor_twice_keeps_its_order_where_the_first_has_functions(stage: Stage) -> None:
    claimed = stage.claim(stage.actor())
    first = stage.dirty(claimed, release=False, at_commit=[(str, ())])
    second = stage.dirty(claimed)
    second.version = 1
    second.record = {**(second.record or {}), "version": 2}
    results = stage.store.commit([first, second, good(stage)])
    assert [r.version for r in results] == [1, 2, 1]  # type: ignore[union-attr]


def test_one_commit_handed_in_twice_happens_once(stage: Stage) -> None:
    commit = good(stage)
    first, second = stage.store.commit([commit, commit])
    assert isinstance(first, Committed)
    assert isinstance(second, TurnLostError)


def test_claims_of_one_actor_in_a_batch_are_given_to_the_first(stage: Stage) -> None:
    actor, other = stage.actor(), stage.actor()
    stage.told(actor, 1)
    claims = [Claim(actor, uuid.uuid4(), drain=n == 0) for n in range(3)]
    claims.insert(1, Claim(other, uuid.uuid4()))
    claims.append(claims[0])
    first, beside, *rest = stage.store.claim(claims)
    assert first is not None and not isinstance(first, BaseException)
    assert (first.token, first.task is not None) == (claims[0].token, True)
    assert beside is not None
    assert rest == [None, None, None]


def test_a_batch_of_claims_gets_what_is_free(stage: Stage) -> None:
    free = [stage.actor() for _ in range(3)]
    busy = stage.claim(stage.actor())
    gone = stage.actor()
    Actor.objects.filter(pk=gone).delete()
    ids = [free[0], busy.actor.id, free[1], gone, free[2]]
    results = stage.store.claim([Claim(id, uuid.uuid4()) for id in ids])
    assert [r is not None for r in results] == [True, False, True, False, True]


def test_a_row_that_cannot_be_read_harms_no_other_claim(stage: Stage) -> None:
    """A state that somebody wrote by hand, nested deeper than the reader goes."""
    actors = [stage.actor() for _ in range(3)]
    deep = "[" * 1500 + "]" * 1500
    check = "PRAGMA ignore_check_constraints=" if connection.vendor == "sqlite" else "SELECT 1 -- "
    with connection.cursor() as cursor:
        cursor.execute(check + "on")
        cursor.execute("UPDATE agents_actor SET state = %s WHERE id = %s", [deep, actors[1]])
        cursor.execute(check + "off")
    for drain in (False, True):
        claims = [Claim(id, uuid.uuid4(), drain=drain) for id in actors]
        results = stage.store.claim(claims)
        assert [type(r).__name__ for r in results] == ["Claimed", "JSONDecodeError", "Claimed"]
        assert Actor.objects.filter(pk=actors[1], token=None).exists()
        for claim, result in zip(claims, results, strict=True):
            if not isinstance(result, BaseException):
                assert result is not None
                stage.commit(stage.release(result))
                assert claim.actor_id == result.actor.id
    Actor.objects.filter(pk=actors[1]).update(state=None)


def test_a_turn_that_tells_itself_finds_the_task_in_its_inbox(stage: Stage) -> None:
    actor = stage.actor()
    committed = stage.commit(stage.dirty(stage.claim(actor), tells=[stage.tell(actor)]))
    assert [(a.actor_id, a.due) for a in committed.alarms] == [(actor, True)]


def test_turns_of_a_batch_may_tell_each_other(stage: Stage) -> None:
    actors = [stage.actor() for _ in range(4)]
    batch = [
        stage.dirty(stage.claim(actor), tells=[stage.tell(other) for other in actors if other != actor])
        for actor in actors
    ]
    results = stage.store.commit(batch)
    assert all(isinstance(r, Committed) and len(r.alarms) == 4 for r in results)
    assert Task.objects.count() == 12


def test_one_key_told_twice_in_a_batch_is_one_task(stage: Stage) -> None:
    target = stage.actor()
    batch = [
        stage.dirty(stage.claim(stage.actor()), tells=[stage.tell(target, key="once", payload=n)])
        for n in range(3)
    ]
    assert all(isinstance(r, Committed) for r in stage.store.commit(batch))
    assert Task.objects.get().payload == 0


# Actors that go while something is told to them


def erase(actor_id: int) -> Callable[[], None]:
    done: list[int] = []

    def handler() -> None:
        if not done:
            done.append(actor_id)
            in_threads(lambda: Actor.objects.filter(pk=actor_id).delete())

    return handler


def test_an_actor_that_is_erased_while_it_is_told_something_is_made_again(stage: Stage) -> None:
    if not on_postgres():
        pytest.skip("an immediate transaction has the whole database: nobody can come between")
    target = stage.actor()
    kind, name = stage.address(target)
    batch = [good(stage), stage.dirty(stage.claim(stage.actor()), tells=[stage.tell(target)]), good(stage)]
    with faults.at("commit.begin", erase(target)):
        results = stage.store.commit(batch)
    assert all(isinstance(r, Committed) for r in results)
    again = Actor.objects.get(kind=kind, name=name)
    assert again.pk != target
    assert Task.objects.get(lane="inbox").actor_id == again.pk


def test_an_actor_that_is_erased_over_and_over_ends_the_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_postgres():
        pytest.skip("an immediate transaction has the whole database: nobody can come between")
    monkeypatch.setattr(patience, "COMMIT_PATIENCE", 0.3)
    target = stage.actor()
    commit = stage.dirty(stage.claim(stage.actor()), messages=1, tells=[stage.tell(target)])

    name = stage.address(target)[1]

    def always() -> None:
        in_threads(lambda: Actor.objects.filter(name=name).delete())

    with faults.at("commit.begin", always):
        assert isinstance(stage.refused(commit), TurnLostError)
    assert not Message.objects.exists()


# Rows that somebody else has locked


def locked(actor_id: int) -> AbstractContextManager[threading.Event]:
    """An application's transaction that holds an actor's row until the event is set."""
    return open_transaction(lambda: Actor.objects.select_for_update(no_key=True).get(pk=actor_id))


@contextmanager
def open_transaction(did: Callable[[], object]) -> Iterator[threading.Event]:
    """An application's transaction that did something and ends when the event is set."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                did()
                held.set()
                assert let_go.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield let_go
    finally:
        let_go.set()
        thread.join()


@pytest.mark.postgres
def test_a_told_row_that_is_locked_longer_than_the_timeouts_delays_its_turn_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "LOCK_TIMEOUT", 0.1)
    target = stage.actor()
    waiting = stage.dirty(stage.claim(stage.actor()), messages=1, tells=[stage.tell(target)])
    others = [good(stage), good(stage)]
    with locked(target) as let_go:
        results: list[Any] = []

        def commit() -> None:
            results.extend(stage.store.commit([others[0], waiting, others[1]]))
            connection.close()

        committer = threading.Thread(target=commit)
        committer.start()
        wait_until(lambda: Message.objects.filter(actor_id=others[0].actor_id).exists())
        assert not Message.objects.filter(actor_id=waiting.actor_id).exists()
        threading.Event().wait(0.4)
        let_go.set()
        committer.join()
    assert [r.version for r in results] == [1, 1, 1]
    assert Task.objects.filter(actor_id=target).count() == 1


@pytest.mark.postgres
def test_a_caller_that_does_not_wait_is_told_to_come_again(stage: Stage) -> None:
    target = stage.actor()
    waiting = stage.dirty(stage.claim(stage.actor()), messages=1, tells=[stage.tell(target)])
    own = stage.dirty(stage.claim(target), messages=1)
    others = [good(stage), good(stage)]
    with locked(target):
        began = time.monotonic()
        results = stage.store.commit([others[0], waiting, others[1], own], wait=False)
        with pytest.raises(Delayed):
            stage.store.tell([stage.tell(target)], wait=False)
        assert time.monotonic() - began < 20  # the row is kept for 30
        assert [type(r) for r in results] == [Committed, Delayed, Committed, Delayed]
    assert all(isinstance(r, Committed) for r in stage.store.commit([waiting, own], wait=False))
    assert stage.store.tell([stage.tell(target)], wait=False)[0] == [True]
    assert Task.objects.filter(actor_id=target).count() == 2


@pytest.mark.postgres
def test_an_actor_that_an_open_transaction_makes_delays_whoever_tells_it_something(stage: Stage) -> None:
    name = stage.name()
    told = stage.tell_to(KIND, name)
    waiting = stage.dirty(stage.claim(stage.actor()), messages=1, tells=[told])
    others = [good(stage), good(stage)]
    with open_transaction(lambda: Actor.objects.create(kind=KIND, name=name)):
        results = stage.store.commit([others[0], waiting, others[1]], wait=False)
        assert [type(r) for r in results] == [Committed, Delayed, Committed]
        with pytest.raises(Delayed):
            stage.store.tell([stage.tell_to(KIND, name)], wait=False)
        with pytest.raises(Delayed):
            stage.store.ensure([(KIND, name)], wait=False)
    (committed,) = stage.store.commit([waiting], wait=False)
    assert isinstance(committed, Committed)
    assert Task.objects.filter(actor__name=name).count() == 1


@pytest.mark.postgres
def test_claims_skip_rows_that_somebody_has_locked(stage: Stage) -> None:
    held, free = stage.actor(), stage.actor()
    with locked(held):
        for drain in (False, True):
            claims = [Claim(held, uuid.uuid4(), drain=drain), Claim(free, uuid.uuid4(), drain=drain)]
            blocked, got = stage.store.claim(claims)
            assert blocked is None
            assert got is not None and not isinstance(got, BaseException)
            stage.commit(stage.release(got))


@pytest.mark.postgres
def test_what_only_looks_or_renews_never_waits_for_a_locked_row(stage: Stage) -> None:
    claimed, other = stage.claim(stage.actor()), stage.claim(stage.actor())
    expiry = stage.row(other.actor.id).lease_expires_at
    with locked(claimed.actor.id):
        leases = [(c.actor.id, c.token) for c in (claimed, other)]
        assert stage.store.renew(leases) == {claimed.token: False, other.token: True}
        stage.store.mark_waiting(claimed.actor.id)
        assert stage.store.stops([claimed.actor.id]) == {}
        seen = stage.store.inspect(claimed.actor.id)
        assert seen is not None and seen["leased"] and not seen["waiting"]
        assert not stage.store.free(claimed.actor.id, claimed.token)
    renewed = stage.row(other.actor.id).lease_expires_at
    assert renewed is not None and expiry is not None and renewed > expiry


@pytest.mark.postgres
def test_a_lease_whose_row_was_locked_at_its_renewal_is_renewed_at_the_next_beat(stage: Stage) -> None:
    claimed = stage.claim(stage.actor())
    ended: list[str] = []
    lease = Lease(claimed.actor.id, claimed.token, claimed.turn_id, time.monotonic() + 900, ended.append)
    lease.renewed -= conf.get("LEASE_RENEWAL")
    heartbeat = Heartbeat(stage.store)  # not started: its beats are these
    heartbeat.hold(lease)
    before = stage.row(claimed.actor.id).lease_expires_at
    with locked(claimed.actor.id):
        heartbeat._beat()
        assert stage.row(claimed.actor.id).lease_expires_at == before
    heartbeat._beat()
    after = stage.row(claimed.actor.id).lease_expires_at
    assert before is not None and after is not None and after > before
    assert ended == []


def test_the_application_s_rows_are_part_of_the_commit(stage: Stage) -> None:
    claimed = stage.claim(stage.actor())
    name = stage.name()
    create = (lambda: Actor.objects.create(kind="app", name=name), ())
    stage.commit(stage.dirty(claimed, messages=1, at_commit=[create]))
    assert Actor.objects.filter(kind="app", name=name).exists()


def test_the_application_s_functions_see_what_the_turn_wrote(stage: Stage) -> None:
    claimed = stage.claim(stage.actor())
    seen: list[int] = []
    callbacks: list[str] = []

    def look() -> None:
        seen.append(Message.objects.filter(actor_id=claimed.actor.id).count())
        transaction.on_commit(lambda: callbacks.append("committed"))

    stage.commit(stage.dirty(claimed, messages=2, at_commit=[(look, ()), (seen.append, (7,))]))
    assert (seen, callbacks) == ([2, 7], ["committed"])


def test_what_the_application_does_after_the_commit_cannot_undo_it(stage: Stage) -> None:
    def fail() -> None:
        raise RuntimeError("no broker")

    claimed = stage.claim(stage.actor())
    call = (transaction.on_commit, (fail,))
    assert stage.commit(stage.dirty(claimed, messages=1, at_commit=[call])).version == 1


def test_a_refused_turn_s_functions_are_not_called(stage: Stage) -> None:
    called: list[int] = []
    commit = stage.dirty(stage.claim(stage.actor()), at_commit=[(called.append, (1,))])
    commit.token = uuid.uuid4()
    assert isinstance(stage.refused(commit), TurnLostError)
    assert called == []


def test_the_application_s_functions_run_again_when_the_database_aborts(stage: Stage) -> None:
    calls: list[int] = []

    def once() -> None:
        calls.append(1)
        Actor.objects.create(kind="app", name=f"{stage.name()}")
        if len(calls) == 1:
            raise Interrupted("a deadlock, say")

    assert stage.commit(stage.dirty(stage.claim(stage.actor()), at_commit=[(once, ())])).version == 1
    assert (len(calls), Actor.objects.filter(kind="app").count()) == (2, 1)


def test_errors_of_the_database_are_django_s(stage: Stage) -> None:
    error = stage.refused(with_value(stage, None))
    assert isinstance(error, DatabaseError)
    assert error.__cause__ is not error


@pytest.mark.postgres
@pytest.mark.parametrize("together", [1, 3])
def test_text_that_is_too_long_for_its_column_is_refused_and_never_cut(stage: Stage, together: int) -> None:
    bad = with_value(stage, "hello")
    ((table, row),) = bad.writes.inserts
    bad.writes.inserts[:] = [(table, {**row, "name": "x" * 256})]
    *_, error = stage.store.commit([good(stage) for _ in range(together - 1)] + [bad])
    assert isinstance(error, DataError)
    bad.writes.inserts[:] = [(table, {**row, "name": "x" * 255})]
    stage.commit(bad)
    assert Message.objects.get(actor_id=bad.actor_id).name == "x" * 255


@pytest.mark.postgres
def test_text_that_postgresql_cannot_hold_is_refused_for_its_turn_alone(stage: Stage) -> None:
    bad = with_value(stage, "nul \x00 inside")
    before, error, after = stage.store.commit([good(stage), bad, good(stage)])
    assert isinstance(error, DataError)
    assert isinstance(before, Committed) and isinstance(after, Committed)


def test_an_empty_batch_is_nothing(stage: Stage) -> None:
    assert stage.store.commit([]) == []
    assert stage.store.claim([]) == []
    assert stage.store.tell([]) == ([], [])
    assert stage.store.renew([]) == {}
    assert stage.store.ensure([]) == {}
    assert stage.store.find([]) == {}
    assert stage.store.stops([]) == {}


def test_rows_of_a_part_and_tells_are_there_together_or_not_at_all(stage: Stage) -> None:
    actor, other, gone = stage.actor(), stage.actor(), stage.actor()
    ids = {stage.address(id): id for id in (actor, other, gone)}
    stage.store.tell([stage.tell(actor, key="seen")])
    tells = [stage.tell(other, key="new"), stage.tell(actor, key="seen")]
    rows = {MESSAGE: [stage.message(other, 1, stage.store.sql.now())]}
    with pytest.raises(ToldBefore):
        stage.store.tell_with(tells, ids, rows)
    Actor.objects.filter(pk=gone).delete()
    erased = Tell(KIND, next(name for (_, name), id in ids.items() if id == gone), "go", None)
    with pytest.raises(Interrupted):
        stage.store.tell_with([tells[0], erased], ids, rows)
    with pytest.raises(IntegrityError):
        stage.store.tell_with(tells[:1], ids, {MESSAGE: rows[MESSAGE] * 2})
    assert not Message.objects.exists() and not Task.objects.filter(actor_id=other).exists()
    written, (alarm,) = stage.store.tell_with(tells[:1], ids, rows)
    assert written == {MESSAGE: [Message.objects.get(actor_id=other).pk]}
    assert (alarm.actor_id, alarm.due) == (other, True)
    Message.objects.all().delete()


def test_a_tell_s_actor_is_made_when_its_turn_commits(stage: Stage) -> None:
    new = stage.name()
    claimed = stage.claim(stage.actor())
    stage.commit(stage.dirty(claimed, tells=[Tell(KIND, new, "hello", {"a": 1})]))
    assert Task.objects.get(actor__name=new).payload == {"a": 1}
