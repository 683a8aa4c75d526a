"""Log lines about what fails again and again: said once, then counted."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("agents.sockets")

PAUSE = 10.0  # seconds between two lines about the same


class Complaints:
    """An outage of the database or of Redis would otherwise be a line for each socket and each try."""

    def __init__(self, *, traces: bool = False) -> None:
        """``traces``: each line comes with a traceback, for what should not fail at all."""
        self._traces = traces
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str, error: BaseException | None = None) -> None:
        """Logs ``what`` and the error, unless that was done a moment ago."""
        now = time.monotonic()
        at, count = self._said.get(what, (-PAUSE, 0))
        if now - at < PAUSE:
            self._said[what] = (at, count + 1)
            return
        self._said[what] = (now, 0)
        again = f" ({count} times more since the last line)" if count else ""
        why = "" if error is None else f": {type(error).__name__}: {error}"
        logger.warning("%s%s%s", what, why, again, exc_info=error if self._traces else None)
