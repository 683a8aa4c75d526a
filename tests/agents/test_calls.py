"""Calls: one turn at a time, atomic, and what a caller gets."""

import asyncio
import threading

import pytest

from agents.models import Actor, TurnRecord
from agents.testing import drain
from conversations.models import Message, OutboundText
from scheduler.models import Attempt, Task
from tests.agents.cast import Counter, Writer, outside

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh():
    outside.clear()


def test_a_call_returns_what_the_method_returns_and_commits_the_state():
    stub = Counter.named("a")
    assert stub.sync.add(2) == 2
    assert stub.sync.add() == 3
    assert stub.sync.count() == 3
    actor = Actor.objects.get(kind="test-counter", name="a")
    assert (actor.state, actor.version, actor.token) == ({"count": 3}, 2, None)
    assert TurnRecord.objects.filter(actor=actor).count() == 2


def test_turns_of_one_actor_run_one_at_a_time_from_many_threads():
    stub = Counter.named("b")
    threads = [threading.Thread(target=lambda: [stub.sync.add() for _ in range(10)]) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert stub.sync.count() == 80


async def test_a_call_can_be_awaited_on_any_event_loop():
    stub = Counter.named("c")
    assert await asyncio.gather(*(stub.add() for _ in range(5))) == [1, 2, 3, 4, 5]


def test_a_turn_that_raises_leaves_nothing_and_its_retry_leaves_one_of_each():
    stub = Writer.named("w")
    stub.sync.tell("everything", 1)
    drain()
    actor = Actor.objects.get(name="w")
    assert not Message.objects.exists()
    assert not OutboundText.objects.exists()
    assert actor.state is None
    task = Task.objects.get()
    assert (task.attempts, task.status) == (1, "pending")
    Task.objects.update(due_at=actor.created_at)
    from agents.store import lock_actor

    with lock_actor(actor.pk):
        pass
    drain()
    assert [m.content for m in Message.objects.all()] == ["hello"]
    assert OutboundText.objects.count() == 1
    assert [t.task_id for t in Task.objects.all()] == ["later"]
    actor.refresh_from_db()
    assert actor.state == {"wrote": True}
    assert [a.outcome for a in Attempt.objects.order_by("id")] == ["failed", "done"]
