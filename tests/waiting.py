"""Waiting for what another thread or process does: a condition with a deadline, never a bare sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from django.db import connection

T = TypeVar("T")

POLL_INTERVAL = 0.02  # seconds


def wait_until(fn: Callable[[], T], timeout: float = 30.0, message: str = "") -> T:
    """Calls ``fn`` until it returns something true, and returns that.

    ``timeout`` is in seconds. Raises AssertionError, with ``message`` and what ``fn`` returned last, when
    the time is up. What ``fn`` raises is raised at once.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = fn()
        if value:
            return value
        if time.monotonic() >= deadline:
            what = message or getattr(fn, "__qualname__", repr(fn))
            raise AssertionError(f"waited {timeout} s in vain for {what}; the last answer was {value!r}")
        time.sleep(POLL_INTERVAL)


async def there_is(path: str) -> None:
    """Returns when there is such a file: with that a test lets what runs in another process go on."""
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


def somebody_waits_for_a_lock() -> bool:
    """Whether a session of this PostgreSQL database does now: also where the caller is in a transaction,
    which else sees the sessions as they were when it first looked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])
