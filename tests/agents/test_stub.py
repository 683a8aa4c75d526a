"""Stubs: what can be called, with what, from where."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import re
import uuid
from decimal import Decimal
from typing import Any

import pytest

from agents import Agent, conf, reads
from agents.exceptions import (
    ActorBusyError,
    ActorPrivateMethodError,
    ActorUnknownMethodError,
    CodecError,
    InvalidNameError,
    LimitError,
)
from agents.models import Actor
from agents.stub import Stub
from agents.testing import drain
from tests.agents.cast import Counter, Keeper, Waiter, hear, outside, said
from tests.agents.facts import messages
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


# Addresses


def test_asking_for_an_actor_creates_nothing():
    stub = Counter.named("c")
    assert (stub.kind, stub.name) == ("test-counter", "c")
    assert stub == Counter.named("c") != Counter.named("d")
    assert len({stub, Counter.named("c"), Keeper.named("c")}) == 2
    assert repr(stub) == "<test-counter/c>"
    assert not Actor.objects.exists()


@pytest.mark.parametrize(
    "name", ["+15550001111", "a b", "José", "日本", "user@example.org", "a/b?c#d", "x" * 255]
)
def test_names_are_any_non_empty_text_up_to_255_characters(name):
    assert Counter.named(name).sync.add() == 1
    assert Actor.objects.get().name == name
    assert Counter.named(name).sync.count() == 1


@pytest.mark.parametrize("name", ["", "x" * 256, None, 5])
def test_and_nothing_else(name):
    with pytest.raises(InvalidNameError):
        Counter.named(name)


def test_unique_gives_a_fresh_name_each_time():
    assert Counter.unique() != Counter.unique()
    assert Counter.unique().sync.add() == 1


# Methods


@pytest.mark.parametrize(
    "method",
    ["_private", "_begin", "set_state", "get_state", "messages", "checkpoint", "step", "on_create", "on_task",
     "on_parked", "now", "named", "unique", "kind", "name", "alarm", "tell_all_"[:4], "initial_state"],
)  # fmt: skip
def test_private_base_and_hook_methods_are_not_callable(method):
    stub = Counter.named("c")
    with pytest.raises(ActorPrivateMethodError):
        asyncio.run(stub.call(method))
    with pytest.raises(ActorPrivateMethodError):
        stub.sync.call(method)
    assert not Actor.objects.exists()


@pytest.mark.parametrize("method", ["no_such", "helper", "initial_count", ""])
def test_unknown_methods_and_plain_functions_are_not_callable(method):
    with pytest.raises(ActorUnknownMethodError):
        Counter.named("c").sync.call(method)
    assert not Actor.objects.exists()


def test_the_error_comes_when_the_method_is_looked_up():
    with pytest.raises(ActorUnknownMethodError):
        Counter.named("c").no_such
    with pytest.raises(ActorPrivateMethodError):
        Counter.named("c").sync._private


class Base(Agent):
    kind = "test-base"
    abstract = True

    async def inherited(self) -> str:
        return "from the base"

    @staticmethod
    async def static() -> None: ...

    @classmethod
    async def of_the_class(cls) -> None: ...

    @property
    def shown(self) -> str:
        return "x"

    async def generates(self) -> Any:
        yield 1


class Derived(Base):
    kind = "test-derived"

    async def own(self, a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]


def test_methods_of_a_base_of_ones_own_are_callable():
    assert Derived.named("d").sync.inherited() == "from the base"
    for method in ("static", "of_the_class", "shown", "generates"):
        with pytest.raises(ActorUnknownMethodError):
            Derived.named("d").sync.call(method)


def test_arguments_are_bound_before_the_actor_is_touched():
    stub = Derived.named("d")
    assert stub.sync.own(1, 5, 6, c=7, d=8) == [1, 5, [6], 7, {"d": 8}]
    for args, kwargs in [((), {}), ((), {"a": 1})]:
        with pytest.raises(TypeError, match=r"Derived\.own"):
            stub.sync.own(*args, **kwargs)
    with pytest.raises(TypeError, match=r"Counter\.add"):
        Counter.named("c").sync.add(1, 2)
    assert not Actor.objects.filter(kind="test-counter").exists()


def test_only_exposed_methods_may_be_called_from_outside():
    stub = Counter.named("c")
    assert asyncio.run(stub.call("count", from_outside=True)) == 0
    assert stub.sync.call("count", from_outside=True) == 0
    with pytest.raises(ActorPrivateMethodError):
        stub.sync.call("add", from_outside=True)


# Values

VALUES = [
    None, True, 0, 2**80, -1.5, "text", "", [], {}, [1, [2]], {"a": {"b": None}}, {1: "a", (1, 2): "b"},
    dt.datetime(2026, 11, 30, 18, 4, 5, 6, tzinfo=dt.UTC), dt.date(2026, 2, 28), dt.time(1, 2),
    dt.timedelta(days=1), Decimal("1.10"), uuid.UUID(int=5), b"\x00\xff", {1, 2}, (1, "a"),
    re.compile("a+", re.I), math.inf,
    {"$type": "date", "value": "x"}, "café 😋",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_each_value_comes_back_as_the_type_that_went_in(value):
    result = Counter.named("c").sync.echo(value)
    assert result == value
    assert type(result) is type(value)


def test_a_value_is_copied_on_its_way():
    given = {"list": [1]}
    result = Counter.named("c").sync.echo(given)
    assert result == given
    assert result is not given
    assert result["list"] is not given["list"]


def test_what_cannot_cross_is_refused_with_its_path_before_the_actor_is_touched():
    circle: list[Any] = []
    circle.append(circle)
    for bad in (object(), {"items": [1, {"price": object()}]}, circle, lambda: 1):
        with pytest.raises(CodecError):
            Counter.named("c").sync.echo(bad)
    with pytest.raises(CodecError) as caught:
        Counter.named("c").sync.echo({"items": [1, {"price": object()}]})
    assert "items[1].price" in caught.value.path
    assert not Actor.objects.exists()


def test_arguments_may_be_as_large_as_their_limit_and_no_larger(agents_settings):
    agents_settings(MAX_ARGUMENT_BYTES=100)
    stub = Counter.named("c")
    around = len('[[""],{}]')
    assert len(stub.sync.echo("x" * (100 - around))) == 100 - around
    with pytest.raises(LimitError) as caught:
        stub.sync.echo("x" * (101 - around))
    assert (caught.value.limit, caught.value.maximum, caught.value.actual) == ("MAX_ARGUMENT_BYTES", 100, 101)


def test_text_that_no_database_holds_is_replaced_on_every_way_in():
    stub = Keeper.named("k")
    stub.sync.keep("a\x00b\ud800c")
    assert messages(stub) == ["a\ufffdb\ufffdc"]
    assert Counter.named("c").sync.echo({"k\x00": ["v\x00"]}) == {"k\ufffd": ["v\ufffd"]}


# Patience


async def test_patience_is_the_callers_own_and_no_part_of_the_budget():
    class Patient(Waiter):
        kind = "test-patient"
        call_budget = 0.5

    stub = Patient.named("w")
    # A task, which may run for longer.
    await stub.tell("nap", {"seconds": 60, "until": "enough"})
    first = asyncio.create_task(asyncio.to_thread(drain))
    await asyncio.to_thread(wait_until, lambda: outside)
    with pytest.raises(ActorBusyError):
        await stub.call("sleep", (0,), patience=0.2)
    with pytest.raises(ActorBusyError):
        await stub.call("sleep", (0,), patience=0)
    # Its own budget begins when it has the actor.
    second = asyncio.create_task(stub.sleep(0, "second"))
    await asyncio.sleep(0.8)
    assert not second.done()
    said.add("enough")
    assert await asyncio.gather(first, second) == [1, "second"]


async def test_a_read_takes_no_patience():
    class Thinker(Agent):
        kind = "test-thinker"

        async def think(self) -> None:
            outside.append("thinking")
            await hear("enough", 60)

        @reads
        async def look(self) -> str:
            return "seen"

    stub = Thinker.named("t")
    thinking = asyncio.create_task(stub.think())
    await asyncio.to_thread(wait_until, lambda: outside)
    assert await stub.call("look", patience=0) == "seen"
    assert not thinking.done()
    said.add("enough")
    await thinking


def test_the_public_name_of_stubs_is_theirs():
    assert isinstance(Counter.named("c"), Stub)
    assert conf.get("PATIENCE") == 30.0
