"""Which tasks a command means: the same words in every command."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from scheduler.models import Task, TaskQuerySet, TaskStatus

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def moment(text: str) -> dt.datetime:
    """A moment on the command line: ISO 8601 (without a zone: the site's), a date, or ``2h`` for 2 hours ago.

    Units are s, m, h and d.
    """
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return timezone.now() - dt.timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    try:
        day = parse_date(text)
        at = dt.datetime.combine(day, dt.time()) if day else parse_datetime(text)
    except ValueError:  # well formed, but no such day or hour
        at = None
    if at is None:
        raise argparse.ArgumentTypeError(f"not a moment: {text!r}. ISO 8601, a date, or 30s, 15m, 2h, 1d ago")
    return at if timezone.is_aware(at) else timezone.make_aware(at)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**63:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, got {text!r}")
    return int(text)


def add_arguments(parser: CommandParser) -> None:
    """The filters that every command about tasks has."""
    parser.add_argument("--kind", help="Only actors of this kind.")
    parser.add_argument("--name", help="Only the actor of this name (exactly).")
    parser.add_argument("--method", help="Only tasks for this method.")
    parser.add_argument(
        "--task-id", metavar="ID", help="Only tasks with this id of their own (process, nudge ...)."
    )


def select(
    *, kind: str | None, name: str | None, method: str | None, task_id: str | None, **rest: Any
) -> TaskQuerySet:
    """The tasks that the filters name, with their actors."""
    given = {"actor__kind": kind, "actor__name": name, "method": method, "task_id": task_id}
    named = {field: value for field, value in given.items() if value is not None}
    return Task.objects.select_related("actor").filter(**named)


def parked_between(tasks: TaskQuerySet, since: dt.datetime | None, until: dt.datetime | None) -> TaskQuerySet:
    """Of these tasks those that were parked in the window, both ends included."""
    tasks = tasks.filter(status=TaskStatus.PARKED)
    if since is not None:
        tasks = tasks.filter(parked_at__gte=since)
    return tasks if until is None else tasks.filter(parked_at__lte=until)
