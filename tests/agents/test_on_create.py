"""``on_create``: once, inside the actor's first turn, before its method."""

from __future__ import annotations

import datetime as dt
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.utils import timezone

from agents.models import Actor
from agents.testing import advance, drain
from conversations.models import Stream
from scheduler.models import Task
from tests.agents.cast import Newborn, outside
from tests.agents.facts import attempts, messages, row

pytestmark = pytest.mark.django_db(transaction=True)


def timers() -> list[str]:
    return list(Task.objects.filter(lane="timer").values_list("task_id", flat=True))


def test_it_runs_once_before_the_first_method_and_its_writes_are_part_of_that_turn():
    stub = Newborn.named("n")
    assert stub.sync.greet() == 2
    assert stub.sync.greet() == 3
    assert messages(stub) == ["created", "hello", "hello"]
    assert outside == ["created"]
    assert timers() == ["hourly"]
    assert row(stub).started


def test_it_runs_again_if_the_first_turn_failed():
    stub = Newborn.named("n")
    with pytest.raises(ValueError, match="not yet"):
        stub.sync.greet(fail=True)
    assert messages(stub) == []
    assert not row(stub).started
    stub.sync.greet()
    assert messages(stub) == ["created", "hello"]
    assert outside == ["created", "created"]


def test_it_runs_again_if_the_first_turn_was_a_task_that_failed():
    """The record of the failure is a commit, but not of what on_create did."""
    stub = Newborn.named("n")
    stub.sync.tell("greet_as_told", 1)
    drain()
    assert attempts(stub) == ["failed"]
    assert (messages(stub), timers(), row(stub).started) == ([], [], False)
    advance(2)
    drain()
    assert messages(stub) == ["created", "told"]
    assert timers() == ["hourly"]


def test_it_runs_in_the_next_task_of_the_same_drain_if_the_first_failed():
    stub = Newborn.named("n")
    stub.sync.tell("greet_as_told", 1, max_retries=0)
    stub.sync.tell("greet_as_told", 1)
    drain()
    assert attempts(stub) == ["failed", "done"]
    assert messages(stub) == ["created", "told"]
    assert outside == ["created", "told", "created", "told"]


def test_it_runs_in_the_turn_that_mends_the_stream_of_a_first_turn_that_died():
    stub = Newborn.named("n")
    past = timezone.now() - dt.timedelta(minutes=5)
    dead: dict[str, Any] = {"token": uuid.uuid4(), "turn_id": uuid.uuid4(), "lease_expires_at": past}
    actor = Actor.objects.create(kind="test-newborn", name="n", turn_started_at=past, **dead)
    Stream.objects.create(
        actor=actor, uid="s", turn_id=dead["turn_id"], number=1, take=1, chunks=0, role="assistant",
        written_at=past,
    )  # fmt: skip
    assert stub.sync.greet() == 2
    assert not Stream.objects.exists()
    assert messages(stub) == ["created", "hello"]
    assert row(stub).started
    stub.sync.greet()
    assert outside == ["created"]


def test_it_runs_once_however_many_come_first():
    stub = Newborn.named("n")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: stub.sync.greet(), range(8)))
    assert messages(stub) == ["created", *["hello"] * 8]
    assert timers() == ["hourly"]


def test_a_read_creates_no_actor_and_an_actor_that_was_only_told_is_not_created_yet():
    stub = Newborn.named("n")
    assert stub.sync.peek() == 0
    assert not Actor.objects.exists()
    stub.sync.tell("greet_as_told", 0)
    assert stub.sync.peek() == 0
    assert outside == []
    drain()
    assert stub.sync.peek() == 2
    assert outside == ["created", "told"]


def test_a_turn_that_only_ran_on_create_is_committed():
    from agents import Agent

    class Bare(Agent):
        kind = "test-bare"

        async def on_create(self) -> None:
            outside.append("created")

        async def nothing(self) -> None: ...

    stub = Bare.named("b")
    stub.sync.nothing()
    stub.sync.nothing()
    assert outside == ["created"]
    assert (row(stub).version, row(stub).started) == (1, True)
