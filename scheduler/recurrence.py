"""When a recurring task fires next. Pure arithmetic in UTC: no zone of the process plays a part."""

from __future__ import annotations

import datetime as dt

from scheduler import cron as cron_rules


def next_due(every_seconds: float | None, cron: str, tz: str, began: dt.datetime) -> dt.datetime | None:
    """The next fire of a task that ran in a drain that ``began`` then; None for a task that runs once.

    It counts from the drain's start, not from the moment the task was due: after an outage the task has run
    once, not once for each time it missed, and nothing overlaps itself.
    """
    if every_seconds is not None:
        return began + dt.timedelta(seconds=every_seconds)
    if cron:
        return cron_rules.next_fire(cron, tz, began)
    return None
