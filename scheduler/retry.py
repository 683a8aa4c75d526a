"""What becomes of a task whose attempt failed: another attempt, or the parking place."""

from __future__ import annotations

import math
import random
import traceback
from dataclasses import dataclass

from agents import codec
from agents.exceptions import GiveUp, Retry
from scheduler import backoff

#: The longest pause that ``Retry(after=...)`` may ask for; more is taken as this. Seconds.
MAX_PAUSE = 366 * 86_400.0
#: What is kept of an error beside its traceback. Characters.
REASON_MAX_LENGTH = 500
#: What is kept of a traceback, of every attempt: its beginning and its end. Characters.
TRACEBACK_MAX_LENGTH = 20_000

LOST = "the process or the lease that ran it was lost"


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows a failed attempt: parked (kept, shown, replayable), or again ``after`` seconds."""

    parks: bool
    after: float  # seconds; 0 for a task that parks
    reason: str  # one line, for the task's row


def decide(
    error: BaseException | None, attempts: int, max_retries: int, rng: backoff.Random = random.random
) -> Decision:
    """Applies the retry rule.

    ``error`` is what the method raised; None when the attempt was lost with its process. ``attempts`` counts
    the deliveries begun since the last success, this one included: with ``max_retries=5`` a task is
    delivered six times, then parked. ``GiveUp`` parks at once; ``Retry(after=...)`` sets the pause and counts
    like any other failure. An ``after`` below zero is zero, one beyond MAX_PAUSE is MAX_PAUSE, and one that
    is no number leaves the pause to the backoff.
    """
    reason = LOST if error is None else describe(error)
    if isinstance(error, GiveUp) or attempts > max_retries:
        return Decision(True, 0.0, reason)
    after = _pause(error.after) if isinstance(error, Retry) else None
    return Decision(False, backoff.delay(attempts, rng) if after is None else after, reason)


def describe(error: BaseException) -> str:
    """An error in one line: its class and the first line of what it says."""
    name = type(error).__name__
    try:
        said = str(error).strip()
    except Exception:  # an exception class of the application may fail to print itself
        said = ""
    first = said.splitlines()[0] if said else ""
    line = f"{name}: {first}" if first else name
    # What cannot be stored as text is replaced, as everywhere.
    line = "".join("\ufffd" if c == "\x00" or "\ud800" <= c <= "\udfff" else c for c in line)
    return line if len(line) <= REASON_MAX_LENGTH else line[: REASON_MAX_LENGTH - 1] + "…"


def trace(error: BaseException) -> str:
    """An error's traceback, with what was in its way. Of a long one the middle is left out."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # an exception class of the application may fail to print itself
        text = describe(error)
    left_out = len(text) - TRACEBACK_MAX_LENGTH
    if left_out > 0:
        head = TRACEBACK_MAX_LENGTH // 4
        tail = text[head - TRACEBACK_MAX_LENGTH :]
        text = f"{text[:head]}\n... {left_out:,} characters are left out ...\n{tail}"
    return codec.clean_text(text)


def _pause(after: object) -> float | None:
    if isinstance(after, bool) or not isinstance(after, int | float):
        return None
    if isinstance(after, float) and math.isnan(after):
        return None
    return float(min(max(after, 0), MAX_PAUSE))
