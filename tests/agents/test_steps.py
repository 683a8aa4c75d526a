"""``step``: a function that runs once for all attempts of a task."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from agents import Agent
from agents.exceptions import CodecError, StepWriteError
from agents.models import Actor, TurnRecord
from agents.testing import advance, drain
from scheduler import verbs
from scheduler.models import Step, Task
from tests.agents.cast import Counter, outside
from tests.agents.facts import attempts, messages, row, tasks

pytestmark = pytest.mark.django_db(transaction=True)

EVERYTHING = {
    "when": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
    "price": Decimal("1.10"),
    "tags": {"a", "b"},
    "pair": (1, 2),
    "raw": b"\x00\xff",
    1: "one",
}


def pay(what: Any) -> Any:
    outside.append(what)
    return what


async def pay_later(what: Any) -> Any:
    await asyncio.sleep(0)
    return pay(what)


class Stepper(Agent):
    kind = "test-stepper"

    async def pays(self, failures: int) -> None:
        reply = await self.step("reply", pay_later, "model")
        outside.append("attempt")
        if outside.count("attempt") <= failures:
            raise ValueError("after the call")
        await self.messages.add("assistant", reply)

    async def pays_three_times(self) -> None:
        got = [await self.step("same", pay, n) for n in (1, 2, 3)]
        outside.append("attempt")
        if outside.count("attempt") < 2:
            raise ValueError("again")
        await self.messages.add("user", str(got))

    async def pays_for_everything(self) -> None:
        got = await self.step("all", pay, EVERYTHING)
        assert got is not EVERYTHING
        outside.append({k: type(v) for k, v in got.items()})
        if outside.count(outside[-1]) < 2:
            raise ValueError("again")

    async def pays_in_parallel(self) -> None:
        got = await asyncio.gather(*(self.step(f"p{n}", pay_later, n) for n in range(5)))
        outside.append("attempt")
        if outside.count("attempt") < 2:
            raise ValueError("again")
        await self.messages.add("user", str(got))

    async def fails_inside(self, failures: int) -> None:
        await self.step("first", pay, "first")
        await self.step("second", self._fails, failures)

    async def _fails(self, failures: int) -> None:
        outside.append("second")
        if outside.count("second") <= failures:
            raise ConnectionError("no answer")

    async def writes_inside(self, how: str) -> None:
        await self.messages.add("user", "outside of the step")
        await self.step("writes", self._write, how)

    async def _write(self, how: str) -> None:
        match how:
            case "message":
                await self.messages.add("user", "inside")
            case "state":
                await self.set_state({"inside": True})
            case "timer":
                await self.queue("pays", 0)
            case "text":
                await self.sms.send("x", to="+15550001111", sender="+15550009999")
            case "event":
                await self.broadcast("x")
            case "at_commit":
                self.at_commit(print)
            case "tell":
                await Counter.named("c").tell("add")
            case "checkpoint":
                await self.checkpoint()
            case "step":
                await self.step("nested", pay, 1)
            case "tell from a thread":
                await asyncio.to_thread(Counter.named("c").sync.tell, "add")

    async def calls_inside(self) -> int:
        return await self.step("call", Counter.named("c").add, 2)

    async def reads_inside(self) -> int:
        await self.messages.add("user", "one")
        return await self.step("read", self._count)

    async def _count(self) -> int:
        return await self.messages.count()

    async def returns_inside(self, size: int) -> int:
        return len(await self.step("large", lambda: "x" * size))

    async def returns_badly(self) -> None:
        await self.step("bad", lambda: object())

    async def steps_of_a_sync_function_with_the_orm(self) -> int:
        return await self.step("orm", Actor.objects.count)

    async def every_hour(self) -> None:
        await self.messages.add("user", str(await self.step("s", pay, len(outside))))

    async def keeps_between(self, failures: int) -> None:
        await self.messages.add("user", "one")
        await self.step("s", pay, "s")
        await self.messages.add("user", "two")
        outside.append("attempt")
        if outside.count("attempt") <= failures:
            raise ValueError("again")

    async def steps_and_sleeps(self) -> None:
        await self.step("s", pay, "s")
        outside.append("attempt")
        await asyncio.sleep(30)


def test_a_step_runs_once_over_three_attempts():
    stub = Stepper.named("s")
    stub.sync.tell("pays", 2)
    for seconds in (0, 2, 3):
        advance(seconds)
        drain()
    assert attempts(stub) == ["failed", "failed", "done"]
    assert outside == ["model", "attempt", "attempt", "attempt"]
    assert messages(stub) == ["model"]


def test_uses_of_one_name_are_told_apart_by_their_order():
    stub = Stepper.named("s")
    stub.sync.tell("pays_three_times")
    drain()
    assert list(Step.objects.order_by("use").values_list("name", "use", "result")) == [
        ("same", 1, 1),
        ("same", 2, 2),
        ("same", 3, 3),
    ]
    advance(2)
    drain()
    assert outside == [1, 2, 3, "attempt", "attempt"]
    assert messages(stub) == ["[1, 2, 3]"]


def test_a_result_comes_back_as_the_type_that_went_in_also_the_first_time():
    stub = Stepper.named("s")
    stub.sync.tell("pays_for_everything")
    drain()
    advance(2)
    drain()
    types = {k: type(v) for k, v in EVERYTHING.items()}
    assert outside == [EVERYTHING, types, types]
    assert attempts(stub) == ["failed", "done"]


def test_steps_may_run_side_by_side():
    stub = Stepper.named("s")
    stub.sync.tell("pays_in_parallel")
    drain()
    advance(2)
    drain()
    assert sorted(outside[:5]) == [0, 1, 2, 3, 4]
    assert outside[5:] == ["attempt", "attempt"]
    assert messages(stub) == ["[0, 1, 2, 3, 4]"]


def test_what_a_step_raises_is_not_remembered():
    stub = Stepper.named("s")
    stub.sync.tell("fails_inside", 2)
    for seconds in (0, 2, 3):
        advance(seconds)
        drain()
    assert outside == ["first", "second", "second", "second"]
    assert attempts(stub)[-1] == "done"


@pytest.mark.parametrize(
    "how",
    ["message", "state", "timer", "text", "event", "at_commit", "tell", "checkpoint", "step",
     "tell from a thread"],
)  # fmt: skip
def test_a_write_inside_a_step_raises(how):
    stub = Stepper.named("s")
    with pytest.raises(StepWriteError):
        stub.sync.writes_inside(how)
    assert messages(stub) == []
    stub.sync.tell("writes_inside", how, max_retries=0)
    drain()
    assert tasks(stub) == [("writes_inside", "parked", 1)]
    assert not Step.objects.exists()


def test_a_step_may_call_another_actor_which_writes_as_ever():
    assert Stepper.named("s").sync.calls_inside() == 2
    assert Counter.named("c").sync.count() == 2


def test_a_step_may_read_what_its_turn_has_buffered():
    assert Stepper.named("s").sync.reads_inside() == 1


def test_saving_a_step_keeps_nothing_else_of_its_turn():
    stub = Stepper.named("s")
    stub.sync.tell("keeps_between", 1)
    drain()
    assert messages(stub) == []
    advance(2)
    drain()
    assert messages(stub) == ["one", "two"]
    assert outside == ["s", "attempt", "attempt"]
    outcomes = TurnRecord.objects.order_by("version").values_list("outcome", flat=True)
    assert list(outcomes) == ["step", "failed", "done"]


def test_results_are_gone_when_the_task_succeeds():
    stub = Stepper.named("s")
    stub.sync.tell("pays", 1)
    drain()
    assert Step.objects.count() == 1
    advance(2)
    drain()
    assert not Step.objects.exists()


def test_results_are_gone_when_the_task_is_replaced():
    class Replacer(Agent):
        kind = "test-replacer"

        async def set_up(self) -> None:
            await self.queue("pays", 1, id="p")

        async def pays(self, failures: int) -> None:
            await self.step("s", pay, "paid")
            outside.append("attempt")
            if outside.count("attempt") <= failures:
                raise ValueError("again")

    replacer = Replacer.named("r")
    replacer.sync.set_up()
    drain()
    assert Step.objects.count() == 1
    replacer.sync.set_up()
    assert not Step.objects.exists()
    drain()
    assert outside == ["paid", "attempt", "paid", "attempt"]


def test_results_are_gone_when_a_parked_task_is_replayed_afresh_but_not_while_it_is_parked():
    stub = Stepper.named("s")
    stub.sync.tell("pays", 1, max_retries=0)
    drain()
    assert tasks(stub) == [("pays", "parked", 1)]
    assert Step.objects.count() == 1
    verbs.replay(Task.objects.get())
    drain()
    assert outside == ["model", "attempt", "model", "attempt"]
    assert messages(stub) == ["model"]


def test_each_occurrence_of_a_recurring_task_has_steps_of_its_own():
    class Hourly(Agent):
        kind = "test-hourly"

        async def set_up(self) -> None:
            await self.every(3600, "tick", id="tick")

        async def tick(self) -> None:
            await self.messages.add("user", str(await self.step("s", pay, len(outside))))

    stub = Hourly.named("h")
    stub.sync.set_up()
    for _ in range(3):
        advance(3601)
        drain()
    assert messages(stub) == ["0", "1", "2"]
    assert not Step.objects.exists()


def test_an_attempt_that_a_shutdown_gave_back_keeps_its_steps_and_does_not_count(agents_settings):
    from agents import runtime
    from agents.runtime import get_runtime
    from scheduler.dispatchers import local
    from tests.waiting import wait_until

    agents_settings(BUDGET_GRACE=0.5)
    stub = Stepper.named("s")
    stub.sync.tell("steps_and_sleeps")
    local.start(sweeping=True)
    wait_until(lambda: "attempt" in outside)
    local.stop()
    runtime.shutdown(0)
    assert attempts(stub) == ["released"]
    assert tasks(stub) == [("steps_and_sleeps", "pending", 0)]
    assert Step.objects.count() == 1
    assert row(stub).token is None
    assert get_runtime().engine  # another

    stub.sync.tell("pays", 0)
    local.start()
    wait_until(lambda: outside.count("attempt") == 2)
    assert stub.sync.stop()
    wait_until(lambda: attempts(stub)[1:2] == ["stopped"])
    assert outside.count("s") == 1


def test_outside_of_tasks_nothing_is_saved():
    stub = Stepper.named("s")
    stub.sync.pays(0)
    assert not Step.objects.exists()
    assert messages(stub) == ["model"]


def test_a_step_of_a_synchronous_function_gives_its_connection_back():
    assert Stepper.named("s").sync.steps_of_a_sync_function_with_the_orm() == 1


def test_a_result_that_cannot_be_kept_fails_the_attempt(agents_settings):
    agents_settings(MAX_RESULT_BYTES=1000)
    stub = Stepper.named("s")
    with pytest.raises(CodecError):
        stub.sync.returns_badly()
    stub.sync.tell("returns_inside", 999, max_retries=0)
    drain()
    assert Task.objects.get().error.startswith("LimitError")
    assert not Step.objects.exists()
    stub.sync.tell("returns_inside", 998, max_retries=0)
    drain()
    assert attempts(stub) == ["failed", "done"]


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_steps_name_has_1_to_255_characters(name):
    class Namer(Agent):
        kind = "test-namer"

        async def step_named(self, name: str) -> None:
            await self.step(name, pay, 1)

    with pytest.raises(ValueError, match="255"):
        Namer.named("n").sync.step_named(name)
    Namer.named("n").sync.tell("step_named", "x" * 255)
    drain()
    assert attempts(Namer.named("n")) == ["done"]
