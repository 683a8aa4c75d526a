"""``manage.py list_tasks``: what is scheduled, what waits, what is parked."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from agents.store import get_store
from agents.terminal import moment, shown
from scheduler import selection
from scheduler.models import Task, TaskStatus

LIMIT = 100

_WIDEST = {"actor": 40, "method": 30, "id": 36, "error": 60}


class Command(BaseCommand):
    help = (
        "Lists tasks, soonest first: the number that replay_tasks takes, actor, method, lane, status, due "
        "time (UTC), attempts, the task's own id, and the last error. --json gives all fields, and payloads."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        selection.add_arguments(parser)
        parser.add_argument("--status", choices=TaskStatus.values, help="Only pending, or only parked tasks.")
        parser.add_argument("--due", action="store_true", help="Only pending tasks that are due now.")
        parser.add_argument(
            "--limit",
            type=selection.positive,
            default=LIMIT,
            help=f"At most so many tasks. Default: {LIMIT}.",
        )
        parser.add_argument("--json", action="store_true", help="A JSON array instead of a table.")

    def handle(self, *args: Any, status: str | None, due: bool, limit: int, **options: Any) -> None:
        tasks = selection.select(**{name: options[name] for name in ("kind", "name", "method", "task_id")})
        if status:
            tasks = tasks.filter(status=status)
        if due:
            tasks = tasks.pending().filter(due_at__lte=get_store().sql.now())
        found = list(tasks.order_by("due_at", "pk")[: limit + 1])
        more, found = len(found) > limit, found[:limit]
        if options["json"]:
            self.stdout.write(json.dumps([_fields(task) for task in found], indent=2, ensure_ascii=False))
        elif found:
            self._table([_row(task) for task in found])
        if more:
            self.stderr.write(f"More than {limit}: these are the soonest. --limit N shows more.")
        elif not found and not options["json"]:
            self.stdout.write("No tasks.")

    def _table(self, rows: list[dict[str, str]]) -> None:
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
        for row in [{name: name for name in rows[0]}, *rows]:
            self.stdout.write("  ".join(row[name].ljust(widths[name]) for name in row).rstrip())


def _row(task: Task) -> dict[str, str]:
    row = {
        "task": str(task.pk),
        "actor": f"{task.actor.kind}/{task.actor.name}",
        "method": task.method,
        "lane": task.lane,
        "status": task.status,
        "due": moment(task.due_at),
        "repeats": _repeats(task),
        "attempts": f"{task.attempts}/{task.max_retries + 1}",
        "id": task.task_id,
        "error": task.error,
    }
    return {name: shown(value, _WIDEST.get(name)) for name, value in row.items()}


def _repeats(task: Task) -> str:
    if task.every_seconds is not None:
        return f"every {task.every_seconds:g} s"
    return f"{task.cron} {task.tz}" if task.cron else "-"


def _fields(task: Task) -> dict[str, Any]:
    """A task as JSON: moments ISO 8601 in UTC, the payload as it is stored (docs/codec.md)."""
    return {
        "task": task.pk,
        "kind": task.actor.kind,
        "name": task.actor.name,
        "id": task.task_id,
        "method": task.method,
        "payload": task.payload,
        "lane": task.lane,
        "status": task.status,
        "due_at": task.due_at.isoformat(),
        "every_seconds": task.every_seconds,
        "cron": task.cron or None,
        "tz": task.tz or None,
        "attempts": task.attempts,
        "max_retries": task.max_retries,
        "created_at": task.created_at.isoformat(),
        "parked_at": task.parked_at.isoformat() if task.parked_at else None,
        "error": task.error or None,
    }
