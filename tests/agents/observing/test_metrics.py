"""Turns as Prometheus counts them."""

from __future__ import annotations

import socket
import threading
import urllib.request
from typing import Any

import pytest
from prometheus_client import REGISTRY

from agents.exceptions import ActorBusyError, ActorDeadlockError, ActorMethodTimeoutError
from agents.observing import port
from agents.testing import drain
from tests.agents.cast import Caller, Counter, Waiter, Writer, outside, said
from tests.agents.observing.conftest import Counted
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_turns_are_counted_by_kind_origin_and_outcome(counted: Counted):
    Counter.named("a").sync.add(1)
    Counter.named("a").sync.nothing()
    Counter.named("a").sync.count()
    with pytest.raises(RuntimeError):
        Writer.named("w").sync.everything(failures=9)
    assert counted("agents_turns_total", kind="test-counter", origin="call", outcome="done") == 2
    assert counted("agents_turns_total", kind="test-counter", origin="read", outcome="done") == 1
    assert counted("agents_turns_total", kind="test-writer", origin="call", outcome="failed") == 1
    assert counted("agents_turn_run_seconds_count", kind="test-counter", origin="call") == 2
    assert counted("agents_turn_wait_seconds_count", kind="test-counter", origin="call") == 2
    assert counted("agents_store_requests_total", verb="claim") >= 3
    assert counted("agents_store_batch_seconds_count", verb="commit") >= 1


def test_how_long_a_turn_runs_is_from_its_claim_to_its_end(counted: Counted):
    Waiter.named("w").sync.sleep(0.3)
    assert counted("agents_turn_run_seconds_sum", kind="test-waiter", origin="call") >= 0.3
    assert counted("agents_turn_run_seconds_bucket", kind="test-waiter", origin="call", le="0.25") == 0
    assert counted("agents_turn_wait_seconds_sum", kind="test-waiter", origin="call") > 0


def test_tasks_are_counted_with_their_lateness_and_what_becomes_of_them(counted: Counted):
    stub = Writer.named("w")
    stub.sync.tell("give_up")
    stub.sync.tell("fails", max_retries=3)
    drain(stub)
    assert counted("agents_task_lateness_seconds_count", kind="test-writer", lane="inbox") == 2
    assert counted("agents_task_lateness_seconds_count", kind="test-writer", lane="hook") == 1
    assert counted("agents_task_failures_total", kind="test-writer", then="park") == 1
    assert counted("agents_task_failures_total", kind="test-writer", then="retry") == 1
    assert counted("agents_turns_total", kind="test-writer", origin="task", outcome="failed") == 2
    assert counted("agents_turns_total", kind="test-writer", origin="task", outcome="done") == 1


def test_calls_whose_turn_never_begins_are_counted_by_the_code_of_their_error(counted: Counted):
    with pytest.raises(ActorDeadlockError):
        Caller.named("a").sync.call_back("a")
    assert counted("agents_turns_refused_total", kind="test-caller", code=ActorDeadlockError.code) == 1
    assert counted("agents_turns_total", kind="test-caller", origin="call", outcome="failed") == 1

    first = threading.Thread(target=Waiter.named("w").sync.sleep, args=(60, "slept", "", "enough"))
    first.start()
    wait_until(lambda: outside)
    with pytest.raises(ActorBusyError):
        Waiter.named("w").sync.call("sleep", (0.0,), patience=0.0)
    said.add("enough")
    first.join()
    assert counted("agents_turns_refused_total", kind="test-waiter", code=ActorBusyError.code) == 1


def test_a_turn_past_its_budget_is_a_timeout(counted: Counted, agents_settings: Any):
    agents_settings(CALL_BUDGET=0.05)
    with pytest.raises(ActorMethodTimeoutError):
        Waiter.named("w").sync.sleep(30)
    assert counted("agents_turns_total", kind="test-waiter", origin="call", outcome="timeout") == 1
    assert counted("agents_lease_losses_total", kind="test-waiter", reason="overdue") == 0


def test_a_lease_that_is_taken_away_is_counted(counted: Counted, agents_settings: Any):
    agents_settings(CALL_BUDGET=0.5, BUDGET_GRACE=0.5, STOP_POLL=0.02)
    with pytest.raises(ActorMethodTimeoutError):
        Waiter.named("w").sync.stubborn("enough")
    said.add("enough")
    wait_until(lambda: "stubborn to the end" in outside)
    assert counted("agents_lease_losses_total", kind="test-waiter", reason="overdue") == 1


def test_without_metrics_nothing_is_counted(counted: Counted, agents_settings: Any):
    agents_settings(METRICS=False)
    Counter.named("a").sync.add(1)
    Counter.named("a").sync.count()
    Writer.named("w").sync.tell("give_up")
    drain(Writer.named("w"))
    grown = [
        sample.name
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name.startswith("agents_") and counted(sample.name, **sample.labels)
    ]
    assert grown == []


def test_no_label_names_an_actor(counted: Counted):
    stub = Writer.named("+15550001111")
    stub.sync.tell("give_up")
    drain(stub)
    labels = {v for m in REGISTRY.collect() for s in m.samples for v in s.labels.values()}
    assert not {label for label in labels if "1555" in label}


def test_a_process_shows_its_metrics_on_the_first_port_that_is_free(agents_settings: Any):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        agents_settings(METRICS_PORTS=f"{first}-{first + 20}")
        mine = port.serve()
        try:
            assert mine is not None and mine > first
            assert port.serve() is None  # once
            with urllib.request.urlopen(f"http://127.0.0.1:{mine}/metrics", timeout=10) as answer:
                assert b"agents_turns_total" in answer.read()
        finally:
            port.close()


def test_without_a_free_port_a_process_works_on_and_says_so(
    agents_settings: Any, caplog: pytest.LogCaptureFixture
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agents_settings(METRICS_PORTS=str(taken.getsockname()[1]))
        assert port.serve() is None
    assert "no free port" in caplog.text


@pytest.mark.parametrize("text", ["0", "65536", "9110-9101", "9101-", "http", "9101, 9102", "-1"])
def test_what_is_no_range_of_ports_is_refused(text: str):
    with pytest.raises(ValueError, match="port"):
        port.ports(text)
    from agents.checks import RULES

    assert not RULES["METRICS_PORTS"][1](text)


def test_ranges_of_ports():
    assert list(port.ports("")) == []
    assert list(port.ports("9101")) == [9101]
    assert list(port.ports("9101-9103")) == [9101, 9102, 9103]
