"""Celery's pool of threads, whose worker hears that one is free again."""

from __future__ import annotations

from typing import Any

from celery.concurrency import thread
from celery.worker import state
from kombu.asynchronous import get_event_loop


class TaskPool(thread.TaskPool):
    """A worker that takes no message in advance (``worker_disable_prefetch``) stops reading while all its
    threads are busy. It looks whether one is free each time that its loop goes round; but what would make it
    go round is a message, or a timer up to a second later. So a thread that ends says so."""

    def on_apply(self, *args: Any, **options: Any) -> Any:
        result = super().on_apply(*args, **options)
        result.f.add_done_callback(self._is_free)
        return result

    def _is_free(self, _: Any) -> None:
        if len(state.reserved_requests) < self.limit - 1:
            return  # it was not the last one
        if (loop := get_event_loop()) is not None:
            loop.call_soon(_nothing)


def _nothing() -> None:
    pass
