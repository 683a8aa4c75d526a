"""Bodies of turns as tasks of the loop that all turns of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agents.exceptions import ActorMethodError

T = TypeVar("T")


async def contained(body: Coroutine[Any, Any, T], over: Callable[[], None] = lambda: None) -> T:
    """What would end a process ends only the method that raised it: other turns share the loop.

    ``over`` is called in the body's last step, so a round of the loop before callbacks of its task would be.
    It isn't for a task that is cancelled before it has begun.
    """
    try:
        return await body
    except (SystemExit, KeyboardInterrupt) as error:
        raise ActorMethodError(f"the method raised {error!r}") from error
    finally:
        over()


def result_of(task: asyncio.Task[T], method: str) -> T:
    """A finished body's result. Nobody cancelled it from outside; it may have done so itself."""
    if task.cancelled():
        raise ActorMethodError(f"{method} cancelled itself")
    return task.result()


def swallow(task: asyncio.Task[Any]) -> None:
    """For a body that nobody waits for any more: what it raises is nobody's business."""
    if not task.cancelled():
        task.exception()
