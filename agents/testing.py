"""For tests of agents, the application's and our own: real turns, a clock that moves, faults on demand.

Turns run on the runtime's own thread, so tests need real transactions: pytest's
``@pytest.mark.django_db(transaction=True)`` or Django's ``TransactionTestCase``. Time moves with
``advance``; what is due runs with ``drain``::

    SupportAgent.named("+15550001111").sync.tell("receive", {"text": "hello"})
    drain()
    advance(86_400)
    drain()
"""

from __future__ import annotations

import contextvars
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db.models import Max

from agents import clock, faults, kinds
from agents.engine import Engine
from agents.runtime import get_runtime, shutdown

if TYPE_CHECKING:
    from agents.stub import Stub


__all__ = ["CrashError", "advance", "crash_at", "drain", "on_runtime", "reset_clock", "shutdown"]


#: Less than the shortest pause of a retry.
AT_ONCE = dt.timedelta(seconds=0.5)


class CrashError(Exception):
    """What ``crash_at`` raises at its point, as if the process had died there."""


def drain(*stubs: Stub, limit: int = 10_000) -> int:
    """Runs due tasks (of these actors, or of all) until nothing is due; returns how many ran.

    What they make due at once runs as well. The pause of a retry is not over before the next ``drain``,
    however long this one takes.

    Raises AssertionError when ``limit`` tasks have run and there is still more: something spins.
    """
    addresses = {(stub.kind, stub.name) for stub in stubs}
    return on_runtime(lambda engine: _drain(engine, addresses, limit))


def advance(seconds: float | dt.timedelta) -> None:
    """Moves this process's clock forward. Nothing runs by itself: call ``drain`` afterwards."""
    clock.shift(seconds if isinstance(seconds, dt.timedelta) else dt.timedelta(seconds=seconds))


def reset_clock() -> None:
    """Back to the database's own time, at the end of a test that moved it."""
    clock.reset()


def on_runtime(work: Callable[[Engine], Any]) -> Any:
    """Runs ``await work(engine)`` on the loop where turns run, and returns its result."""
    return get_runtime().start(work, contextvars.Context()).result()


@contextmanager
def crash_at(point: str, times: int = 1) -> Iterator[None]:
    """While the block runs, the store raises CrashError at its point, ``times`` times (see agents/faults.py).

    Points before a commit: ``claim.leased``, ``commit.locked``, ``commit.written``, ``commit.commit``;
    after one: ``claim.committed``, ``commit.committed``.
    """
    left = times

    def crash() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            raise CrashError(point)

    with faults.at(point, crash):
        yield


def _at_once(began: dt.datetime) -> dt.datetime:
    """Until when is due what a drain found, or what its tasks have made due at once."""
    from scheduler.models import Attempt

    ended = Attempt.objects.filter(ended_at__gt=began).aggregate(last=Max("ended_at"))["last"]
    return max(began, ended or began) + AT_ONCE


async def _drain(engine: Engine, addresses: set[tuple[str, str]], limit: int) -> int:
    from scheduler.drain import drain as drain_actor

    ran = 0
    began = await engine.in_store(engine.store.sql.now)
    # An overridden now() may be far ahead of the database's clock: every alarm is looked at.
    ever = dt.timedelta(days=365_000)
    while True:
        alarms = await engine.in_store(engine.store.sweep, kinds.installed(), 10_000, ever)
        until = await engine.in_store(_at_once, began)
        due = [
            a for a in alarms if a.at is not None and a.at <= (kinds.get(a.kind).clock() or min(a.now, until))
        ]
        mine = [a for a in due if not addresses or (a.kind, a.name) in addresses]
        before = ran
        for alarm in mine:
            ran += (await drain_actor(engine, alarm.actor_id, alarm.kind)).ran
            if ran > limit:
                raise AssertionError(f"more than {limit} tasks ran and there is still more")
        if ran == before:
            return ran
