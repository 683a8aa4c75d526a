"""A turn: exclusive, atomic, and harmless to all others whatever its method does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db.models import Count

from agents import Agent, store
from agents.exceptions import (
    ActorMethodError,
    ActorMethodTimeoutError,
    ActorStoppedError,
    CodecError,
    LimitError,
    TurnEndedError,
    TurnLostError,
)
from agents.models import Actor, Event, TurnRecord
from agents.runtime import get_runtime
from agents.store.postgres import PostgresStatements
from agents.testing import advance, drain, on_runtime
from conversations.models import Message, OutboundText
from scheduler.models import Attempt, Task
from tests.agents.cast import Caller, Counter, Keeper, Waiter, Writer, hear, outside, said
from tests.agents.facts import messages, row
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


# Atomic


def test_a_turn_that_wrote_everything_and_raised_leaves_nothing_and_its_retry_one_of_each():
    stub = Writer.named("w")
    stub.sync.tell("everything", 1)
    drain()
    actor = row(stub)
    assert (actor.seq, actor.cursor, actor.state, actor.token) == (0, 0, None, None)
    assert not Message.objects.exists()
    assert not OutboundText.objects.exists()
    assert not Event.objects.exists()
    task = Task.objects.get()  # itself, waiting for its retry; not the timer that it set
    assert (task.method, task.attempts, task.status) == ("everything", 1, "pending")
    assert task.error == "RuntimeError: after all that"

    advance(2)
    drain()
    actor.refresh_from_db()
    assert messages(stub) == ["hello"]
    assert (actor.seq, actor.state) == (1, {"wrote": True})
    assert [t.task_id for t in Task.objects.all()] == ["later"]
    assert OutboundText.objects.count() == 1
    assert list(Event.objects.order_by("cursor").values_list("cursor", "type")) == [
        (1, "message"),
        (2, "broadcast"),
    ]
    assert [a.outcome for a in Attempt.objects.order_by("id")] == ["failed", "done"]
    assert "RuntimeError" in Attempt.objects.order_by("id")[0].traceback


def test_a_call_that_raises_leaves_nothing_and_frees_the_actor():
    stub = Writer.named("w")
    with pytest.raises(RuntimeError, match="after all that"):
        stub.sync.everything(9)
    assert messages(stub) == []
    assert row(stub).token is None
    assert not TurnRecord.objects.exists()
    stub.sync.everything()
    assert messages(stub) == ["hello"]


def test_a_turn_that_wrote_nothing_costs_no_version_and_leaves_no_record():
    stub = Counter.named("c")
    assert stub.sync.nothing() == "nothing"
    assert (row(stub).version, row(stub).started) == (0, False)
    assert not TurnRecord.objects.exists()


def test_a_record_of_every_turn_that_wrote():
    stub = Writer.named("w")
    stub.sync.everything()
    record = TurnRecord.objects.get()
    assert (record.version, record.origin, record.method, record.outcome) == (1, "call", "everything", "done")
    assert (record.first_seq, record.last_seq) == (1, 1)
    assert record.state_change == {"patch": {"wrote": True}}
    assert 0 <= record.duration_seconds < 10


class Looker(Agent):
    kind = "test-looker"

    async def write_and_look(self) -> list[Any]:
        given = {"tags": {"a"}}
        await self.set_state(given)
        given["tags"].add("b")  # too late
        await self.messages.add("user", "a\x00b")
        await self.schedule(60, "later", (1, 2), id="x")
        last = await self.messages.last()
        assert last is not None
        return [await self.get_state(), last.content, [t.payload for t in await self.list_schedules()]]

    async def look(self) -> list[Any]:
        last = await self.messages.last()
        assert last is not None
        return [await self.get_state(), last.content, [t.payload for t in await self.list_schedules()]]

    async def later(self) -> None: ...

    async def remember_on_the_instance(self) -> list[Any]:
        seen = getattr(self, "memory", None)
        self.memory = "here"
        return [seen, self.memory]

    async def writes_and_returns_a_lock(self) -> Any:
        await self.messages.add("user", "lost")
        return threading.Lock()

    async def returns(self, size: int) -> str:
        await self.messages.add("user", "kept")
        return "x" * size


def test_what_is_buffered_looks_exactly_as_a_later_turn_sees_it():
    stub = Looker.named("l")
    seen = stub.sync.write_and_look()
    assert seen == [{"tags": {"a"}}, "a\ufffdb", [(1, 2)]]
    assert stub.sync.look() == seen


def test_attributes_of_the_instance_do_not_survive_the_turn():
    stub = Looker.named("l")
    assert stub.sync.remember_on_the_instance() == [None, "here"]
    assert stub.sync.remember_on_the_instance() == [None, "here"]


def test_a_result_that_cannot_cross_fails_the_turn():
    stub = Looker.named("l")
    with pytest.raises(CodecError):
        stub.sync.writes_and_returns_a_lock()
    assert messages(stub) == []


def test_a_result_may_be_as_large_as_the_limit_and_no_larger(agents_settings):
    agents_settings(MAX_RESULT_BYTES=1000)
    stub = Looker.named("l")
    assert len(stub.sync.returns(998)) == 998  # and two quotes
    with pytest.raises(LimitError) as caught:
        stub.sync.returns(999)
    assert (caught.value.limit, caught.value.maximum, caught.value.actual) == ("MAX_RESULT_BYTES", 1000, 1001)
    assert messages(stub) == ["kept"]


# Exclusive


def test_turns_of_one_actor_run_one_at_a_time_from_many_threads():
    stub = Counter.named("b")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: [stub.sync.add() for _ in range(10)], range(8)))
    assert stub.sync.count() == 80


async def test_callers_are_served_in_the_order_in_which_they_came():
    stub = Counter.named("never-seen-before")
    assert await asyncio.gather(*(stub.add() for _ in range(20))) == list(range(1, 21))


def test_two_first_messages_make_one_actor():
    stub = Counter.named("+15550001111")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(stub.sync.log, ["one", "two"]))
    assert Actor.objects.count() == 1
    assert sorted(messages(stub)) == ["one", "two"]


def test_two_messages_at_once_and_reads_meanwhile_see_whole_turns():
    stub = Looker.named("l")
    stub.sync.write_and_look()
    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(stub.sync.write_and_look) for _ in range(2)]
        while not all(w.done() for w in writers):
            actor = Actor.objects.annotate(count=Count("messages")).get()  # one statement
            assert (actor.seq, actor.seq) == (actor.count, actor.version)
    assert Message.objects.count() == 3


# What a body may do to itself


class Awkward(Agent):
    """Bodies as no one should write them."""

    kind = "test-awkward"

    async def raises(self, what: str) -> None:
        outside.append(what)
        await self.messages.add("user", "lost")
        raise {
            "SystemExit": SystemExit(3),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "CancelledError": asyncio.CancelledError("by myself"),
            "GeneratorExit": GeneratorExit(),
            "BaseException": BaseException("raw"),
            "StopAsyncIteration": StopAsyncIteration(),
        }[what]

    async def exits_in_a_task_of_its_own(self) -> str:
        async def exit() -> None:
            raise SystemExit(4)

        task = asyncio.create_task(exit())
        while not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.exception()
        return "still here"

    async def exits_in_a_thread(self) -> None:
        await asyncio.to_thread(sys.exit, 5)

    async def leaves_something_running(self, then: str) -> None:
        await self.messages.add("user", "main")
        asyncio.get_running_loop().create_task(self._later(then))

    async def _later(self, then: str) -> None:
        while not self._turn.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            match then:
                case "writes":
                    await self.messages.add("user", "late")
                case "checkpoints":
                    await self.checkpoint()
                case "tells":
                    await Counter.named("other").tell("add", 1)
                case "calls":
                    await Awkward.named(self.name).raises_nothing()
        except Exception as error:
            outside.append(type(error))
        else:
            outside.append("done")

    async def raises_nothing(self) -> None:
        await self.messages.add("user", "called")


@pytest.mark.parametrize("what", ["SystemExit", "KeyboardInterrupt", "CancelledError"])
def test_an_exit_or_a_cancellation_that_a_body_raises_itself_ends_only_that_turn(what):
    stub = Awkward.named("a")
    with pytest.raises(ActorMethodError):
        stub.sync.raises(what)
    assert messages(stub) == []
    assert row(stub).token is None
    assert Counter.named("c").sync.add() == 1  # the loop goes on


@pytest.mark.parametrize(
    ("what", "error"),
    [("GeneratorExit", GeneratorExit), ("BaseException", BaseException), ("StopAsyncIteration", Exception)],
)
def test_other_odd_exceptions_reach_the_caller_and_free_the_actor(what, error):
    stub = Awkward.named("a")
    with pytest.raises(error):
        stub.sync.raises(what)
    assert row(stub).token is None
    assert Counter.named("c").sync.add() == 1


@pytest.mark.parametrize("what", ["SystemExit", "KeyboardInterrupt", "CancelledError", "BaseException"])
def test_for_a_task_they_are_failed_attempts(what):
    stub = Awkward.named("a")
    stub.sync.tell("raises", what, max_retries=1)
    drain()
    advance(5)
    drain()
    assert Task.objects.get().status == "parked"
    assert [a.outcome for a in Attempt.objects.all()] == ["failed", "failed"]
    assert messages(stub) == []


def test_an_exit_in_a_task_that_a_turn_started_ends_only_that_task():
    assert Awkward.named("a").sync.exits_in_a_task_of_its_own() == "still here"
    assert Counter.named("c").sync.add() == 1


def test_an_exit_in_a_thread_that_a_turn_waits_for_ends_only_that_turn():
    with pytest.raises(ActorMethodError):
        Awkward.named("a").sync.exits_in_a_thread()
    assert Counter.named("c").sync.add() == 1


@pytest.mark.parametrize("then", ["writes", "checkpoints", "tells"])
def test_what_a_turn_left_running_can_write_no_more(then):
    stub = Awkward.named("a")
    stub.sync.leaves_something_running(then)
    wait_until(lambda: outside)
    assert outside == [TurnEndedError]
    assert messages(stub) == ["main"]
    assert not Task.objects.exists()


def test_what_a_turn_left_running_may_call_its_own_actor_as_anybody_may():
    stub = Awkward.named("a")
    stub.sync.leaves_something_running("calls")
    wait_until(lambda: outside)
    assert outside == ["done"]
    assert messages(stub) == ["main", "called"]


def test_a_body_that_swallows_its_cancellation_times_out_and_commits_nothing(agents_settings):
    agents_settings(CALL_BUDGET=0.2, BUDGET_GRACE=0.2, STOP_POLL=0.05)
    stub = Waiter.named("s")
    with pytest.raises(ActorMethodTimeoutError):
        stub.sync.stubborn("enough")  # budget and grace, not the body's end
    wait_until(lambda: row(stub).token is None)  # the caller hears of it first
    assert stub.sync.sleep(0, "next") == "next"  # while the other still runs
    assert "stubborn to the end" not in outside
    said.add("enough")
    wait_until(lambda: "stubborn to the end" in outside)
    assert messages(stub) == ["next"]


class Zombie(Agent):
    """Goes on when its turn is over."""

    kind = "test-zombie"

    async def outlives(self, then: str) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            pass
        try:
            if then == "step":
                await self.step("s", self._outside)
            else:
                assert self._turn.session is not None
                await self._turn.session.checkpoint()
        except Exception as error:
            outside.append(type(error))
            raise

    async def _outside(self) -> str:
        await hear("the next task has begun", 60)  # under the same token
        assert self._turn.ended
        return "done"

    async def next(self) -> None:
        said.add("the next task has begun")
        while not outside:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await self.messages.add("user", "next")


def test_a_body_that_goes_on_cannot_save_a_step_under_the_next_task_of_its_drain(agents_settings):
    agents_settings(TASK_BUDGET=0.2, BUDGET_GRACE=0.2)
    stub = Zombie.named("z")
    Zombie.task_budget = None
    stub.sync.tell("outlives", "step", max_retries=0)
    stub.sync.tell("next")
    # The second task needs longer than the first may have.
    on_runtime(lambda engine: _with_budget_for_the_next(engine, agents_settings))
    wait_until(lambda: outside)
    assert outside == [TurnEndedError]
    assert messages(stub) == ["next"]
    assert [a.outcome for a in Attempt.objects.order_by("id")] == ["failed", "done"]


async def _with_budget_for_the_next(engine: Any, agents_settings: Any) -> None:
    from scheduler.drain import drain as drain_actor

    actor = await sync_to_async(Actor.objects.get)()
    draining = asyncio.get_running_loop().create_task(drain_actor(engine, actor.pk, actor.kind))
    while not engine.runs:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    agents_settings(TASK_BUDGET=60.0)
    await draining


# Callers


async def test_a_caller_that_goes_away_does_not_end_the_turn():
    stub = Waiter.named("w")
    call = asyncio.create_task(stub.sleep(60, until="enough"))
    await asyncio.to_thread(wait_until, lambda: outside)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    said.add("enough")
    await asyncio.to_thread(wait_until, lambda: len(outside) == 2)
    await asyncio.to_thread(wait_until, lambda: messages(stub) == ["slept"])


def test_a_callers_loop_may_close_before_the_turn_ends(caplog):
    stub = Waiter.named("w")

    async def call_and_leave() -> None:
        call = asyncio.create_task(stub.sleep(60, until="enough"))
        await asyncio.to_thread(wait_until, lambda: outside)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.1)

    asyncio.run(call_and_leave())
    said.add("enough")
    wait_until(lambda: messages(stub) == ["slept"])
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def test_a_call_can_be_made_from_any_event_loop_and_through_async_to_sync():
    stub = Counter.named("c")
    assert asyncio.run(stub.add()) == 1
    assert async_to_sync(stub.add)() == 2
    assert stub.sync.add() == 3


# Calls from turns


class Busy(Agent):
    """Calls others in several ways at once."""

    kind = "test-busy"

    async def gather(self, names: list[str]) -> list[int]:
        await self.messages.add("user", "before")
        return await asyncio.gather(*(Counter.named(name).add() for name in names))

    async def gather_and_fail(self, names: list[str]) -> None:
        await self.messages.add("user", "before")
        await asyncio.gather(*(Counter.named(name).add() for name in names))
        raise ValueError("after the calls")

    async def help_from_a_thread(self, name: str) -> int:
        await self.messages.add("user", "before")
        return await sync_to_async(self._helper)(name)

    def _helper(self, name: str) -> int:
        Keeper.named("told").sync.tell("keep", f"from {self.name}")
        # The other turn needs a thread of the same pool.
        return Looker2.named(name).sync.count_rows()

    async def tell_from_a_thread_and_fail(self) -> None:
        await asyncio.to_thread(Keeper.named("told").sync.tell, "keep", "never")
        raise ValueError("after the tell")

    async def orm_threads(self) -> list[str]:
        return [await sync_to_async(lambda: threading.current_thread().name)() for _ in range(3)]

    async def note_orm_thread(self) -> None:
        outside.append(await sync_to_async(lambda: threading.current_thread().name)())


class Looker2(Agent):
    kind = "test-looker-two"

    async def count_rows(self) -> int:
        await self.messages.add("user", "x")
        return await Actor.objects.acount() and await self.messages.count()


def test_calls_gathered_in_one_turn_commit_each_by_itself():
    stub = Busy.named("b")
    assert stub.sync.gather(["a", "b", "c"]) == [1, 1, 1]
    with pytest.raises(ValueError, match="after the calls"):
        stub.sync.gather_and_fail(["a", "b", "c"])
    assert [Counter.named(name).sync.count() for name in "abc"] == [2, 2, 2]
    assert messages(stub) == ["before"]


def test_synchronous_helpers_in_threads_call_and_tell_more_of_them_than_there_are_threads(agents_settings):
    # Each keeps a thread of the pool while the turn that it waits for needs one.
    with ThreadPoolExecutor(12) as callers:
        began = time.monotonic()
        counts = list(callers.map(lambda n: Busy.named(f"b{n}").sync.help_from_a_thread(f"l{n}"), range(12)))
    assert counts == [1] * 12
    assert time.monotonic() - began < 25  # nobody's patience had to end
    drain(Keeper.named("told"))
    assert sorted(messages(Keeper.named("told"))) == sorted(f"from b{n}" for n in range(12))


def test_a_tell_from_a_thread_of_a_turn_is_part_of_its_commit():
    with pytest.raises(ValueError, match="after the tell"):
        Busy.named("b").sync.tell_from_a_thread_and_fail()
    assert not Task.objects.exists()


def test_the_asynchronous_orm_of_calls_and_of_tasks_runs_in_the_runtimes_threads():
    assert all(name.startswith("agents-orm") for name in Busy.named("b").sync.orm_threads())
    Busy.named("b").sync.tell("note_orm_thread")
    drain()
    assert outside[0].startswith("agents-orm")


def test_an_error_of_a_called_actor_is_a_failure_of_the_caller_and_nothing_more():
    """What happened to the called actor's turn didn't happen to the caller's."""

    class Broken(Agent):
        kind = "test-broken"

        async def fails(self, how: str) -> None:
            raise {
                "lost": TurnLostError("of another"),
                "stopped": ActorStoppedError("another was stopped"),
            }[how]

    for how in ("lost", "stopped"):
        caller = Caller.named(how)
        caller.sync.tell("relay_failure", how, max_retries=0)
        drain()
        attempt = Attempt.objects.get(actor=row(caller))
        assert attempt.outcome == "failed"
        assert row(caller).token is None
        assert Task.objects.get(actor=row(caller)).status == "parked"


# After the commit


def test_a_wake_up_that_fails_fails_no_call(caplog):
    def fail(alarms: Any) -> None:
        raise ConnectionError("no broker")

    store.on_alarms.append(fail)
    try:
        Keeper.named("k").sync.plan([["queue", ["keep", "x"], {}]])
    finally:
        store.on_alarms.remove(fail)
    assert Task.objects.count() == 1
    assert "a wake-up was lost" in caplog.text


# A commit that is refused


def test_a_commit_that_is_refused_fails_the_call_and_frees_the_actor(agents_settings):
    agents_settings(MAX_PENDING_TASKS=2)
    stub = Keeper.named("k")
    three = [["schedule", [60, "keep", n], {}] for n in range(3)]
    with pytest.raises(LimitError):
        stub.sync.plan(three)
    assert not Task.objects.exists()
    assert row(stub).token is None
    stub.sync.plan(three[:2])
    assert Task.objects.count() == 2


def test_a_commit_that_is_refused_is_a_failed_attempt_of_its_task(agents_settings):
    agents_settings(MAX_PENDING_TASKS=2)
    stub = Keeper.named("k")
    stub.sync.tell("plan", [["schedule", [60, "keep", n], {}] for n in range(3)], max_retries=0)
    drain()
    attempt = Attempt.objects.get(method="plan")
    assert (attempt.outcome, attempt.error[:10]) == ("failed", "LimitError")
    assert [t.method for t in Task.objects.filter(lane="inbox", status="parked")] == ["plan"]
    assert messages(stub) == ["parked plan 1"]
    assert row(stub).token is None


# Processes


def test_a_forked_process_has_a_runtime_of_its_own():
    stub = Counter.named("f")
    assert stub.sync.add() == 1
    parents = get_runtime()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child
        try:
            for _ in range(20):
                stub.sync.add()
            answer = f"{Actor.objects.count()} {get_runtime() is parents}"
        except BaseException as error:
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    for _ in range(20):  # at the same time, each on connections of its own
        stub.sync.add()
    with os.fdopen(read) as pipe:
        assert pipe.read() == "1 False"
    os.waitpid(pid, 0)
    assert stub.sync.add() == 42
    assert get_runtime() is parents


@pytest.mark.postgres
def test_the_store_of_a_forked_process_talks_on_a_connection_of_its_own():
    """A thread of the parent has used the store before, and forks: its connection stays the parent's."""

    def session() -> int:
        statements = store.get_store().sql
        assert isinstance(statements, PostgresStatements)
        return statements._ask("SELECT pg_backend_pid()", convert=lambda rows: int(rows[0][0]))

    parents = session()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child
        try:
            own = session()
            answer = f"{own == parents} {own == session()}"
        except BaseException as error:
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "False True"
    os.waitpid(pid, 0)
    assert session() == parents
