"""Tells inside a transaction of the application: they are part of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import IntegrityError, connection, transaction

from agents import store as stores
from agents.models import Actor
from agents.store.requests import Alarm
from agents.turn import Tell
from scheduler.models import InboxKey, Task
from tests.agents.store.stage import KIND, Stage, in_threads


@pytest.fixture
def woken() -> Iterator[list[Alarm]]:
    alarms: list[Alarm] = []

    stores.on_alarms.append(alarms.extend)
    yield alarms
    stores.on_alarms.remove(alarms.extend)


def test_a_tell_is_there_when_the_transaction_has_committed(stage: Stage, woken: list[Alarm]) -> None:
    actor = stage.actor()
    with transaction.atomic():
        assert stores.tell_in_transaction(stage.tell(actor, key="k"))
        assert not stores.tell_in_transaction(stage.tell(actor, key="k"))
        assert in_threads(lambda: Task.objects.count()) == [0]
        assert woken == []
    assert Task.objects.count() == 1
    assert [(a.actor_id, a.due) for a in woken][:1] == [(actor, True)]


def test_a_transaction_that_rolls_back_leaves_nothing(stage: Stage, woken: list[Alarm]) -> None:
    new = stage.name()
    with pytest.raises(ValueError, match="of the application"), transaction.atomic():
        stage.store.tell_here([Tell(KIND, new, "go", None, key="k"), Tell(KIND, new, "go", None)])
        assert Task.objects.count() == 2
        raise ValueError("of the application")
    assert not Actor.objects.filter(name=new).exists()
    assert not Task.objects.exists() and not InboxKey.objects.exists()
    assert woken == []


def test_a_savepoint_that_rolls_back_takes_its_tells_and_no_others(stage: Stage) -> None:
    actor = stage.actor()
    with transaction.atomic():
        stage.store.tell_here([stage.tell(actor, payload="kept")])
        with pytest.raises(ValueError, match="inner"), transaction.atomic():
            stage.store.tell_here([stage.tell(actor, payload="gone", key="k")])
            raise ValueError("inner")
        stage.store.tell_here([stage.tell(actor, payload="kept too", key="k")])
    assert list(Task.objects.order_by("id").values_list("payload", flat=True)) == ["kept", "kept too"]


def test_a_tell_joins_a_transaction_that_has_run_no_query_yet(stage: Stage) -> None:
    """psycopg begins a transaction with its first query: the store's must not run outside of it."""
    actor = stage.actor()
    tell = stage.tell(actor)
    connection.close()
    with pytest.raises(ValueError, match="undo"), transaction.atomic():
        stage.store.tell_here([tell])
        raise ValueError("undo")
    assert not Task.objects.exists()


def test_the_application_s_queries_and_the_tell_s_see_each_other(stage: Stage) -> None:
    with transaction.atomic():
        actor = Actor.objects.create(kind=KIND, name=stage.name())
        _, (alarm,) = stage.store.tell_here([Tell(KIND, actor.name, "go", None)])
        assert alarm.actor_id == actor.pk
        task = Task.objects.get(actor=actor)
        actor.refresh_from_db()
        assert actor.alarm == task.due_at


def test_a_tell_waits_for_a_commit_of_its_actor_and_leaves_its_lease_alone(stage: Stage) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    with transaction.atomic():
        stage.store.tell_here([stage.tell(actor)])
    assert stage.row(actor).token == claimed.token
    committed = stage.commit(stage.dirty(claimed))
    assert [a.due for a in committed.alarms] == [True]


def test_the_store_s_own_tell_inside_a_transaction_joins_it(stage: Stage) -> None:
    actor = stage.actor()
    with pytest.raises(ValueError, match="undo"), transaction.atomic():
        stage.store.tell([stage.tell(actor)])
        raise ValueError("undo")
    assert not Task.objects.exists()


def test_an_error_of_the_application_s_transaction_is_django_s(stage: Stage) -> None:
    actor = stage.actor()
    kind, name = stage.address(actor)
    with pytest.raises(IntegrityError), transaction.atomic():
        stage.store.tell_here([stage.tell(actor)])
        Actor.objects.create(kind=kind, name=name)
    assert not Task.objects.exists()


def test_a_locked_actor_can_be_changed_and_its_alarm_follows(stage: Stage, woken: list[Alarm]) -> None:
    actor = stage.actor()
    (task,) = stage.told(actor, 1)
    with stores.lock_actor(actor) as row:
        assert row.pk == actor
        Task.objects.filter(pk=task.pk).delete()
    assert stage.row(actor).alarm is None
    assert [(a.actor_id, a.at) for a in woken] == [(actor, None)]
    with pytest.raises(ValueError, match="undo"), stores.lock_actor(actor):
        Task.objects.create(actor_id=actor, task_id="x", method="go", due_at=task.due_at)
        raise ValueError("undo")
    assert len(woken) == 1
    with pytest.raises(Actor.DoesNotExist), stores.lock_actor(0):
        pass


def test_a_locked_actor_can_be_erased(stage: Stage) -> None:
    actor = stage.actor()
    stage.told(actor, 1)
    with stores.lock_actor(actor) as row:
        row.delete()
    assert not Actor.objects.exists()


def test_a_listener_that_fails_fails_no_transaction(stage: Stage, woken: list[Alarm]) -> None:
    def fail(alarms: object) -> None:
        raise RuntimeError("no broker")

    actor = stage.actor()
    stores.on_alarms.insert(0, fail)
    try:
        with transaction.atomic():
            stores.tell_in_transaction(stage.tell(actor))
    finally:
        stores.on_alarms.remove(fail)
    assert [a.actor_id for a in woken] == [actor]


def test_the_store_s_settings_of_a_transaction_end_with_it(stage: Stage) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no such settings")
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "enable_seqscan", "jit")

    def current() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(f'current_setting({n!r})' for n in names)}")
            return list(cursor.fetchone())

    before = current()
    actor = stage.actor()
    stage.turn(actor)
    stage.told(actor, 1)
    stage.turn(actor, at_commit=[(str, ())])
    assert current() == before
    with transaction.atomic():
        stage.store.tell_here([stage.tell(actor)])
        assert current() == before
