"""``manage.py replay_tasks``: parked tasks, and what finished attempts ran, run again: by replay jobs."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from agents.exceptions import AgentsError
from agents.management.commands.pause import operator
from agents.terminal import moment, shown
from scheduler import replays, selection
from scheduler.models import (
    Attempt,
    ReplayChange,
    ReplayItem,
    ReplayItemStatus,
    ReplayJob,
    ReplaySource,
    ReplayStatus,
    Task,
)

# Tasks that a dry run shows, and of which a job has a line each; jobs that are listed.
PREVIEWED, LINES, LISTED = 50, 100, 20
PROGRESS = 5.0  # seconds between two lines of progress
# What was not given: null is a payload.
_NONE = object()


class Command(BaseCommand):
    help = (
        "Makes parked tasks pending and due now, with attempts at zero and saved steps forgotten. "
        "Name them by number (list_tasks shows it), by filters, or by both; --all means every parked task. "
        "What is chosen becomes a job, which can be stopped (Ctrl+C) and resumed: each task exactly once. "
        "Ends with an error if one could not be replayed; the others are."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("task", nargs="*", type=selection.positive, help="Numbers of tasks.")
        selection.add_arguments(parser)
        parser.add_argument(
            "--since", type=selection.moment, metavar="MOMENT",
            help="Only tasks parked since then: ISO 8601, a date, or 2h for two hours ago.",
        )  # fmt: skip
        parser.add_argument(
            "--until", type=selection.moment, metavar="MOMENT", help="Only tasks parked until then."
        )
        parser.add_argument("--all", action="store_true", help="Every parked task of every actor.")
        parser.add_argument(
            "--attempt", nargs="+", type=selection.positive, default=[], metavar="N",
            help="Instead: run again what these attempts ran (their numbers are in the admin), as new tasks.",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what would be replayed, change nothing."
        )
        parser.add_argument("--error", help="Only tasks whose error has these words in it.")
        parser.add_argument("--reason", default="", help="Why: kept with who did it.")
        jobs = parser.add_argument_group("jobs")
        jobs.add_argument(
            "--finished", action="store_true",
            help="What finished well runs again, as new tasks; --since and --until are about its end.",
        )  # fmt: skip
        jobs.add_argument(
            "--payload", type=_json, default=_NONE, help="Run them with this payload (JSON) instead."
        )
        jobs.add_argument(
            "--patch", type=_json, default=_NONE, help="Merge this (JSON, RFC 7396) into their payloads."
        )
        jobs.add_argument("--per-minute", type=selection.positive, metavar="N", help="No more than so many.")
        jobs.add_argument(
            "--background", action="store_true", help="Leave the job to dispatchers; do not wait for it."
        )
        jobs.add_argument("--resume", type=selection.positive, metavar="JOB", help="Go on with a job.")
        jobs.add_argument("--stop", type=selection.positive, metavar="JOB", help="Stop a job.")
        jobs.add_argument("--jobs", action="store_true", help="List jobs, the newest first.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["jobs"]:
            return self._list()
        if options["stop"] or options["resume"]:
            return self._turn(options)
        rows = self._chosen(options)
        change = self._change(options)
        selection_ = self._selection(options)
        rows = selection_.rows() if rows is None else rows
        try:
            if options["dry_run"]:
                return self._preview(rows, change)
            if not rows.exists():
                self.stdout.write("0 replayed, 0 not")
                return None
            job = replays.start(
                selection_,
                by=operator(),
                reason=options["reason"],
                change=change,
                per_minute=options["per_minute"],
                rows=rows,
            )
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        self.stdout.write(f"job {job.pk}: {job.total} tasks")
        if not options["background"]:
            self._work_off(job)
        return None

    # What is chosen

    def _chosen(self, options: dict[str, Any]) -> QuerySet[Any] | None:
        """The rows that are named by number, whatever their state: a job says why it refuses one."""
        others = [options[name] for name in ("kind", "name", "method", "task_id", "since", "until", "error")]
        filtered = any(value is not None for value in others)
        if numbers := options["attempt"]:
            if options["all"] or options["task"] or options["finished"] or filtered:
                raise CommandError("--attempt stands alone: an attempt is one, whatever became of its task.")
            return self._all_there(Attempt.objects.select_related("actor"), numbers, "attempt")
        if not (options["all"] or options["task"] or filtered):
            raise CommandError(
                "Say which: numbers, --kind, --name, --method, --task-id, --error, --since, --until or --all."
            )
        if options["task"] and not filtered and not options["finished"]:
            return self._all_there(Task.objects.select_related("actor"), options["task"], "task")
        return None

    def _all_there(self, rows: QuerySet[Any], numbers: list[int], what: str) -> QuerySet[Any]:
        found = rows.filter(pk__in=numbers)
        if missing := set(numbers) - set(found.values_list("pk", flat=True)):
            raise CommandError(f"No such {what}: {', '.join(map(str, sorted(missing)))}.")
        return found

    def _selection(self, options: dict[str, Any]) -> replays.Selection:
        finished = options["finished"] or options["attempt"]
        given = {name: options[name] or "" for name in ("kind", "name", "method", "task_id", "error")}
        return replays.Selection(
            source=ReplaySource.FINISHED if finished else ReplaySource.PARKED,
            since=options["since"],
            until=options["until"],
            numbers=options["attempt"] or options["task"],
            **given,
        )

    def _change(self, options: dict[str, Any]) -> replays.Change:
        if options["payload"] is not _NONE and options["patch"] is not _NONE:
            raise CommandError("Give a payload or a patch, not both.")
        if options["payload"] is not _NONE:
            return replays.Change(ReplayChange.REPLACE, options["payload"])
        if options["patch"] is not _NONE:
            return replays.Change(ReplayChange.PATCH, options["patch"])
        return replays.Change()

    # Jobs

    def _preview(self, rows: QuerySet[Any], change: replays.Change) -> None:
        count = rows.count()
        for one in replays.preview(rows, change, PREVIEWED):
            said = one.error or json.dumps(one.payload, ensure_ascii=False)
            self.stdout.write(f"would replay {_line(one.row)} with {shown(said, 200)}")
        if count > PREVIEWED:
            self.stdout.write(f"... and {count - PREVIEWED} more")
        self.stdout.write(f"{count} would be replayed")

    def _turn(self, options: dict[str, Any]) -> None:
        number = options["resume"] or options["stop"]
        job = ReplayJob.objects.filter(pk=number).first()
        if job is None:
            raise CommandError(f"There is no job {number}.")
        if options["stop"]:
            if not replays.stop(job, by=operator()):
                raise CommandError(f"Job {number} is not running: it is {job.status}.")
            self.stdout.write(f"job {number} is stopped: {_progress(job)}")
            return
        if not replays.resume(job, by=operator()):
            raise CommandError(f"Job {number} is not stopped: it is {job.status}.")
        if not options["background"]:
            self._work_off(job)

    def _work_off(self, job: ReplayJob) -> None:
        said = time.monotonic()
        each = job.total <= LINES

        def dealt_with(item: ReplayItem) -> None:
            nonlocal said
            if item.status == ReplayItemStatus.REFUSED:
                self.stderr.write(f"not replayed {item.number}: {item.error}")
            elif each:
                self.stdout.write(f"replayed {_item_line(job, item)}")
            if time.monotonic() - said >= PROGRESS:
                said = time.monotonic()
                job.refresh_from_db()
                self.stdout.write(_progress(job))

        with _asked_to_stop() as asked:
            replays.work_off(job, dealt_with, asked.is_set)
            if asked.is_set():
                replays.stop(job, by=operator())
        self.stdout.write(f"job {job.pk} is {job.status}: {_progress(job)}")
        if job.status == ReplayStatus.STOPPED:
            self.stdout.write(f"go on with: manage.py replay_tasks --resume {job.pk}")
        if job.refused:
            raise CommandError(f"{job.refused} could not be replayed.")

    def _list(self) -> None:
        for job in ReplayJob.objects.order_by("-pk")[:LISTED]:
            line = f"job {job.pk} of {moment(job.created_at)} by {shown(job.by)} is {job.status}"
            self.stdout.write(f"{line}: {_progress(job)}{': ' if job.reason else ''}{shown(job.reason)}")


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or Ctrl+C, which lets the task end that is dealt with; the second stops."""
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error


def _progress(job: ReplayJob) -> str:
    return f"{job.done} replayed, {job.refused} not, {job.left} left"


def _item_line(job: ReplayJob, item: ReplayItem) -> str:
    task = Task.objects.select_related("actor").filter(pk=item.task_pk or 0).first()
    what = f"attempt {item.number}" if job.source == ReplaySource.FINISHED else f"task {item.number}"
    if task is None:  # it has run
        return what
    line = f"{what} {_actor(task)} {shown(task.method)} ({shown(task.task_id)})"
    return f"{line} as task {task.pk}" if job.source == ReplaySource.FINISHED else line


def _line(task: Task | Attempt) -> str:
    what = "attempt" if isinstance(task, Attempt) else "task"
    line = f"{what} {task.pk} {_actor(task)} {shown(task.method)} ({shown(task.task_id)})"
    parked_at = getattr(task, "parked_at", None)
    return f"{line}, parked {moment(parked_at)}" if parked_at else line


def _actor(row: Task | Attempt) -> str:
    return f"{shown(row.actor.kind)}/{shown(row.actor.name)}"
