"""How tasks and attempts are shown: in lists, and in panels on the pages of actors and conversations."""

from __future__ import annotations

import re
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents.display import NONE, badge, seconds, short, url_of, when
from scheduler.models import Attempt, AttemptOutcome, Lane, Task, TaskStatus

TONES = {
    AttemptOutcome.RUNNING: "busy",
    AttemptOutcome.DONE: "good",
    AttemptOutcome.FAILED: "bad",
    AttemptOutcome.LOST: "bad",
}

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_RANDOM = re.compile("[0-9a-f]{32}")


def described(task: Task, *, actor: bool = False) -> dict[str, Any]:
    """A task's row in a panel (``scheduler/_tasks.html``); ``actor``: with whose it is."""
    pending = task.status == TaskStatus.PENDING
    return {
        "url": url_of(task),
        "method": task.method,
        "id": short(task.task_id, 40),
        "lane": Lane(task.lane).value,
        "status": status_badge(task),
        "due": when(task.due_at, late=True) if pending else when(task.parked_at),
        "repeats": recurrence(task),
        "attempts": f"{task.attempts} of {task.max_retries + 1}" if task.attempts else "",
        "error": short(task.error, 120),
        "actor": str(task.actor) if actor else "",
    }


def recurrence(task: Task) -> str:
    """How a task recurs, in words; empty for one that runs once."""
    if (every := task.every_seconds) is not None:
        whole = next(((size, unit) for size, unit in _UNITS if every >= size and every % size == 0), (1, "s"))
        return f"every {every / whole[0]:g} {whole[1]}"
    return f"{task.cron} {task.tz}" if task.cron else ""


def status_badge(task: Task) -> SafeString:
    if task.status == TaskStatus.PARKED:
        return badge("parked", "bad")
    return badge("retrying", "busy") if task.attempts and task.error else badge("pending")


def error_line(row: Task | Attempt) -> SafeString | str:
    """The row's error in a list."""
    return format_html('<span class="agents-error">{}</span>', short(row.error, 80)) if row.error else NONE


def outcome_badge(attempt: Attempt) -> SafeString:
    known = attempt.outcome in AttemptOutcome.values
    return badge(attempt.outcome, TONES.get(AttemptOutcome(attempt.outcome), "") if known else "")


def attempted(attempt: Attempt) -> dict[str, Any]:
    return {
        "url": url_of(attempt),
        "number": attempt.number,
        "outcome": outcome_badge(attempt),
        "started": when(attempt.started_at),
        "took": took(attempt),
        "error": attempt.error,
        "traceback": attempt.traceback,
    }


def id_line(row: Task | Attempt) -> SafeString | str:
    """A task's own id, and its lane where that is not the usual one. A random id says nothing."""
    id = "" if _RANDOM.fullmatch(row.task_id) else short(row.task_id, 40)
    lane = "" if row.lane == Lane.TIMER else row.lane
    return format_html("<bdi>{}</bdi>{}{}", id, " · " if id and lane else "", lane) if id or lane else ""


def took(attempt: Attempt) -> str:
    if attempt.ended_at is None:
        return NONE
    return seconds(max(0.0, (attempt.ended_at - attempt.started_at).total_seconds()))
