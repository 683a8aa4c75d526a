from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agents.threads import OrmExecutor, blocking
from tests.waiting import wait_until


@contextmanager
def executor(threads: int) -> Iterator[OrmExecutor]:
    pool = OrmExecutor(threads, thread_name_prefix="test-threads")
    try:
        yield pool
    finally:
        pool.shutdown()


def wait_in_vain(pool: OrmExecutor, helpers: int) -> list[int]:
    """Each keeps a thread while the work that it waits for needs one."""
    together = threading.Barrier(helpers)

    def help(n: int) -> int:
        with blocking():
            together.wait(60)
            return pool.submit(lambda: n).result(20)

    return [work.result(30) for work in [pool.submit(help, n) for n in range(helpers)]]


@pytest.mark.parametrize("queued", [0, 1, 7])
def test_work_that_waits_for_work_of_the_same_pool_gets_a_thread_whatever_was_queued_before(queued):
    with executor(1) as pool:
        free = threading.Event()
        before = [pool.submit(free.wait, 20) for _ in range(queued + 1)]
        free.set()  # the only thread takes one after the other, and is never idle between them
        assert all(work.result(20) for work in before)
        assert wait_in_vain(pool, helpers=3) == [0, 1, 2]


def test_a_pool_whose_threads_are_idle_starts_no_more_of_them():
    with executor(8) as pool:
        for _ in range(20):
            pool.submit(int).result(20)
            wait_until(lambda: pool._busy == 0)
        assert len(pool._threads) == 1


def test_a_pool_has_no_more_threads_than_it_may_when_nothing_blocks():
    with executor(3) as pool:
        names = [pool.submit(lambda: threading.current_thread().name) for _ in range(50)]
        assert len({work.result(20) for work in names}) <= 3


def test_a_pool_is_no_larger_for_what_its_helpers_once_waited_for():
    with executor(2) as pool:
        assert wait_in_vain(pool, helpers=40) == list(range(40))
        lock = threading.Lock()
        running: list[int] = []
        most: list[int] = []

        def work(n: int) -> int:
            with lock:
                running.append(n)
                most.append(len(running))
            threading.Event().wait(0.01)
            with lock:
                running.remove(n)
            return n

        assert [w.result(30) for w in [pool.submit(work, n) for n in range(40)]] == list(range(40))
        assert max(most) <= 2


def test_helpers_that_have_waited_go_on_one_after_another_as_the_pool_allows():
    with executor(2) as pool:
        lock = threading.Lock()
        running: list[int] = []
        most: list[int] = []

        def help(n: int) -> int:
            with blocking(), blocking():  # the inner one changes nothing
                pool.submit(int).result(20)
            with lock:
                running.append(n)
                most.append(len(running))
            threading.Event().wait(0.01)
            with lock:
                running.remove(n)
            return n

        assert [w.result(30) for w in [pool.submit(help, n) for n in range(20)]] == list(range(20))
        assert max(most) <= 2
