"""How long a failed task waits before its next attempt.

1, 2, 4, 8 ... seconds, never more than five minutes. Each wait is lengthened by up to a tenth at random, so
that tasks that failed together (a provider was down) don't all come back in the same instant. It is never
shortened, and the first is at most 1.1 s: the task of a worker that died runs again quickly.
"""

from __future__ import annotations

import random
from collections.abc import Callable

CAP = 300.0  # seconds, jitter included
JITTER = 0.1  # of the wait

#: Gives a float from 0 up to, not including, 1: ``random.random``, or a test's own.
Random = Callable[[], float]

_LONGEST = CAP / (1 + JITTER)
# From this attempt on the longest wait holds; no power is computed that nothing could hold.
_CAPPED_FROM = 10


def delay(attempt: int, rng: Random = random.random) -> float:
    """Seconds to wait after the failure of delivery number ``attempt`` (1 for the first)."""
    base = _LONGEST if attempt >= _CAPPED_FROM else min(2.0 ** (max(attempt, 1) - 1), _LONGEST)
    return base * (1 + JITTER * rng())
