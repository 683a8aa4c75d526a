"""Celery's pool of threads as workers of this project have it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.concurrency import get_implementation
from celery.worker import state
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from scheduler.dispatchers.pool import TaskPool
from tests.waiting import wait_until


@pytest.fixture
def rounds() -> Iterator[list[int]]:
    """How often a worker's loop went round, which has nothing to read and no timer for an hour."""
    before, hub = get_event_loop(), Hub()
    set_event_loop(hub)
    seen: list[int] = []
    hub.on_tick.add(lambda: seen.append(len(seen)))
    hub.call_later(3600, lambda: None)
    idle, other = socket.socketpair()
    hub.add_reader(idle, lambda: None)
    stopped = threading.Event()

    def run() -> None:
        loop = hub.loop
        while not stopped.is_set():
            next(loop)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: seen)
    yield seen
    stopped.set()
    hub.call_soon(lambda: None)
    thread.join(30)
    set_event_loop(before)
    hub.close()
    idle.close()
    other.close()


@pytest.mark.parametrize(("busy", "wakes"), [(1, True), (0, False)])
def test_the_last_free_thread_wakes_the_workers_loop_and_no_other_does(
    rounds: list[int], monkeypatch: pytest.MonkeyPatch, busy: int, wakes: bool
) -> None:
    # One of two threads is busy with another message, or none is.
    monkeypatch.setattr(state, "reserved_requests", {*range(busy)})
    pool: Any = TaskPool(2)
    try:
        before = len(rounds)
        pool.on_apply(lambda: None, (), {}, lambda result: None).get()
        pool.executor.shutdown()  # what is called at its end has been called
        if wakes:
            wait_until(lambda: len(rounds) > before)
        else:
            assert len(rounds) == before
    finally:
        pool.executor.shutdown()


def test_workers_have_it(settings: Any) -> None:
    assert get_implementation(settings.CELERY_WORKER_POOL) is TaskPool
