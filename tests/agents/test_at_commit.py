"""``at_commit``: the application's own rows, in the transaction of the turn's commit."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction

from agents import Agent, faults, reads
from agents.exceptions import ActorMethodError, OpenTransactionError, ReadOnlyTurnError
from agents.models import Actor
from agents.store.base import Interrupted
from agents.testing import advance, drain
from tests.agents.cast import Counter, Keeper, outside
from tests.agents.facts import attempts, messages, row, tasks

pytestmark = pytest.mark.django_db(transaction=True)


def groups() -> list[str]:
    return list(Group.objects.order_by("id").values_list("name", flat=True))


def add_group(name: str) -> None:
    outside.append(name)
    Group.objects.create(name=name)


def fail() -> None:
    raise ValueError("in the commit")


def exit() -> None:
    sys.exit(3)


def call_an_actor() -> None:
    Counter.named("c").sync.add()


def tell_an_actor() -> None:
    Counter.named("c").sync.tell("add")


def tell_after_the_commit() -> None:
    transaction.on_commit(lambda: Keeper.named("told").sync.tell("keep", "after the commit"))


def fail_after_the_commit() -> None:
    transaction.on_commit(fail)


def roll_back_quietly() -> None:
    transaction.set_rollback(True)


def see(name: str) -> None:
    """The turn's own rows are there, under the lock of its actor."""
    actor = Actor.objects.get(name=name)
    outside.append((connection.in_atomic_block, actor.messages.count()))


FUNCTIONS = {f.__name__: f for f in (add_group, fail, exit, call_an_actor, tell_an_actor,
             tell_after_the_commit, fail_after_the_commit, roll_back_quietly, see)}  # fmt: skip


class Clerk(Agent):
    kind = "test-at-commit"

    async def does(self, *functions: list[Any], fail: bool = False) -> None:
        await self.messages.add("user", "a message")
        for name, *args in functions:
            self.at_commit(FUNCTIONS[name], *args)
        if fail:
            raise ValueError("in the body")

    async def does_as_told(self, payload: list[list[Any]]) -> None:
        await self.does(*payload)

    async def does_before_a_checkpoint(self) -> None:
        self.at_commit(add_group, "before")
        await self.checkpoint()
        self.at_commit(add_group, "after")
        raise ValueError("in the body")

    async def takes_no_coroutine(self) -> None:
        self.at_commit(self.does)

    @reads
    async def reads(self) -> None:
        self.at_commit(print)


def test_rows_of_the_application_commit_with_the_turn():
    Clerk.named("k").sync.does(["add_group", "one"], ["add_group", "two"])
    assert groups() == ["one", "two"]
    assert messages(Clerk.named("k")) == ["a message"]


def test_and_are_rolled_back_with_it():
    with pytest.raises(ValueError, match="in the body"):
        Clerk.named("k").sync.does(["add_group", "one"], fail=True)
    assert outside == []  # it didn't even run
    with pytest.raises(ValueError, match="in the commit"):
        Clerk.named("k").sync.does(["add_group", "one"], ["fail"])
    assert groups() == []
    assert messages(Clerk.named("k")) == []
    assert row(Clerk.named("k")).token is None


def test_what_the_database_refuses_fails_the_turn():
    Group.objects.create(name="one")
    with pytest.raises(IntegrityError):
        Clerk.named("k").sync.does(["add_group", "one"])
    assert messages(Clerk.named("k")) == []
    Clerk.named("k").sync.does(["add_group", "two"])
    assert groups() == ["one", "two"]


def test_it_runs_inside_the_transaction_behind_the_turns_own_rows():
    Clerk.named("k").sync.does(["see", "k"])
    assert outside == [(True, 1)]


@pytest.mark.parametrize("kind_of_trouble", [Interrupted("deadlock detected")])
def test_it_runs_again_when_the_database_aborts_the_transaction(kind_of_trouble):
    left = [kind_of_trouble, kind_of_trouble]

    def abort() -> None:
        if left:
            raise left.pop()

    with faults.at("commit.commit", abort):
        Clerk.named("k").sync.does(["add_group", "one"])
    assert outside == ["one", "one", "one"]
    assert groups() == ["one"]
    assert messages(Clerk.named("k")) == ["a message"]


def test_an_exception_in_it_is_a_failed_attempt_of_a_task():
    stub = Clerk.named("k")
    stub.sync.tell("does_as_told", [["add_group", "one"], ["fail"]], max_retries=1)
    drain()
    advance(2)
    drain()
    assert attempts(stub) == ["failed", "failed"]
    assert tasks(stub) == [("does_as_told", "parked", 2)]
    assert outside == ["one", "one"]
    assert groups() == []
    assert messages(stub) == []


def test_an_exit_in_it_ends_only_its_turn():
    with pytest.raises(ActorMethodError):
        Clerk.named("k").sync.does(["add_group", "one"], ["exit"])
    assert groups() == []
    assert row(Clerk.named("k")).token is None
    Clerk.named("k").sync.does(["add_group", "one"])
    assert groups() == ["one"]


@pytest.mark.parametrize("name", ["call_an_actor", "tell_an_actor"])
def test_it_may_neither_call_nor_tell_actors(name):
    with pytest.raises(OpenTransactionError):
        Clerk.named("k").sync.does([name])
    assert messages(Clerk.named("k")) == []
    assert not Actor.objects.filter(kind="test-counter").exists()


def test_what_it_leaves_for_after_the_commit_may_tell_actors_from_many_turns_at_once():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: Clerk.named(f"k{n}").sync.does(["tell_after_the_commit"]), range(8)))
    drain(Keeper.named("told"))
    assert messages(Keeper.named("told")) == ["after the commit"] * 8


def test_what_fails_after_the_commit_does_not_make_it_look_refused():
    stub = Clerk.named("k")
    stub.sync.does(["add_group", "one"], ["fail_after_the_commit"])
    assert groups() == ["one"]
    assert messages(stub) == ["a message"]
    stub.sync.tell("does_as_told", [["add_group", "two"], ["fail_after_the_commit"]])
    stub.sync.tell("does_as_told", [["add_group", "three"]])
    drain()
    assert attempts(stub) == ["done", "done"]
    assert groups() == ["one", "two", "three"]


def test_a_rollback_that_it_asks_for_quietly_is_an_error():
    with pytest.raises(transaction.TransactionManagementError):
        Clerk.named("k").sync.does(["add_group", "one"], ["roll_back_quietly"])
    assert groups() == []
    assert messages(Clerk.named("k")) == []


def test_a_checkpoint_takes_those_that_were_there():
    with pytest.raises(ValueError, match="in the body"):
        Clerk.named("k").sync.does_before_a_checkpoint()
    assert groups() == ["before"]


def test_only_a_synchronous_function_and_not_in_a_read():
    with pytest.raises(TypeError):
        Clerk.named("k").sync.takes_no_coroutine()
    with pytest.raises(ReadOnlyTurnError):
        Clerk.named("k").sync.reads()
