"""Named points, mostly of the store, at which tests break something. In production nobody listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_handlers: dict[str, Callable[[], None]] = {}


def point(name: str) -> None:
    """Runs the handler that a test set for this point, if any."""
    if _handlers:
        handler = _handlers.get(name)
        if handler is not None:
            handler()


@contextmanager
def at(name: str, handler: Callable[[], None]) -> Iterator[None]:
    """While the block runs, ``handler()`` is called (in the store's thread) at every pass of ``name``."""
    _handlers[name] = handler
    try:
        yield
    finally:
        _handlers.pop(name, None)
