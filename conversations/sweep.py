"""What texts need from time to time besides being sent. Every dispatcher's sweep comes by here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from conversations import asking, inbox, receipts

logger = logging.getLogger(__name__)

#: A process does this no more often, however often it is woken. Seconds.
INTERVAL = 1.0

_last = 0.0


def sweep(*, now: bool = False) -> None:
    """Texts that nobody could take, reports without their text, providers to be asked. Raises nothing.

    At most once each INTERVAL in a process, unless ``now`` is true. Any number of processes may do it.
    """
    global _last
    moment = time.monotonic()
    if not now and moment - _last < INTERVAL:
        return
    _last = moment
    steps: list[Callable[[], int]] = [inbox.retry_waiting, receipts.settle, asking.ask_due]
    for step in steps:
        try:
            step()
        except Exception:
            logger.exception("%s failed; the next sweep tries again", step.__qualname__)
