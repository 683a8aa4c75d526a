"""``checkpoint``: what a turn did so far is kept, whatever comes after."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents import Agent, faults
from agents.exceptions import (
    ActorMethodTimeoutError,
    LimitError,
    ReadOnlyTurnError,
    TurnLostError,
)
from agents.models import Actor, Event, TurnRecord
from agents.runtime import get_runtime
from agents.testing import advance, drain
from conversations.models import Message, OutboundText
from scheduler.models import Task
from tests.agents.cast import Counter, outside
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def its_budget_ends() -> None:
    """The budget of the turn that runs is over now; returns when the body has been cancelled for it."""
    engine = get_runtime().engine
    (run,) = engine.runs
    engine.loop.call_soon_threadsafe(run.end, "timeout")
    wait_until(lambda: run.reason == "timeout")


class Saver(Agent):
    kind = "test-saver"

    async def two_parts(self, fail: bool = False) -> int:
        await self.messages.add("user", "first")
        await self.set_state({"part": 1})
        await self.schedule(60, "later", id="later")
        await self.sms.send("one", to="+15550001111", sender="+15550009999")
        await self.emit("note", 1)
        await self.checkpoint()
        await self.messages.add("user", "second")
        await self.set_state({"part": 2})
        await self.sms.send("two", to="+15550001111", sender="+15550009999")
        if fail:
            raise ValueError("in the second part")
        return await self.messages.count()

    async def task_in_two_parts(self, failures: int) -> None:
        outside.append("run")
        if await self.messages.count() == 0:  # a retry runs from the start: look at what was kept
            await self.messages.add("user", "first")
            await self.checkpoint()
        if len(outside) <= failures:
            raise ValueError("not yet")
        await self.messages.add("user", "second")

    async def later(self) -> None: ...

    async def meanwhile(self) -> None:
        """Writes while a checkpoint is on its way."""
        await self.messages.add("user", "before")
        await asyncio.gather(self.checkpoint(), self._write())
        raise ValueError("what came meanwhile is not kept")

    async def _write(self) -> None:
        await self.messages.add("user", "meanwhile")
        await self.set_state({"meanwhile": True})
        await self.emit("note", 2)
        await self.schedule(60, "later", id="meanwhile")
        await Counter.named("c").tell("add", 1)

    async def meanwhile_and_after(self) -> list[str]:
        await self.messages.add("user", "before")
        await asyncio.gather(self.checkpoint(), self._write())
        await self.checkpoint()
        await self.messages.add("user", "after")
        return [m.content for m in await self.messages.all()]

    async def look(self) -> list[object]:
        return [await self.get_state(), await self.messages.count()]

    async def checkpoint_and_sleep(self, seconds: float) -> None:
        await self.messages.add("user", "kept")
        await self.checkpoint()
        await self.messages.add("user", "not kept")
        await asyncio.sleep(seconds)

    async def nothing_to_keep(self) -> None:
        await self.checkpoint()

    async def refused(self) -> str:
        await self.messages.add("user", "first")
        for _ in range(3):
            await self.schedule(60, "later")
        try:
            await self.checkpoint()
        except LimitError:
            return "refused"
        return "kept"


def test_a_checkpoint_keeps_what_was_done_and_code_after_it_can_fail():
    stub = Saver.named("s")
    with pytest.raises(ValueError, match="in the second part"):
        stub.sync.two_parts(True)
    actor = row(stub)
    assert messages(stub) == ["first"]
    assert (actor.seq, actor.cursor, actor.state) == (1, 2, {"part": 1})
    assert [t.task_id for t in Task.objects.all()] == ["later"]
    assert [t.text for t in OutboundText.objects.all()] == ["one"]
    assert list(Event.objects.order_by("cursor").values_list("type", flat=True)) == ["message", "note"]
    assert actor.token is None


def test_a_turn_with_a_checkpoint_leaves_each_thing_once_and_a_record_for_each_commit():
    stub = Saver.named("s")
    assert stub.sync.two_parts() == 2
    assert messages(stub) == ["first", "second"]
    assert row(stub).state == {"part": 2}
    assert [t.text for t in OutboundText.objects.order_by("id")] == ["one", "two"]
    assert Task.objects.count() == 1
    records = TurnRecord.objects.order_by("version")
    assert [(r.version, r.outcome, r.first_seq, r.last_seq) for r in records] == [
        (1, "checkpoint", 1, 1),
        (2, "done", 2, 2),
    ]
    assert len({r.turn_id for r in records}) == 1
    assert [r.state_change for r in records] == [{"patch": {"part": 1}}, {"patch": {"part": 2}}]


def test_the_retry_of_a_task_runs_from_its_start_and_finds_what_was_kept():
    stub = Saver.named("s")
    stub.sync.tell("task_in_two_parts", 2)
    drain()
    assert messages(stub) == ["first"]
    advance(2)
    drain()
    advance(3)
    drain()
    assert messages(stub) == ["first", "second"]
    assert attempts(stub) == ["failed", "failed", "done"]


def test_what_is_written_while_a_checkpoint_is_on_its_way_belongs_to_the_next_commit():
    stub = Saver.named("s")
    with pytest.raises(ValueError, match="meanwhile"):
        stub.sync.meanwhile()
    assert messages(stub) == ["before"]
    assert row(stub).state is None
    assert not Task.objects.exists()
    assert stub.sync.look() == [{}, 1]


def test_and_is_there_once_it_has_committed():
    stub = Saver.named("s")
    assert stub.sync.meanwhile_and_after() == ["before", "meanwhile", "after"]
    assert messages(stub) == ["before", "meanwhile", "after"]
    assert row(stub).state == {"meanwhile": True}
    assert sorted(t.method for t in Task.objects.all()) == ["add", "later"]
    assert Event.objects.count() == 4
    assert list(Event.objects.order_by("cursor").values_list("cursor", flat=True)) == [1, 2, 3, 4]


def test_the_next_task_of_the_drain_sees_what_a_failed_one_had_kept_and_no_more():
    stub = Saver.named("s")
    stub.sync.tell("two_parts", True, max_retries=0)
    stub.sync.tell("task_in_two_parts", 0)
    drain()
    assert messages(stub) == ["first", "second"]
    assert row(stub).state == {"part": 1}
    assert [m.seq for m in Message.objects.order_by("seq")] == [1, 2]


def test_a_turn_that_times_out_behind_a_checkpoint_keeps_it_and_frees_the_actor(agents_settings):
    agents_settings(CALL_BUDGET=60.0)
    stub = Saver.named("s")
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(stub.sync.checkpoint_and_sleep, 60)
        wait_until(lambda: messages(stub) == ["kept"])
        its_budget_ends()
        with pytest.raises(ActorMethodTimeoutError):
            call.result()
    assert messages(stub) == ["kept"]
    assert row(stub).token is None


def test_a_turn_that_is_ended_while_its_checkpoint_is_on_its_way_frees_the_actor(agents_settings):
    """The checkpoint moves the fence: what ends the turn must know by how much."""
    agents_settings(CALL_BUDGET=60.0, BUDGET_GRACE=60.0)
    stub = Saver.named("s")
    slow = threading.Event()

    def wait() -> None:
        if not slow.is_set():
            slow.set()
            its_budget_ends()

    with faults.at("commit.begin", wait), pytest.raises(ActorMethodTimeoutError):
        stub.sync.checkpoint_and_sleep(0)
    assert slow.is_set()
    assert messages(stub) == ["kept"]
    assert row(stub).token is None
    assert stub.sync.look() == [{}, 1]


def test_a_task_that_is_ended_while_its_checkpoint_is_on_its_way_is_retried(agents_settings):
    agents_settings(TASK_BUDGET=60.0, BUDGET_GRACE=60.0)
    stub = Saver.named("s")
    stub.sync.tell("checkpoint_and_sleep", 0)
    slow = threading.Event()

    def wait() -> None:
        if not slow.is_set():
            slow.set()
            its_budget_ends()

    with faults.at("commit.begin", wait):
        drain()
    assert attempts(stub) == ["failed"]
    assert tasks(stub) == [("checkpoint_and_sleep", "pending", 1)]
    assert messages(stub) == ["kept"]
    assert row(stub).token is None


def test_a_checkpoint_of_nothing_is_nothing():
    stub = Saver.named("s")
    stub.sync.nothing_to_keep()
    assert row(stub).version == 0
    assert not TurnRecord.objects.exists()


def test_a_checkpoint_that_is_refused_raises_and_keeps_nothing(agents_settings):
    agents_settings(MAX_PENDING_TASKS=2)
    stub = Saver.named("s")
    with pytest.raises(LimitError):  # the end of the turn is refused for the same reason
        stub.sync.refused()
    assert messages(stub) == []
    assert not Task.objects.exists()
    assert row(stub).token is None


def test_a_checkpoint_of_a_turn_that_lost_its_lease_raises_and_writes_nothing():
    class Robbed(Agent):
        kind = "test-robbed"

        async def robbed(self) -> None:
            await self.messages.add("user", "lost")
            await Actor.objects.filter(name="r").aupdate(token=None)  # as if another had taken over
            try:
                await self.checkpoint()
            except TurnLostError:
                outside.append("noticed")
                raise

    with pytest.raises(TurnLostError):
        Robbed.named("r").sync.robbed()
    assert outside == ["noticed"]
    assert messages(Robbed.named("r")) == []


def test_a_read_cannot_checkpoint():
    from agents import reads

    class ReadingSaver(Agent):
        kind = "test-reading-saver"

        @reads
        async def read(self) -> None:
            await self.checkpoint()

    with pytest.raises(ReadOnlyTurnError):
        ReadingSaver.named("r").sync.read()
