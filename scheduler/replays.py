"""Replay jobs: choose many tasks, see what would run, replay them at a pace, stop and resume.

A job is a row, its tasks are rows, and each of these changes in the transaction that replays its task, under
the actor's lock: so each task is dealt with once, whatever stops the job and however many processes work on
it. Dispatchers work on running jobs after each sweep; ``work_off`` does so in the foreground.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet

from agents import codec, kinds
from agents.exceptions import AgentsError, CodecError, LimitError, TaskError, TaskGoneError, UnknownKindError
from agents.merge_patch import merge_patch
from agents.operations import note
from agents.sizes import check_size
from agents.store import Delayed, get_store
from scheduler import verbs
from scheduler.models import (
    Attempt,
    AttemptOutcome,
    ReplayChange,
    ReplayItem,
    ReplayItemStatus,
    ReplayJob,
    ReplaySource,
    ReplayStatus,
    Task,
)

#: Tasks of one job.
MOST = 100_000
#: How long one look works on jobs, and how long a process that died holds one.
SLICE, HELD = 0.5, 30.0  # seconds


# What is chosen


@dataclass(frozen=True)
class Selection:
    """Which tasks: all filters that are given hold. ``since`` and ``until`` are about when a task was parked,
    or when its attempt ended; both ends included."""

    source: str = ReplaySource.PARKED
    kind: str = ""
    name: str = ""
    method: str = ""
    task_id: str = ""
    error: str = ""  # a part of it
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    numbers: list[int] = field(default_factory=list)

    def rows(self) -> QuerySet[Any]:
        """The tasks, or the attempts, with their actors."""
        rows: QuerySet[Any]
        if self.source == ReplaySource.PARKED:
            rows, moment = Task.objects.parked(), "parked_at"
        else:
            rows, moment = Attempt.objects.filter(outcome=AttemptOutcome.DONE), "ended_at"
        given = {
            "actor__kind": self.kind,
            "actor__name": self.name,
            "method": self.method,
            "task_id": self.task_id,
            "error__icontains": self.error,
            f"{moment}__gte": self.since,
            f"{moment}__lte": self.until,
            "pk__in": self.numbers,
        }
        return rows.select_related("actor").filter(**{key: value for key, value in given.items() if value})

    def as_json(self) -> dict[str, Any]:
        given = {key: value for key, value in asdict(self).items() if value and key != "source"}
        return {key: v.isoformat() if isinstance(v, dt.datetime) else v for key, v in given.items()}


@dataclass(frozen=True)
class Change:
    """What becomes of the payloads. ``payload`` is as it is stored (docs/codec.md)."""

    how: str = ReplayChange.NONE
    payload: Any = None

    def check(self) -> None:
        """Raises CodecError for no payload, TaskError for no patch, LimitError past MAX_PAYLOAD_BYTES."""
        if self.how == ReplayChange.NONE:
            return
        if self.how == ReplayChange.PATCH and not isinstance(self.payload, dict):
            raise TaskError("A patch is an object.")
        try:
            codec.decode(self.payload)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"no payload: {error}", path="$") from error
        check_size(codec.size(self.payload), "MAX_PAYLOAD_BYTES", "the payload")

    def of(self, kind: str, method: str, payload: Any) -> Any:
        """The payload that runs. Raises TaskError for a method without one, and for nothing to merge with."""
        if self.how == ReplayChange.NONE:
            return payload
        if self.how == ReplayChange.PATCH:
            if not isinstance(payload, dict):
                raise TaskError("There is no object to merge the patch with.")
            payload = merge_patch(payload, self.payload)
            check_size(codec.size(payload), "MAX_PAYLOAD_BYTES", "the payload")
        else:
            payload = self.payload
        if payload is not None and not _takes_payload(kind, method):
            raise TaskError(f"{method} takes no payload.")
        return payload


def _takes_payload(kind: str, method: str) -> bool:
    from scheduler.drain import payload_parameter

    try:
        function = kinds.get(kind).task_method(method)
    except UnknownKindError:
        return True
    return function is None or payload_parameter(function) is not None


@dataclass(frozen=True)
class Preview:
    """One task as it would run, or why it would not."""

    row: Any  # the task or the attempt
    payload: Any
    error: str = ""


def preview(rows: QuerySet[Any], change: Change, count: int = 20) -> Iterator[Preview]:
    """The first of the chosen, as they would run. Raises what ``Change.check`` raises."""
    change.check()
    for row in rows.order_by("pk")[:count]:
        try:
            yield Preview(row, change.of(row.actor.kind, row.method, row.payload))
        except AgentsError as error:
            yield Preview(row, row.payload, str(error))


# Jobs


def start(
    selection: Selection,
    *,
    by: str,
    reason: str,
    change: Change | None = None,
    per_minute: int | None = None,
    rows: QuerySet[Any] | None = None,
    running: bool = True,
) -> ReplayJob:
    """Makes a job of what is chosen now; dispatchers begin with it at once (not ``running``: when resumed).

    ``rows``: those of the selection that this operator may see. Raises TaskError where nothing is chosen, or
    more than MOST, or for a pace below 1; what ``Change.check`` raises.
    """
    change = change or Change()
    change.check()
    if per_minute is not None and per_minute < 1:
        raise TaskError("A pace is a whole number from 1: tasks a minute.")
    chosen = selection.rows() if rows is None else rows
    with transaction.atomic():
        found = list(chosen.order_by("pk").values_list("pk", "actor_id")[: MOST + 1])
        if not found:
            raise TaskError("Nothing is chosen.")
        if len(found) > MOST:
            raise TaskError(f"More than {MOST:,} tasks are chosen: choose fewer.")
        job = ReplayJob.objects.create(
            by=by[:150],
            reason=reason,
            source=selection.source,
            chosen=selection.as_json(),
            change=change.how,
            payload=change.payload,
            per_minute=per_minute,
            total=len(found),
            status=ReplayStatus.RUNNING if running else ReplayStatus.STOPPED,
        )
        ReplayItem.objects.bulk_create(
            [ReplayItem(job=job, actor_id=actor_id, number=pk) for pk, actor_id in found], batch_size=2000
        )
        note("replay", by=by, reason=reason, kind=selection.kind, detail={"job": job.pk, "total": job.total})
    return job


def stop(job: ReplayJob, *, by: str) -> bool:
    """No further task is replayed; False where the job was not running."""
    return _turn(job, by, "stop replay", ReplayStatus.RUNNING, status=ReplayStatus.STOPPED)


def resume(job: ReplayJob, *, by: str) -> bool:
    """It goes on with what is left; False where it was not stopped."""
    dealt = F("done") + F("refused")
    now = get_store().sql.now()
    return _turn(
        job,
        by,
        "resume replay",
        ReplayStatus.STOPPED,
        status=ReplayStatus.RUNNING,
        resumed_at=now,
        dealt_before=dealt,
    )


def _turn(job: ReplayJob, by: str, verb: str, from_status: str, **to: Any) -> bool:
    with transaction.atomic():
        turned = ReplayJob.objects.filter(pk=job.pk, status=from_status).update(**to)
        if turned:
            note(verb, by=by, detail={"job": job.pk})
    job.refresh_from_db()
    return bool(turned)


# Working on them


def advance(seconds: float = SLICE) -> int:
    """Works on running jobs for so long; returns how many tasks it dealt with. Called after each sweep."""
    if not ReplayJob.objects.filter(status=ReplayStatus.RUNNING).exists():
        return 0
    enough = time.monotonic() + seconds
    dealt = 0
    for job in ReplayJob.objects.filter(status=ReplayStatus.RUNNING).order_by("pk"):
        dealt += _advance(job, enough)
    return dealt


def work_off(
    job: ReplayJob,
    dealt_with: Callable[[ReplayItem], None] = lambda item: None,
    enough: Callable[[], bool] = lambda: False,
) -> ReplayJob:
    """Works on one job, at its pace, until it is done or stopped, or ``enough`` says so (asked every SLICE).

    Returns it as it is then.
    """
    while job.status == ReplayStatus.RUNNING and not enough():
        if not _advance(job, time.monotonic() + SLICE, dealt_with):
            time.sleep(0.05)
        job.refresh_from_db()
    return job


def _advance(
    job: ReplayJob, enough: float, dealt_with: Callable[[ReplayItem], None] = lambda item: None
) -> int:
    now = get_store().sql.now()
    free = Q(held_until=None) | Q(held_until__lte=now)
    mine = ReplayJob.objects.filter(free, pk=job.pk, status=ReplayStatus.RUNNING)
    if not mine.update(held_until=now + dt.timedelta(seconds=HELD)):
        return 0  # another process works on it
    dealt = 0
    try:
        job.refresh_from_db()
        change = Change(job.change, job.payload)
        room = _room(job, now)
        last = 0
        locked: set[int] = set()  # actors whose items are left for the next look
        while dealt < room:
            items = job.items.filter(status=ReplayItemStatus.PENDING, pk__gt=last)
            item = items.exclude(actor_id__in=locked).order_by("pk").first()
            if item is None:
                if not locked:
                    _finish(job)
                break
            last = item.pk
            try:
                if not _deal_with(job, item, change):
                    break
                dealt += 1
                dealt_with(item)
            except Delayed:
                locked.add(item.actor_id)
            if time.monotonic() >= enough:
                break
    finally:
        ReplayJob.objects.filter(pk=job.pk).update(held_until=None)
    return dealt


def _room(job: ReplayJob, now: dt.datetime) -> int:
    """How many more may be replayed by now."""
    if job.per_minute is None:
        return MOST
    passed = max(0.0, (now - job.resumed_at).total_seconds())
    return 1 + int(passed * job.per_minute / 60) - (job.done + job.refused - job.dealt_before)


def _finish(job: ReplayJob) -> None:
    running = ReplayJob.objects.filter(pk=job.pk, status=ReplayStatus.RUNNING)
    running.update(status=ReplayStatus.DONE, ended_at=get_store().sql.now())


def _deal_with(job: ReplayJob, item: ReplayItem, change: Change) -> bool:
    """Replays one task, or says why not. False: the job is stopped. Raises Delayed."""
    try:
        # Not waited for: other items, other jobs and, in a dispatcher, a thread would wait, too.
        with verbs.held(item.actor_id, wait=False) as held:
            return _replay(job, item, change, held)
    except TaskGoneError as error:  # with its actor: the item may be gone, too
        ReplayItem.objects.filter(pk=item.pk).update(status=ReplayItemStatus.REFUSED, error=str(error))
        ReplayJob.objects.filter(pk=job.pk).update(refused=F("refused") + 1)
        item.status, item.error = ReplayItemStatus.REFUSED, str(error)
        return True


def _replay(job: ReplayJob, item: ReplayItem, change: Change, held: verbs.Held) -> bool:
    # Under the lock, and in one transaction with the replay: nobody else can have dealt with it, and a job
    # that is stopped at this moment is stopped before or after it.
    running = ReplayJob.objects.select_for_update().filter(pk=job.pk, status=ReplayStatus.RUNNING)
    if not running.exists():
        return False
    item.status, item.error = ReplayItemStatus.DONE, ""
    try:
        if job.source == ReplaySource.PARKED:
            task = verbs.replay_held(held, Task(pk=item.number, actor_id=item.actor_id), change.of)
        else:
            task = verbs.again_held(held, item.number, change.of)
        item.task_pk = task.pk
    except (TaskError, LimitError) as error:  # raised before anything was written
        item.status, item.error = ReplayItemStatus.REFUSED, str(error)
    mine = ReplayItem.objects.filter(pk=item.pk, status=ReplayItemStatus.PENDING)
    if not mine.update(status=item.status, error=item.error, task_pk=item.task_pk):
        transaction.set_rollback(True)  # it was dealt with
        return True
    column = "done" if item.status == ReplayItemStatus.DONE else "refused"
    ReplayJob.objects.filter(pk=job.pk).update(**{column: F(column) + 1})
    return True
