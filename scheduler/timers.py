"""An agent's own timers: what a turn schedules and cancels, and what it sees of it.

Nothing is written before the turn's commit. With an id, scheduling replaces the task of that id, pending or
parked, and the last word in a turn stands; without, every call makes a new task. The running task may
schedule or cancel its own id: what it leaves stands, and its completion changes nothing of it.
"""

from __future__ import annotations

import builtins
import datetime as dt
import logging
import uuid
from collections.abc import Callable
from typing import Any

from django.db.models import Q

from agents import codec, conf
from agents.exceptions import ActorUnknownMethodError, LimitError, ScheduleError
from agents.observing.carrying import carried
from agents.parts import Part
from agents.sizes import check_size
from agents.store.rows import TASK
from agents.turn import Turn
from agents.writes import Table, Writes
from scheduler import cron as cron_rules
from scheduler import moments
from scheduler.models import Lane, Task, TaskStatus
from scheduler.records import TaskRecord
from scheduler.recurrence import next_due

logger = logging.getLogger("scheduler.timers")

TASK_KEY = Table("scheduler.Task", ("actor_id", "task_id"))

#: Retries that may be asked for.
MAX_RETRIES = 1_000_000
#: An actor with more than so many recurring tasks that differ in nothing but their ids is warned about.
IDENTICAL_RECURRING = 10

Row = dict[str, Any]
Seconds = float | dt.timedelta

_warned: set[tuple[int, str]] = set()


class Timers(Part):
    """The timers of one turn. ``check_method`` raises for names that a task may not have."""

    def __init__(self, turn: Turn, check_method: Callable[[str], None]) -> None:
        super().__init__(turn)
        self._check_method = check_method
        self._new: dict[str, Row] = {}  # by task id, in the order in which they were scheduled
        # Ids whose stored task goes at the commit, each with a mark of when it was said.
        self._gone: dict[str, object] = {}
        self._taken: tuple[dict[str, Row], dict[str, object]] = {}, {}
        self._replaced_own = self._own_is_gone = False

    @property
    def replaced_own(self) -> bool:
        """Whether the running task's own id was scheduled anew or cancelled in this turn.

        Its row goes (or, after a checkpoint, is gone): its completion must leave the id alone.
        """
        return self._replaced_own

    @property
    def own_is_gone(self) -> bool:
        """Whether a checkpoint has committed that: the task cannot be retried any more."""
        return self._own_is_gone

    # Scheduling. Each returns the task's id and raises ScheduleError, CodecError, LimitError, or what
    # ``check_method`` raises, before anything is buffered.

    async def queue(
        self, method: str, payload: Any = None, *, id: str | None = None, max_retries: int = 5
    ) -> str:
        """Run ``method`` once, as soon as this turn has committed."""
        return self._schedule(method, payload, id, max_retries, due_at=self.turn.now())

    async def schedule(
        self,
        seconds: Seconds,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Run ``method`` once, ``seconds`` (a number or a timedelta, not negative) from now."""
        due_at = self.turn.now() + dt.timedelta(seconds=moments.pause(seconds))
        return self._schedule(method, payload, id, max_retries, due_at=due_at)

    async def schedule_at(
        self,
        at: dt.datetime,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Run ``method`` once at an aware moment; one that has passed means as soon as possible."""
        return self._schedule(method, payload, id, max_retries, due_at=moments.moment(at, self.turn.now()))

    async def every(
        self,
        seconds: Seconds,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Run ``method`` every ``seconds``, for the first time that long from now."""
        every = moments.interval(seconds)
        due_at = self.turn.now() + dt.timedelta(seconds=every)
        task_id = self._schedule(method, payload, id, max_retries, due_at=due_at, every_seconds=every)
        await self._warn_of_copies(task_id)
        return task_id

    async def cron(
        self,
        expression: str,
        method: str,
        payload: Any = None,
        *,
        tz: str = "UTC",
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Run ``method`` whenever the expression (see ``scheduler.cron``) matches in the IANA zone ``tz``."""
        cron_rules.check(expression, tz)
        due_at = cron_rules.next_fire(expression, tz, self.turn.now())
        task_id = self._schedule(method, payload, id, max_retries, due_at=due_at, cron=expression, tz=tz)
        await self._warn_of_copies(task_id)
        return task_id

    async def cancel(self, id: str) -> bool:
        """Removes the task of this id, pending or parked; False if there is none.

        The running task's own id counts until it is cancelled: a recurring one stops recurring.
        """
        self.turn.writing(0)  # may this turn write at all? It counts once something is found
        task_id = _task_id(id)
        stored = False
        if task_id not in self._new and task_id not in self._gone:
            stored = await self.turn.read(_exists, self.turn.actor.id, task_id)
        # Asked again: another coroutine of this turn may have scheduled or cancelled it while we looked.
        if task_id not in self._new and (task_id in self._gone or not stored):
            return False
        self.turn.writing()
        self._new.pop(task_id, None)
        self._forget(task_id)
        return True

    # Looking

    async def list(self) -> builtins.list[TaskRecord]:
        """The pending timers, soonest first, as they will be when this turn has committed.

        The running task is left out if it runs once (it will be done) and has its next due time if it recurs.
        What is in the inbox, and what is parked, is not listed.
        """
        stored = await self.turn.read(_pending, self.turn.actor.id)
        changed = self._gone.keys() | self._new.keys()
        kept = [self._seen(row) for row in stored if row["task_id"] not in changed]
        rows = [row for row in kept if row is not None] + [*self._new.values()]
        return [_record(row) for row in sorted(rows, key=lambda row: row["due_at"])]

    # The turn's side

    def collect(self, writes: Writes) -> None:
        for task_id in self._gone:
            writes.delete(TASK_KEY, {"actor_id": self.turn.actor.id, "task_id": task_id})
            if task_id not in self._new:
                writes.note("cancelled", task_id)
        for row in self._new.values():
            writes.insert(TASK, row)
            due_at = row["due_at"].isoformat()
            writes.note("tasks", {"id": row["task_id"], "method": row["method"], "due_at": due_at})
        self._taken = dict(self._new), dict(self._gone)

    def committed(self) -> None:
        # What came while a checkpoint was on its way belongs to the next commit.
        new, gone = self._taken
        task = self.turn.task
        self._own_is_gone |= task is not None and task.task_id in gone
        self._new = {id: row for id, row in self._new.items() if new.get(id) is not row}
        self._gone = {id: mark for id, mark in self._gone.items() if gone.get(id) is not mark}
        self._taken = {}, {}

    async def abandoned(self) -> None:
        self._new, self._gone, self._taken = {}, {}, ({}, {})

    # Helpers

    def _schedule(
        self,
        method: str,
        payload: Any,
        id: str | None,
        max_retries: int,
        *,
        due_at: dt.datetime,
        every_seconds: float | None = None,
        cron: str = "",
        tz: str = "",
    ) -> str:
        _check_name(method)
        self._check_method(method)
        if isinstance(max_retries, bool) or not isinstance(max_retries, int):
            raise ScheduleError(f"max_retries must be a whole number, got {type(max_retries).__name__}")
        if not 0 <= max_retries <= MAX_RETRIES:
            raise ScheduleError(f"max_retries must be from 0 to {MAX_RETRIES}, got {max_retries}")
        tree = _payload(payload)
        task_id = uuid.uuid4().hex if id is None else _task_id(id)
        self.turn.writing()
        if id is not None:
            self._forget(task_id)
            self._new.pop(task_id, None)  # the order of scheduling is the order of rows
        self._new[task_id] = {
            "actor_id": self.turn.actor.id,
            "task_id": task_id,
            "lane": Lane.TIMER.value,
            "method": method,
            "payload": tree,
            "status": TaskStatus.PENDING.value,
            "due_at": due_at,
            "every_seconds": every_seconds,
            "cron": cron,
            "tz": tz,
            "attempts": 0,
            "max_retries": max_retries,
            "created_at": self.turn.now(),
            "parked_at": None,
            "error": "",
            "carried": carried(),
        }
        return task_id

    def _forget(self, task_id: str) -> None:
        self._gone[task_id] = object()
        if self.turn.task is not None and self.turn.task.task_id == task_id:
            self._replaced_own = True

    def _seen(self, row: Row) -> Row | None:
        task = self.turn.task
        if task is None or row["id"] != task.pk:
            return row
        began = self.turn.drain_began or self.turn.actor.now
        due_at = next_due(row["every_seconds"], row["cron"], row["tz"], began)
        return None if due_at is None else {**row, "due_at": due_at}

    async def _warn_of_copies(self, task_id: str) -> None:
        """Says once that an actor piles up recurring tasks, as one does that schedules them without an id."""
        new = self._new.get(task_id)
        if new is None or (self.turn.actor.id, new["method"]) in _warned:
            return
        stored = await self.turn.read(_recurring, new)
        others = [row for row in stored if row["task_id"] not in self._gone.keys() | self._new.keys()]
        others += self._new.values()
        same = ("method", "payload", "every_seconds", "cron", "tz")
        copies = sum(all(row[name] == new[name] for name in same) for row in others)
        if copies > IDENTICAL_RECURRING:
            if len(_warned) > 10_000:
                _warned.clear()
            _warned.add((self.turn.actor.id, new["method"]))
            logger.warning(
                "%s/%s has %d identical recurring tasks for %r: give them an id",
                self.turn.actor.kind,
                self.turn.actor.name,
                copies,
                new["method"],
            )


def _check_name(method: str) -> None:
    if not isinstance(method, str) or not method.isidentifier():
        raise ActorUnknownMethodError(f"a method's name is needed, got {method!r:.200}")
    if len(method) > conf.METHOD_MAX_LENGTH:
        raise ActorUnknownMethodError(f"a method's name has at most {conf.METHOD_MAX_LENGTH} characters")


def _task_id(id: str) -> str:
    if not isinstance(id, str) or not id:
        raise ScheduleError(f"a task's id must be non-empty text, got {id!r:.200}")
    if len(id) > conf.TASK_ID_MAX_LENGTH:
        raise LimitError(
            f"a task's id has at most {conf.TASK_ID_MAX_LENGTH} characters, got {len(id)}",
            limit="TASK_ID_MAX_LENGTH",
            maximum=conf.TASK_ID_MAX_LENGTH,
            actual=len(id),
        )
    return codec.clean_text(id)


def _payload(value: Any) -> Any:
    packed = codec.pack(value)
    check_size(packed.size, "MAX_PAYLOAD_BYTES", "the payload of a task")
    return packed.tree()


_COLUMNS = ("id", "task_id", "method", "payload", "due_at", "every_seconds", "cron", "tz", "attempts",
            "max_retries", "created_at")  # fmt: skip


def _pending(actor_id: int) -> list[Row]:
    tasks = Task.objects.pending().filter(actor_id=actor_id, lane=Lane.TIMER)
    return list(tasks.order_by("due_at", "id").values(*_COLUMNS))


def _exists(actor_id: int, task_id: str) -> bool:
    return Task.objects.filter(actor_id=actor_id, task_id=task_id, lane=Lane.TIMER).exists()


def _recurring(like: Row) -> list[Row]:
    recurring = Q(every_seconds__isnull=False) | ~Q(cron="")
    tasks = Task.objects.pending().filter(recurring, actor_id=like["actor_id"], method=like["method"])
    return [*map(dict, tasks.values("task_id", "method", "payload", "every_seconds", "cron", "tz"))]


def _record(row: Row) -> TaskRecord:
    return TaskRecord(
        id=row["task_id"],
        name=row["method"],
        payload=codec.decode(row["payload"]),
        due=row["due_at"],
        every=row["every_seconds"],
        cron=row["cron"] or None,
        tz=row["tz"] or None,
        attempts=row["attempts"],
        max_retries=row["max_retries"],
        created_at=row["created_at"],
    )
