"""What can break: each of these is one fault, done to a running site and mended again.

A fault is a context manager: broken when its block begins, mended when it has ended. ``seconds`` is how long
it lasts: a pause in the block, or, where it says so, inside.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg

from tests.faults.absence import HEAP, owed, passes, waiting, wrong_runs
from tests.faults.stand import Stand, fake_clock
from tests.servers import Worker
from tests.waiting import wait_until

Break = Callable[[Stand], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    name: str
    does: Break
    #: How long it lasts: in the suite, and in the long form.
    seconds: float
    long: float
    #: Only in the long form.
    only_long: bool = False
    #: Why this machine cannot do it; empty if it can.
    cannot: Callable[[Stand], str] = lambda stand: ""


@contextlib.contextmanager
def nothing(stand: Stand) -> Iterator[None]:
    yield


# Our own processes


@contextlib.contextmanager
def deploy_of_a_worker(stand: Stand) -> Iterator[None]:
    assert stand.one.terminate() == 0, stand.one.said()[-3000:]
    yield
    stand.one.start()


@contextlib.contextmanager
def deploy_of_the_site(stand: Stand) -> Iterator[None]:
    assert stand.web.terminate() == 0, stand.web.said()[-3000:]
    yield
    stand.web.start()


@contextlib.contextmanager
def worker_killed(stand: Stand) -> Iterator[None]:
    stand.two.kill()
    yield
    stand.two.start()


@contextlib.contextmanager
def both_workers_killed(stand: Stand) -> Iterator[None]:
    for worker in (stand.one, stand.two):
        worker.kill()
    yield
    for worker in (stand.one, stand.two):
        worker.start()


@contextlib.contextmanager
def worker_frozen(stand: Stand) -> Iterator[None]:
    """For longer than a lease: when it goes on, others have its actors."""
    stand.one.freeze()
    yield
    stand.one.thaw()


@contextlib.contextmanager
def site_killed(stand: Stand) -> Iterator[None]:
    stand.web.kill()
    yield
    stand.web.start()


@contextlib.contextmanager
def site_frozen(stand: Stand) -> Iterator[None]:
    stand.web.freeze()
    yield
    stand.web.thaw()


@contextlib.contextmanager
def beat_dead(stand: Stand) -> Iterator[None]:
    """Workers sweep by themselves meanwhile, and nothing gathers in the broker."""
    stand.beat.kill()
    yield
    assert (left := waiting(stand)) <= HEAP, f"{left} messages wait in the broker"
    beat_returns(stand)


@contextlib.contextmanager
def nobody_for_an_hour(stand: Stand) -> Iterator[None]:
    """Beat and both workers are away while texts come in. Then what was due has run once, in its order; a
    recurring task has, too."""
    stand.beat.kill()
    for worker in (stand.one, stand.two):
        assert worker.terminate() == 0, worker.said()[-3000:]
    yield
    passes(stand)
    tasks = owed(stand)
    assert any(task.lane == "inbox" for task in tasks), "no text came in"
    assert any(task.lane == "timer" for task in tasks), "no timer was due"
    for worker in (stand.one, stand.two):
        worker.start()
    beat_returns(stand)
    wait_until(lambda: not owed(stand), 120, "everything that was owed to have run")
    assert (left := waiting(stand)) <= HEAP, f"{left} messages wait in the broker"
    assert not (wrong := wrong_runs(stand, tasks)), wrong[:5]


def beat_returns(stand: Stand) -> None:
    began = stand.ask("SELECT now()")
    stand.beat.start()
    seen = "SELECT seen_at > %s FROM scheduler_pulse WHERE name = 'beat'"
    wait_until(lambda: stand.ask(seen, began), 60, "a sweep that beat has sent")


@contextlib.contextmanager
def two_beats(stand: Stand) -> Iterator[None]:
    stand.second_beat.start()
    yield
    stand.second_beat.kill()


def clock_off(process: Callable[[Stand], Worker], seconds: int) -> Break:
    @contextlib.contextmanager
    def fault(stand: Stand) -> Iterator[None]:
        one, right = process(stand), process(stand).env
        one.terminate()
        one.env = {**right, **fake_clock(seconds)}
        said = len(one.said())
        one.start().ready()
        try:
            yield
            assert says(one.said()[said:], seconds), f"the clock of {one.name} was right"
        finally:
            one.terminate()
            one.env = right
            one.start()

    return fault


def says(log: str, seconds: int) -> bool:
    """Whether the last line with a moment is by a clock that is about so wrong."""
    moments = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", log, re.MULTILINE)
    wrong = dt.datetime.fromisoformat(moments[-1]) - dt.datetime.now(dt.UTC).replace(tzinfo=None)
    return (wrong.total_seconds() > 0) == (seconds > 0) and abs(wrong.total_seconds()) > abs(seconds) / 2


def needs_libfaketime(stand: Stand) -> str:
    return "" if fake_clock(1) else "libfaketime is not installed"


# PostgreSQL

END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = 'agents' AND application_name <> 'tests'"""


def restarted(how: signal.Signals) -> Break:
    @contextlib.contextmanager
    def fault(stand: Stand) -> Iterator[None]:
        stand.postgres.stop(how)
        yield
        stand.postgres.start()

    return fault


@contextlib.contextmanager
def sessions_ended(stand: Stand) -> Iterator[None]:
    """Again and again, at moments of chance."""
    with repeatedly(0.4, stand.postgres.end_sessions):
        yield


@contextlib.contextmanager
def database_refuses(stand: Stand) -> Iterator[None]:
    """It answers, and lets nobody in."""
    with stand.postgres.connect("postgres") as admin:
        admin.execute("ALTER DATABASE agents ALLOW_CONNECTIONS false")
        admin.execute(END_SESSIONS)
        try:
            yield
        finally:
            admin.execute("ALTER DATABASE agents ALLOW_CONNECTIONS true")


@contextlib.contextmanager
def database_slow(stand: Stand) -> Iterator[None]:
    """One backend after another stands still for a moment, perhaps with locks in its hands."""

    def stop_one() -> None:
        with stand.postgres.connect() as admin:
            pids = [
                pid
                for (pid,) in admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = 'agents' AND backend_type ="
                    " 'client backend' AND application_name <> 'tests'"
                ).fetchall()
            ]
        if not pids:
            return
        pid = random.choice(pids)
        send(pid, signal.SIGSTOP)
        try:
            time.sleep(random.uniform(0.2, 1.5))
        finally:
            send(pid, signal.SIGCONT)

    with repeatedly(0.05, stop_one):
        yield


@contextlib.contextmanager
def table_locked(stand: Stand) -> Iterator[None]:
    """As a migration does that had to wait, and got its lock at last."""
    with psycopg.connect(stand.postgres.url, application_name="tests") as migration:
        migration.execute("LOCK TABLE agents_actor, scheduler_task IN ACCESS EXCLUSIVE MODE")
        yield
        migration.rollback()


@contextlib.contextmanager
def database_frozen(stand: Stand) -> Iterator[None]:
    """Every process of it stands still; connections stay open and nobody answers."""
    stand.postgres.freeze()
    try:
        yield
    finally:
        stand.postgres.thaw()


@contextlib.contextmanager
def pool_exhausted(stand: Stand) -> Iterator[None]:
    """Others hold every session that PgBouncer may have."""
    with contextlib.ExitStack() as stack:
        for _ in range(stand.pgbouncer.pool_size):
            session = stack.enter_context(psycopg.connect(stand.pgbouncer.url, prepare_threshold=None))
            session.execute("SELECT 1")  # and the transaction stays open
        yield


@contextlib.contextmanager
def sessions_exhausted(stand: Stand) -> Iterator[None]:
    """Others hold every session that PostgreSQL may have; whoever needs a new one is refused."""
    with stand.postgres.connect() as admin, contextlib.ExitStack() as held:

        def take() -> None:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    held.enter_context(
                        psycopg.connect(stand.postgres.url, application_name="tests", connect_timeout=3)
                    )

        take()
        admin.execute(END_SESSIONS)
        with repeatedly(0.05, take):  # whoever comes first has what became free
            yield


@contextlib.contextmanager
def disk_full(stand: Stand) -> Iterator[None]:
    """The file system of the database has not a byte to spare (tmpfs, its limit set to what is in it).

    PostgreSQL raises 53100 by itself whenever a table or an index needs another page. Its log of
    transactions lies elsewhere: without room for that it ends, which is the fault "crashed".
    """
    refused = "No space left on device"
    before = stand.postgres.said().count(refused)
    stand.disk.fill()
    try:
        with repeatedly(0.1, stand.disk.fill):
            yield
    finally:
        stand.disk.empty()
    assert stand.postgres.said().count(refused) > before, "PostgreSQL found room"


def needs_mount(stand: Stand) -> str:
    return "" if stand.disk.mounted else "this process may not mount a file system"


# Redis


@contextlib.contextmanager
def redis_flushed(stand: Stand) -> Iterator[None]:
    def flush() -> None:
        with stand.redis.client() as client:
            client.flushall()

    with repeatedly(0.2, flush):
        yield


@contextlib.contextmanager
def redis_gone(stand: Stand) -> Iterator[None]:
    stand.redis.kill()
    yield
    stand.redis.start()


@contextlib.contextmanager
def redis_frozen(stand: Stand) -> Iterator[None]:
    stand.redis.freeze()
    yield
    stand.redis.thaw()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def repeatedly(pause: float, work: Callable[[], object]) -> Iterator[None]:
    """Does it at once and again after each pause, in a thread, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            # What is being broken may refuse to be broken further.
            with contextlib.suppress(psycopg.Error, OSError):
                work()
            over.wait(pause)

    thread = threading.Thread(target=run, name="fault", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


FAULTS: tuple[Fault, ...] = (
    Fault("none", nothing, 2.0, 10.0, only_long=True),
    Fault("worker: SIGTERM (deploy)", deploy_of_a_worker, 0.5, 2.0),
    Fault("worker: SIGKILL", worker_killed, 0.5, 2.0),
    Fault("both workers: SIGKILL", both_workers_killed, 0.5, 10.0, only_long=True),
    Fault("worker: frozen beyond its lease", worker_frozen, 6.0, 25.0),
    Fault("worker: clock 30 s ahead", clock_off(lambda stand: stand.two, 30), 3.0, 20.0,
          cannot=needs_libfaketime),
    Fault("worker: clock 30 s behind", clock_off(lambda stand: stand.one, -30), 3.0, 20.0,
          only_long=True, cannot=needs_libfaketime),
    Fault("site: SIGTERM (deploy)", deploy_of_the_site, 0.2, 1.0, only_long=True),
    Fault("site: SIGKILL", site_killed, 0.5, 2.0),
    Fault("site: frozen", site_frozen, 5.0, 20.0, only_long=True),
    Fault("database: restarted", restarted(signal.SIGINT), 1.0, 5.0),
    Fault("database: crashed", restarted(signal.SIGQUIT), 0.5, 5.0),
    Fault("database: gone", restarted(signal.SIGINT), 5.0, 30.0, only_long=True),
    Fault("database: refuses connections", database_refuses, 3.0, 20.0),
    Fault("database: ends sessions", sessions_ended, 3.0, 10.0, only_long=True),
    Fault("database: slow", database_slow, 4.0, 20.0),
    Fault("database: a table is locked", table_locked, 3.0, 10.0),
    Fault("database: frozen", database_frozen, 3.0, 20.0, only_long=True),
    Fault("database: full disk", disk_full, 3.0, 20.0, cannot=needs_mount),
    Fault("connections: the pool is exhausted", pool_exhausted, 3.0, 15.0),
    Fault("connections: the server's are exhausted", sessions_exhausted, 3.0, 15.0, only_long=True),
    Fault("Redis: flushed", redis_flushed, 2.0, 10.0),
    Fault("Redis: restarted", redis_gone, 0.2, 1.0),
    Fault("Redis: gone", redis_gone, 5.0, 60.0),
    Fault("Redis: frozen", redis_frozen, 3.0, 30.0, only_long=True),
    Fault("beat: dead", beat_dead, 7.0, 60.0),
    Fault("beat: two at once", two_beats, 4.0, 20.0),
    Fault("beat and workers: away for an hour", nobody_for_an_hour, 8.0, 20.0, only_long=True),
)  # fmt: skip
