"""Celery's consumer of the broker's messages, for a worker that outlives its broker."""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

logger = logging.getLogger("scheduler.dispatchers.consumer")


class Consumer(CeleryConsumer):
    """Connects anew also where the old connection cannot be closed.

    A channel of kombu's that is closed while messages of it are unacknowledged gives them back, over a
    connection that it may have to make for that, to an address which it has forgotten by then: an
    AttributeError, and the worker ended with it (once in 25 ends of a Redis under load). What was not given
    back are wake-ups: the sweep finds what they were for.
    """

    def on_connection_error_after_connected(self, exc: BaseException) -> Any:
        try:
            return super().on_connection_error_after_connected(exc)
        except AttributeError:
            logger.warning("a broken connection to the broker could not be closed", exc_info=True)
