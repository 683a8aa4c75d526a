"""What the engine asks of the store, and what it gets back. Plain records; nothing here knows SQL."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agents.turn import ActorRow, StartedTask, Tell
from agents.writes import Row, Writes


@dataclass(slots=True)
class Claim:
    """Take an actor's lease. ``drain``: and find its due tasks, and begin the first."""

    actor_id: int
    turn_id: uuid.UUID
    token: uuid.UUID = field(default_factory=uuid.uuid4)
    drain: bool = False
    # The moment up to which a drain's tasks count as due; None: the database's now.
    due_before: dt.datetime | None = None
    # For a turn of the framework's own: nothing that holds the actor's agent back holds this one.
    framework: bool = False
    # Kinds' classes decide it: whether a task that parks gets an ``on_parked`` task.
    wants_on_parked: bool = False


@dataclass(slots=True)
class Claimed:
    """The lease is held. For a drain: the task begun, and the keys of the due ones after it, in order."""

    actor: ActorRow
    token: uuid.UUID
    turn_id: uuid.UUID
    task: StartedTask | None = None
    due: list[int] = field(default_factory=list)
    due_before: dt.datetime | None = None
    # Whether a lease was there that had died with its process.
    takes_over: bool = False


@dataclass(slots=True)
class Next:
    """Begin the next task of a drain in the commit of the one before: the first of ``due`` that still can."""

    turn_id: uuid.UUID
    due: list[int]
    due_before: dt.datetime
    # What its drain was begun under (``ActorRow.hold``): under anything else nothing more begins.
    hold: str = ""
    # The drain is at its end, and something is due: the next one begins here, with what it finds.
    anew: bool = False


@dataclass(slots=True)
class TaskEnd:
    """How an attempt ended, and what becomes of its task."""

    task_pk: int
    attempt_pk: int
    outcome: str  # AttemptOutcome
    # delete: it is done. advance: it recurs at ``due_at``. retry: again at ``due_at``. park. release: as if
    # it had never begun. gone: its own turn replaced or cancelled it.
    action: str
    due_at: dt.datetime | None = None
    error: str = ""
    traceback: str = ""


@dataclass(slots=True)
class Commit:
    """One fenced transaction of one turn: everything it wrote, how its task ended, what follows."""

    actor_id: int
    token: uuid.UUID
    turn_id: uuid.UUID
    version: int  # the fence: the actor's version as this turn knows it
    dirty: bool  # moves the fence and leaves a record
    release: bool = True  # frees the lease (unless ``next`` begins)
    starts: bool = False  # what the turn itself wrote, ``on_create`` with the first of it
    seq: int | None = None
    cursor: int | None = None
    state: Any = None
    state_changed: bool = False
    writes: Writes = field(default_factory=Writes)
    tells: list[Tell] = field(default_factory=list)
    record: Row | None = None
    task: TaskEnd | None = None
    next: Next | None = None
    at_commit: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)

    @property
    def adds_tasks(self) -> bool:
        return bool(self.tells or self.task or self.writes.touches_tasks)


@dataclass(slots=True)
class Alarm:
    """When an actor has something to run, if at all."""

    actor_id: int
    kind: str
    name: str
    at: dt.datetime | None
    now: dt.datetime  # the database's, when this was read

    @property
    def due(self) -> bool:
        return self.at is not None and self.at <= self.now

    @property
    def seconds(self) -> float:
        """From ``now`` until ``at``; zero for one that is due."""
        return 0.0 if self.at is None else max(0.0, (self.at - self.now).total_seconds())


@dataclass(slots=True)
class Committed:
    """The commit is in the database."""

    version: int
    next: StartedTask | None = None
    now: dt.datetime | None = None
    # The lease was freed because somebody in another process waits for the actor.
    stood_back: bool = False
    alarms: list[Alarm] = field(default_factory=list)
    # What else was due, in order, where ``next`` is the first task of a drain that began with this commit.
    anew: list[int] | None = None
