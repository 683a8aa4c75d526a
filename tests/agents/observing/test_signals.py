"""What happens to turns and tasks, as receivers of signals hear of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.dispatch import Signal

from agents.exceptions import ActorMethodTimeoutError
from agents.observing import announcing
from agents.observing.announcing import announce, flush
from agents.signals import lease_lost, turn_committed, turn_failed
from agents.testing import drain
from scheduler.signals import task_parked
from tests.agents.cast import Counter, Waiter, Writer, outside, said
from tests.agents.observing.conftest import Counted
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Listen = Callable[[Signal], list[dict[str, Any]]]


def test_a_turn_that_wrote_is_announced_once_it_is_committed(heard: Listen):
    came = heard(turn_committed)
    Counter.named("a").sync.add(1)
    Counter.named("a").sync.nothing()
    assert flush(30)
    (told,) = came
    assert told["sender"] is Counter
    assert (told["kind"], told["name"], told["method"], told["origin"]) == (
        "test-counter",
        "a",
        "add",
        "call",
    )
    assert (told["version"], told["signal"]) == (1, turn_committed)
    assert told["seconds"] > 0 <= told["waited"]


def test_a_turn_that_failed_is_announced_with_its_error(heard: Listen):
    came = heard(turn_failed)
    with pytest.raises(RuntimeError):
        Writer.named("w").sync.everything(failures=9)
    assert flush(30)
    (told,) = came
    assert (told["method"], told["outcome"], str(told["error"])) == ("everything", "failed", "after all that")


def test_a_task_that_parks_is_announced(heard: Listen):
    parked, failed = heard(task_parked), heard(turn_failed)
    Writer.named("w").sync.tell("give_up", key="k")
    drain(Writer.named("w"))
    assert flush(30)
    (told,) = parked
    assert (told["sender"], told["method"], told["lane"], told["attempt"]) == (Writer, "give_up", "inbox", 1)
    assert told["error"] == "GiveUp: no use"
    assert [turn["method"] for turn in failed] == ["give_up"]


def test_a_lost_lease_is_announced(heard: Listen, agents_settings: Any):
    agents_settings(CALL_BUDGET=0.5, BUDGET_GRACE=0.5, STOP_POLL=0.02)
    came = heard(lease_lost)
    with pytest.raises(ActorMethodTimeoutError):
        Waiter.named("w").sync.stubborn("enough")
    said.add("enough")
    wait_until(lambda: "stubborn to the end" in outside)
    assert flush(30)
    assert [(told["method"], told["reason"]) for told in came] == [("stubborn", "overdue")]


def test_a_receiver_that_raises_harms_neither_the_turn_nor_other_receivers(
    heard: Listen, caplog: pytest.LogCaptureFixture, counted: Counted
):
    def breaks(sender: Any, **facts: Any) -> None:
        raise RuntimeError("a bad receiver")

    turn_committed.connect(breaks)
    try:
        came = heard(turn_committed)
        assert Counter.named("a").sync.add(1) == 1
        assert flush(30)
    finally:
        turn_committed.disconnect(breaks)
    assert len(came) == 1
    assert "a bad receiver" in caplog.text
    assert counted("agents_signal_errors_total") == 1


def test_a_receiver_that_hangs_holds_up_no_turn_and_what_does_not_fit_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, counted: Counted
):
    monkeypatch.setattr(announcing, "WAITING", 3)
    goes_on = threading.Event()

    def hangs(sender: Any, **facts: Any) -> None:
        goes_on.wait(30)

    turn_committed.connect(hangs)
    try:
        for n in range(8):
            assert Counter.named("a").sync.add(1) == n + 1
        assert counted("agents_signals_dropped_total") in (4, 5)  # one may not have been taken out yet
        assert caplog.text.count("new ones are dropped") == 1
    finally:
        goes_on.set()
        assert flush(30)
        turn_committed.disconnect(hangs)


def test_receivers_may_use_the_database(heard: Listen):
    seen: list[int] = []

    def looks(sender: Any, actor_id: int, **facts: Any) -> None:
        from agents.models import Actor

        seen.append(Actor.objects.get(pk=actor_id).version)

    turn_committed.connect(looks)
    try:
        Counter.named("a").sync.add(1)
        assert flush(30)
    finally:
        turn_committed.disconnect(looks)
    assert seen == [1]
    assert not connection.in_atomic_block


def test_what_is_announced_without_receivers_starts_nothing():
    nobody = Signal()
    before = threading.active_count()
    announce(nobody, None, fact=1)
    assert threading.active_count() == before


def test_what_a_transaction_announces_is_heard_when_it_commits(heard: Listen):
    from django.db import transaction

    signal = Signal()
    came = heard(signal)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        announcing.announce_on_commit(signal, None, n=1)
        1 / 0
    with transaction.atomic():
        announcing.announce_on_commit(signal, None, n=2)
        assert flush(30)
        assert came == []
    assert flush(30)
    assert [told["n"] for told in came] == [2]
