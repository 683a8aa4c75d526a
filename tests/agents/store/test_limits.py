"""How many tasks may be pending: at the edge, and one past it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from agents.exceptions import InboxFullError, LimitError
from agents.store.requests import Committed
from agents.writes import Table, Writes
from scheduler.models import Task
from tests.agents.store.stage import Stage, in_threads

TASK_KEY = Table("scheduler.Task", ("actor_id", "task_id"))


@pytest.fixture
def limits(settings: Any) -> Any:
    def set_to(**values: int) -> None:
        settings.AGENTS = {**settings.AGENTS, **values}

    set_to(MAX_PENDING_TASKS=3, MAX_INBOX=4)
    return set_to


def pending(actor: int) -> int:
    return Task.objects.filter(actor_id=actor, status="pending").count()


def test_an_inbox_takes_as_many_as_it_may_and_not_one_more(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.told(actor, *range(4))
    with pytest.raises(InboxFullError) as refused:
        stage.told(actor, 5)
    assert (refused.value.limit, refused.value.maximum, refused.value.actual) == ("MAX_INBOX", 4, 5)
    assert pending(actor) == 4


def test_a_tell_of_many_is_accepted_whole_or_not_at_all(stage: Stage, limits: Any) -> None:
    actor, other = stage.actor(), stage.actor()
    stage.told(actor, 1, 2)
    tells = [stage.tell(other), *(stage.tell(actor) for _ in range(3))]
    with pytest.raises(InboxFullError):
        stage.store.tell(tells)
    assert (pending(actor), pending(other)) == (2, 0)
    stage.store.tell(tells[:3])
    assert (pending(actor), pending(other)) == (4, 1)


def test_a_key_that_was_seen_needs_no_room(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.told(actor, 1, key="a")
    stage.told(actor, *range(3))
    assert stage.store.tell([stage.tell(actor, key="a")])[0] == [False]
    with pytest.raises(InboxFullError):
        stage.store.tell([stage.tell(actor, key="b")])
    # What was refused was not seen either.
    stage.run_all(actor)
    assert stage.store.tell([stage.tell(actor, key="b")])[0] == [True]


def test_parked_tasks_and_hooks_take_no_room(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.told(actor, *range(4))
    Task.objects.filter(actor_id=actor, payload=0).update(status="parked")
    stage.store.realarm(actor)
    stage.told(actor, 5)
    stage.told(actor, *range(9), lane="hook")
    stage.turn(actor, timers=[{} for _ in range(3)])


def test_an_actor_schedules_as_many_tasks_as_it_may_and_not_one_more(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{} for _ in range(3)])
    error = stage.refused(stage.dirty(stage.claim(actor), timers=[{}]))
    assert isinstance(error, LimitError) and not isinstance(error, InboxFullError)
    assert (error.limit, error.maximum, error.actual) == ("MAX_PENDING_TASKS", 3, 4)
    assert pending(actor) == 3


def test_a_full_actor_may_replace_a_task(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{"task_id": "a"}, {"task_id": "b"}, {"task_id": "c"}])
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": actor, "task_id": "a"})
    stage.turn(actor, writes=writes, timers=[{"task_id": "a"}])
    assert pending(actor) == 3


def test_a_full_actor_s_task_may_schedule_its_successor(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    stage.turn(actor, timers=[{} for _ in range(3)])
    claimed = stage.drain(actor)
    assert claimed.task is not None
    stage.commit(stage.dirty(claimed, task=stage.done(claimed.task), timers=[{}]))
    assert pending(actor) == 3


def test_full_actors_in_a_batch_are_judged_each_by_what_it_does(stage: Stage, limits: Any) -> None:
    replacing, growing, fine = stage.actor(), stage.actor(), stage.actor()
    for actor in (replacing, growing):
        stage.turn(actor, timers=[{"task_id": f"{n}"} for n in range(3)])
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": replacing, "task_id": "0"})
    results = stage.store.commit(
        [
            stage.dirty(stage.claim(replacing), writes=writes, timers=[{"task_id": "0"}]),
            stage.dirty(stage.claim(growing), timers=[{}]),
            stage.dirty(stage.claim(fine), timers=[{}]),
        ]
    )
    assert [type(r) for r in results] == [Committed, LimitError, Committed]


def test_a_batch_that_fills_an_inbox_together_is_accepted_up_to_the_limit(stage: Stage, limits: Any) -> None:
    target = stage.actor()
    batch = [stage.dirty(stage.claim(stage.actor()), tells=[stage.tell(target)]) for _ in range(6)]
    results = stage.store.commit(batch)
    assert [type(r) for r in results] == [Committed] * 4 + [InboxFullError] * 2
    assert pending(target) == 4


def test_an_actor_that_is_over_a_lowered_limit_can_be_drained(stage: Stage, limits: Any) -> None:
    """Or it would be stuck for ever: every end of a task is a commit that touches its tasks."""
    actor = stage.actor()
    stage.told(actor, *range(4))
    stage.turn(actor, timers=[{"task_id": f"t{n}"} for n in range(3)])
    limits(MAX_PENDING_TASKS=1, MAX_INBOX=1)
    with pytest.raises(InboxFullError):
        stage.told(actor, 5)
    error = stage.refused(stage.dirty(claimed := stage.claim(actor), timers=[{}]))
    assert isinstance(error, LimitError)
    stage.commit(stage.release(claimed))
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": actor, "task_id": "t0"})
    stage.turn(actor, writes=writes, timers=[{"task_id": "t0"}])
    assert len(stage.run_all(actor)) == 7


def test_tells_from_many_threads_stop_at_the_limit(stage: Stage, limits: Any) -> None:
    actor = stage.actor()
    address = stage.address(actor)

    def tell() -> bool:
        try:
            return stage.store.tell([stage.tell_to(*address)])[0][0]
        except InboxFullError:
            return False

    assert sorted(in_threads(*[tell] * 7)) == [False] * 3 + [True] * 4
    assert pending(actor) == 4


def test_a_full_inbox_refuses_a_tell_inside_a_transaction_and_leaves_that_in_order(
    stage: Stage, limits: Any
) -> None:
    actor, other = stage.actor(), stage.actor()
    stage.told(actor, *range(4))
    with transaction.atomic():
        stage.store.tell_here([stage.tell(other)])
        with pytest.raises(InboxFullError), transaction.atomic():
            stage.store.tell_here([stage.tell(actor)])
    assert (pending(actor), pending(other)) == (4, 1)
