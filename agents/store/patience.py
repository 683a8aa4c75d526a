"""How long what the database interrupts is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from agents.exceptions import DatabaseUnavailableError
from agents.store.statements import ConnectionLost, Delayed, Interrupted

T = TypeVar("T")

# For all but commits. A database that restarts is back before this.
PATIENCE = 15.0  # seconds
# A commit has more to lose: its turn may have waited a long time for a model. It is refused all the same once
# its lease has ended, which nobody renews while its row is locked or the database away.
COMMIT_PATIENCE = 60.0  # seconds
LONGEST_PAUSE = 1.0  # seconds


class Tries:
    """Counts the tries of one operation, with a pause between two that grows to a second."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._count = 0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._deadline

    def next_pause(self) -> float:
        self._count += 1
        longest = min(LONGEST_PAUSE, 0.002 * 2 ** min(self._count, 16))
        return longest * random.uniform(0.5, 1.5)

    def pause(self) -> None:
        time.sleep(self.next_pause())


def retrying(work: Callable[[], T], *, wait: bool = True) -> T:
    """Runs work that may simply be done again; raises DatabaseUnavailableError when patience ends.

    Without ``wait`` it raises Delayed at once where it is interrupted.
    """
    tries = Tries(PATIENCE)
    while True:
        try:
            return work()
        except (Interrupted, ConnectionLost) as error:
            if isinstance(error, Interrupted) and not wait:
                raise Delayed(str(error)) from error
            if tries.over:
                raise DatabaseUnavailableError(f"the database does not answer: {error}") from error
            tries.pause()
