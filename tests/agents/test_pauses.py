"""Pauses: of an actor, a kind, everything; what waits, what is refused, what a sweep costs."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import connection

from agents import kinds, pauses
from agents.exceptions import ActorPausedError, InvalidKindError
from agents.models import Actor, Operation, Pause
from agents.store import get_store
from agents.testing import drain
from scheduler.audit import audit
from scheduler.models import Task
from tests.adminpages import signed_in
from tests.agents.cast import Counter, Waiter, outside, said
from tests.agents.facts import attempts, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

WHO = {"by": "alice", "reason": "a look"}


def pause(what: str, stub: Any) -> None:
    if what == "actor":
        assert pauses.pause(stub.kind, stub.name, **WHO)
    else:
        assert pauses.pause_kind(stub.kind if what == "kind" else pauses.EVERYTHING, **WHO)


def resume(what: str, stub: Any) -> None:
    if what == "actor":
        assert pauses.resume(stub.kind, stub.name, **WHO)
    else:
        assert pauses.resume_kind(stub.kind if what == "kind" else pauses.EVERYTHING, **WHO)


@pytest.mark.parametrize("what", ["actor", "kind", "everything"])
def test_what_is_paused_refuses_calls_keeps_tasks_and_runs_them_afterwards(what: str):
    stub = Counter.named("c")
    stub.sync.add()
    pause(what, stub)
    stub.sync.tell("add", 10)
    with pytest.raises(ActorPausedError) as refused:
        stub.sync.add()
    assert (refused.value.code, refused.value.hold) == ("paused", what)
    assert drain() == 0
    assert stub.sync.count() == 1  # what only reads answers
    assert tasks(stub) == [("add", "pending", 0)]
    assert pauses.hold_of(row(stub)) == what
    resume(what, stub)
    assert drain() == 1
    assert stub.sync.add() == 12
    assert pauses.hold_of(row(stub)) == ""
    assert list(Operation.objects.order_by("pk").values_list("verb", "by", "reason")) == [
        ("pause", "alice", "a look"),
        ("resume", "alice", "a look"),
    ]


def test_a_pause_holds_back_no_other_actor_and_no_other_kind():
    pause("actor", Counter.named("one"))
    pause("kind", Waiter.named("w"))
    assert Counter.named("two").sync.add() == 1
    with pytest.raises(ActorPausedError):
        Counter.named("one").sync.add()


def test_two_pauses_are_two_things():
    stub = Counter.named("c")
    for what in ("actor", "kind", "everything"):
        pause(what, stub)
    for what, left in (("actor", "everything"), ("everything", "kind"), ("kind", "")):
        resume(what, stub)
        if left:
            with pytest.raises(ActorPausedError) as refused:
                stub.sync.add()
            assert refused.value.hold == left
    assert stub.sync.add() == 1


def test_a_pause_that_is_one_changes_nothing_and_leaves_no_line():
    stub = Counter.named("c")
    assert not pauses.resume("test-counter", "c", **WHO)
    pause("actor", stub)
    assert not pauses.pause(stub.kind, stub.name, **WHO)
    pause("kind", stub)
    assert not pauses.pause_kind(stub.kind, **WHO)
    assert not pauses.resume_kind(pauses.EVERYTHING, **WHO)
    assert Operation.objects.count() == 2
    with pytest.raises(InvalidKindError):
        pauses.pause_kind("No Kind", **WHO)


def test_a_turn_that_runs_ends_and_its_drain_begins_no_other_task():
    stub = Waiter.named("w")
    stub.sync.tell("nap", {"seconds": 60, "until": "paused"})
    stub.sync.tell("nap", {"seconds": 0})
    with ThreadPoolExecutor(1) as thread:
        ran = thread.submit(drain)
        wait_until(lambda: outside)
        pause("kind", stub)
        said.add("paused")
        ran.result()
    assert attempts(stub) == ["done"]
    resume("kind", stub)
    drain()
    assert attempts(stub) == ["done", "done"]


def test_claims_and_pauses_may_race():
    """Whatever the moment: after the pause has returned and the turn has ended, no other begins."""
    for number in range(15):
        stub = Counter.named(f"c{number}")
        stub.sync.add()
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(stub.sync.add) for _ in range(2)]
            pause("actor", stub)
        done = sum(call.exception() is None for call in calls)
        assert all(isinstance(c.exception(), ActorPausedError | None) for c in calls)
        assert Counter.named(stub.name).sync.count() == 1 + done
        with pytest.raises(ActorPausedError):
            stub.sync.add()


def test_the_audit_finds_nothing_wrong_with_what_is_paused():
    one, other = Counter.named("one"), Waiter.named("w")
    for stub, method in ((one, "add"), (other, "sleep")):
        stub.sync.tell(method, 0)
    pause("actor", one)
    pause("kind", other)
    assert row(one).alarm is None
    assert list(audit(settled=0)) == []
    resume("actor", one)
    assert row(one).alarm is not None


def test_commands_pause_and_say_what_is_paused():
    def run(*arguments: str) -> str:
        out = StringIO()
        call_command("pause", *arguments, stdout=out)
        return out.getvalue().strip()

    assert run("test-counter", "c", "--reason", "odd replies") == "test-counter/c is paused"
    assert run("test-counter", "c") == "test-counter/c was paused before"
    assert run("--all") == "everything is paused"
    listed = run("--list").splitlines()
    assert listed[0].startswith("everything since ")
    assert listed[1].startswith("test-counter/c since ")
    assert run("--all", "--resume") == "everything goes on"
    assert run("test-counter", "c", "--resume") == "test-counter/c goes on"
    assert run("test-counter", "--resume") == "test-counter was not paused"
    assert Operation.objects.filter(by__startswith="manage.py").count() == 4
    for wrong in ([], ["test-counter", "--all"]):
        with pytest.raises(CommandError):
            call_command("pause", *wrong)


def test_a_process_may_start_with_everything_paused(agents_settings):
    pauses.start_paused()
    assert not Pause.objects.exists()
    agents_settings(START_PAUSED=True)
    pauses.start_paused()
    pauses.start_paused()
    with pytest.raises(ActorPausedError):
        Counter.named("c").sync.add()
    assert [p.by for p in Pause.objects.all()] == ["START_PAUSED"]


class Steps:
    """Counts what SQLite's machine does, and what PostgreSQL reads: the same each time, unlike seconds."""

    def __enter__(self) -> Steps:
        self.count = 0
        connection.ensure_connection()
        connection.connection.set_progress_handler(self._step, 10)
        return self

    def _step(self) -> int:
        self.count += 1
        return 0

    def __exit__(self, *error: object) -> None:
        connection.connection.set_progress_handler(None, 0)


def effort_of_a_sweep() -> int:
    """In blocks that PostgreSQL touched, or in tens of SQLite's instructions."""
    swept = kinds.installed(), 1000, dt.timedelta(seconds=2)
    if connection.vendor == "sqlite":
        with Steps() as steps:
            get_store().sweep(*swept)
        return steps.count
    from agents.store.postgres import PostgresStatements

    class Explained(PostgresStatements):
        plan = ""

        def _ask(self, query: str, *params: Any, convert: Any = None) -> Any:
            rows = super()._ask("EXPLAIN (ANALYZE, BUFFERS) " + query, *params, convert=list)
            self.plan = "\n".join(line for (line,) in rows)
            return []

    explained = Explained()
    explained.sweep(*swept)
    line = next(line for line in explained.plan.splitlines() if "Buffers:" in line)
    return sum(int(word.partition("=")[2]) for word in line.split() if word.startswith(("hit", "read")))


def vacuum() -> None:
    """What earlier tests and updates left behind is not what is measured."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM agents_actor" if connection.vendor == "postgresql" else "SELECT 1")


# Blocks or tens of instructions that a larger index may cost; to read the actors takes a thousand or more.
FEW = 200


def test_a_sweep_costs_the_same_with_ten_thousand_paused_actors_due():
    past = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    vacuum()
    before = effort_of_a_sweep()
    Actor.objects.bulk_create(
        [Actor(kind="test-counter", name=f"c{n}", alarm=past) for n in range(10_000)], batch_size=5000
    )
    for what in ("kind", "everything"):
        pause(what, Counter.named("c0"))
        assert get_store().sweep(kinds.installed(), 1000, dt.timedelta(seconds=2)) == []
        assert effort_of_a_sweep() <= before + FEW
        resume(what, Counter.named("c0"))
    Actor.objects.update(paused_at=past, alarm=None)  # as each pause leaves its actor
    vacuum()
    assert effort_of_a_sweep() <= before + FEW


def test_a_paused_actor_has_no_alarm_however_much_is_due():
    stub = Counter.named("c")
    pause("actor", stub)
    stub.sync.tell("add", 1)
    Task.objects.create(actor=row(stub), task_id="t", method="add", due_at=row(stub).created_at)
    stub.sync.tell("add", 1)
    assert row(stub).alarm is None
    resume("actor", stub)
    assert drain() == 3


def test_an_operator_of_one_kind_pauses_that_kind_alone(charlie: Any):
    charlie.is_staff = True
    charlie.save()
    charlie.user_permissions.set(
        Permission.objects.filter(
            codename__in=[f"view_kind_{Counter.kind}", "add_pause", "view_pause", "delete_pause"]
        )
    )
    client = signed_in(charlie)
    pauses.pause_kind(Waiter.kind, by="alice")
    assert Waiter.kind not in client.get("/admin/agents/pause/").content.decode()
    for kind in (Waiter.kind, pauses.EVERYTHING, Counter.kind):
        client.post("/admin/agents/pause/add/", {"kind": kind, "reason": "a look"})
    assert set(Pause.objects.values_list("kind", flat=True)) == {Waiter.kind, Counter.kind}
