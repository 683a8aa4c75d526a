"""What a turn leaves in memory: nothing that would wait for the garbage collector, which comes seldom."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.agent import Agent
from agents.turn import Turn
from scheduler.dispatchers import local
from tests.agents.cast import Counter, Writer
from tests.agents.facts import attempts
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def alive() -> list[Any]:
    return [o for o in gc.get_objects() if isinstance(o, (Turn, Agent))]


@pytest.fixture
def is_empty() -> Iterator[Callable[[], bool]]:
    """Whether all is gone that the test has made, without a collection."""
    gc.collect()
    before = alive()  # what other tests keep
    known = {id(o) for o in before}
    gc.disable()
    yield lambda: all(id(o) in known for o in alive())
    gc.enable()


def test_a_call_leaves_no_turn_and_no_agent(is_empty: Any) -> None:
    for _ in range(5):
        Counter.named("a").sync.add(1)
    wait_until(is_empty)


def test_a_read_leaves_no_turn_and_no_agent(is_empty: Any) -> None:
    Counter.named("a").sync.add(1)
    for _ in range(5):
        Counter.named("a").sync.count()
    wait_until(is_empty)


def test_a_task_leaves_no_turn_and_no_agent(is_empty: Any) -> None:
    local.start(sweeping=False)
    stub = Writer.named("a")
    for _ in range(3):
        stub.sync.tell("everything", max_retries=0)
    wait_until(lambda: attempts(stub) == ["done"] * 3)
    wait_until(is_empty)
