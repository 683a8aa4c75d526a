"""The one clock: the database's, which tests may move."""

from __future__ import annotations

import datetime as dt

#: Added to the database's time wherever due times, leases and retries are judged. Zero outside of tests.
offset = dt.timedelta()


def shift(by: dt.timedelta) -> None:
    """Moves this process's view of the clock (tests). Only while no turn runs: its lease would end."""
    global offset
    offset += by


def reset() -> None:
    global offset
    offset = dt.timedelta()
