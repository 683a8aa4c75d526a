"""The threads in which views read and write: a few for all requests of a process, each with a connection."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from agents import conf
from agents.threads import OrmExecutor

T = TypeVar("T")

_executor: OrmExecutor | None = None
_lock = threading.Lock()


async def in_thread(fn: Callable[..., T], *args: object) -> T:
    """Runs synchronous code that may use the ORM; a connection is held for as long as it runs, no longer."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), fn, *args)


def _threads() -> OrmExecutor:
    global _executor
    with _lock:
        if _executor is None:
            _executor = OrmExecutor(conf.get("API_THREADS"), thread_name_prefix="agents-api")
        return _executor


def _after_fork() -> None:
    global _executor, _lock
    _executor, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
