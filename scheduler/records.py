"""What an agent sees of its own tasks."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A pending task, as ``list_schedules`` gives it. Moments are aware, in UTC."""

    id: str
    name: str  # the method
    payload: Any
    due: dt.datetime
    every: float | None  # seconds; None unless it recurs by an interval
    cron: str | None
    tz: str | None  # the cron expression's zone
    attempts: int  # deliveries begun since the last success
    max_retries: int
    created_at: dt.datetime


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task that used up its retries, as ``on_parked`` gets it. Moments are aware, in UTC."""

    id: str
    name: str  # the method
    payload: Any
    attempts: int
    max_retries: int
    parked_at: dt.datetime
    error: str  # one line
