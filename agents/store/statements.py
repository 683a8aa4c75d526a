"""What the store asks of a database engine. ``postgres.py`` and ``sqlite.py`` answer, in raw SQL."""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agents.store.requests import Alarm, Claim, Next, TaskEnd
from agents.turn import ActorRow, StartedTask
from agents.writes import Row, Table

T = TypeVar("T")
Address = tuple[str, str]

#: What a statement answers, when it is called. Statements that don't need each other's answers go to the
#: database together: one that nobody has asked yet may still be waiting for the next that is asked, or for
#: the end of its transaction. So its error comes there, too.
Answer = Callable[[], T]

# Candidates for the next task that a commit looks at.
NEXT_WINDOW = 8
# Due tasks that one claim of a drain takes.
DRAIN_WINDOW = 256
# A caller's mark that it waits for the actor counts for this long.
WAITING_FRESH = dt.timedelta(seconds=1)
# A mark that is fresher than this is not made again.
WAITING_AGAIN = dt.timedelta(milliseconds=200)
# How long a transaction of the store waits for a row that somebody else has locked.
LOCK_TIMEOUT = 5.0  # seconds
# The same for a batch, in which others wait, too, and for what its caller can hand in again.
BRIEF_LOCK_TIMEOUT = 0.05  # seconds


def lock_timeout(wait: bool) -> float:
    """How long a verb waits for a row, in seconds: without ``wait`` its caller asks again."""
    return LOCK_TIMEOUT if wait else BRIEF_LOCK_TIMEOUT


@dataclass(frozen=True)
class Query:
    """A look of a part's own at the database, in the words of either engine.

    Parameters are ``$1``, ``$2`` ... (each with its cast) for PostgreSQL and ``?1``, ``?2`` ... for SQLite;
    lists go over as JSON in a string. ``{now}`` is the database's time, as ``Statements.now`` has it.
    """

    postgresql: str
    sqlite: str


class Interrupted(Exception):  # noqa: N818 - a signal between methods of the store
    """The database aborted the transaction (deadlock, lock timeout, serialization): nothing happened."""


class Delayed(Exception):  # noqa: N818 - says what should happen next; not a failure
    """Somebody else has locked a row that this needs: hand it in again in a moment. Nothing happened."""


class ConnectionLost(Exception):  # noqa: N818
    """The connection died: whether the transaction happened is not known."""


@dataclass(slots=True)
class Leased:
    """The actors that were free, as their leases found them, and those whose old lease is dead.

    A dead lease is taken over only where that was asked for: then its actor is among the rows, too.
    """

    rows: dict[int, ActorRow]
    dead: set[int]
    # Free actors that are held back from whoever asked, by what: taken | actor | kind | everything.
    held: dict[int, str]


@dataclass(slots=True)
class Due:
    """An actor's due tasks in the order in which they run, and the moment up to which they count as due."""

    tasks: list[int]
    before: dt.datetime


@dataclass(slots=True)
class LockedRow:
    token: uuid.UUID | None
    live: bool
    version: int
    kind: str
    name: str
    waiting: bool
    hold: str = ""  # as in ActorRow
    # Pending tasks by lane ("timer", "inbox"), where they were counted.
    pending: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpenAttempt:
    """An attempt that has not ended, with its task (None: the task was replaced or cancelled)."""

    attempt_pk: int
    task_pk: int
    task: StartedTask | None


class Statements(ABC):
    """The statements of one database engine, run on this thread's connection to the default database."""

    # Transactions

    @abstractmethod
    def transaction(
        self, *, with_orm: bool = False, brief: bool = False, lock_timeout: float = LOCK_TIMEOUT
    ) -> AbstractContextManager[None]:
        """One transaction. Raises Interrupted or ConnectionLost instead of the driver's own errors, and
        ``django.db`` errors for what the database refused.

        with_orm: Django's connection takes part in it (its ``on_commit``, its queries).
        brief: nothing in it waits, and all of it goes to the database at once. It changes leases alone, so
        PostgreSQL need not wait for its disk: a server that crashes in the half second before a lease is on
        the disk has given none, and then the fence refuses what its turn would write, as of any lost lease.
        """

    @abstractmethod
    def flush(self) -> None:
        """Everything said so far is in the database when this returns."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """A read-only transaction in which every query of this thread sees one moment."""

    @abstractmethod
    def now(self) -> dt.datetime: ...

    # Addresses

    @abstractmethod
    def ensure(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        """Makes the rows that aren't there, in a transaction of its own unless one is open.

        A row that somebody has made and not committed is waited for: no longer than ``lock_timeout``, or as
        the open transaction's own settings say.
        """

    @abstractmethod
    def find(self, addresses: Sequence[Address]) -> Answer[dict[Address, int]]: ...

    @abstractmethod
    def make(self, addresses: Sequence[Address], lock_timeout: float) -> dict[Address, int]:
        """``ensure`` for what was not found a moment ago."""

    @abstractmethod
    def read(self, query: Query, *params: Any) -> Answer[list[tuple[Any, ...]]]:
        """Rows as the driver gives them. It looks up by keys, like every statement of the store."""

    # Claims

    @abstractmethod
    def lease(self, claims: Sequence[Claim], seconds: float, *, dead: bool) -> Answer[Leased]:
        """Leases the actors that are free and not locked; with ``dead``, also those with a dead lease.

        Actors that are held are leased for turns of the framework, and a taken one for its drain.
        """

    @abstractmethod
    def lock(
        self, ids: Sequence[int], counted: Sequence[int] = (), *, skip: bool = False
    ) -> Answer[tuple[dict[int, LockedRow], dt.datetime]]:
        """Locks actors in the order of ``ids``, which is sorted. Everything else is read after the locks:
        the time, the pending tasks of ``counted``, and what is said next. With ``skip``, rows that others
        have locked are left out, as are those that are gone."""

    @abstractmethod
    def due(self, claims: Sequence[Claim]) -> Answer[dict[int, Due]]:
        """Of an actor that is taken over only what somebody says to it."""

    @abstractmethod
    def begin(self, starts: Sequence[tuple[int, Next]], now: dt.datetime) -> Answer[dict[int, StartedTask]]:
        """Begins for each actor the first of its candidates that is still pending and due."""

    @abstractmethod
    def begin_anew(
        self, starts: Sequence[tuple[int, Next]], now: dt.datetime
    ) -> Answer[dict[int, tuple[StartedTask, list[int]]]]:
        """Begins for each actor the first of what is due now; the others that are, in order, beside it.

        For actors that nobody has taken over."""

    @abstractmethod
    def open_attempts(self, ids: Sequence[int]) -> list[tuple[int, OpenAttempt]]: ...

    @abstractmethod
    def begun(self, actor_id: int, turn_id: uuid.UUID) -> StartedTask | None: ...

    # Commits

    @abstractmethod
    def end_tasks(self, ends: Sequence[tuple[int, TaskEnd]], now: dt.datetime) -> None: ...

    @abstractmethod
    def delete(self, table: Table, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def insert(self, table: Table, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def insert_returning(self, table: Table, rows: Sequence[Row]) -> Answer[list[int]]:
        """The same, of a table without bytes; answers with the rows' ids, in their order."""

    @abstractmethod
    def upsert(self, table: Table, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def take_keys(self, keys: Sequence[tuple[int, str]]) -> Answer[set[tuple[int, str]]]:
        """Puts down keys of locked actors; those that had not been seen."""

    @abstractmethod
    def known_tasks(self, tasks: Sequence[tuple[int, str]]) -> set[tuple[int, str]]: ...

    @abstractmethod
    def pending(self, ids: Sequence[int]) -> dict[int, dict[str, int]]:
        """Pending tasks by lane: all of them, since an actor that holds more than it may must not grow."""

    @abstractmethod
    def update_actors(self, rows: Sequence[dict[str, Any]], now: dt.datetime) -> Answer[list[Alarm]]:
        """Updates locked actors. Of a row ``id`` is needed, the rest is optional:

        own: its turn ends or goes on here: the lease is freed unless ``keep`` or the next task has begun.
        next_turn_id: the turn that was to begin the next task.
        dirty, committed_by: moves the fence.
        seq, cursor, state (where state_changed): the new values.
        starts: ``on_create`` has run, if it had not before.
        tasks: recompute the alarm.
        """

    @abstractmethod
    def alarms(self, ids: Sequence[int], now: dt.datetime) -> list[Alarm]: ...

    @abstractmethod
    def committed_by(self, actor_id: int, version: int) -> uuid.UUID | None: ...

    # Leases

    @abstractmethod
    def renew(self, leases: Sequence[tuple[int, uuid.UUID]], seconds: float) -> dict[uuid.UUID, bool]: ...

    @abstractmethod
    def free(self, actor_id: int, token: uuid.UUID) -> bool: ...

    @abstractmethod
    def stops(self, ids: Sequence[int]) -> dict[int, uuid.UUID]: ...

    @abstractmethod
    def stop(self, actor_id: int, turn_id: uuid.UUID | None, lock_timeout: float) -> uuid.UUID | None: ...

    @abstractmethod
    def mark_waiting(self, actor_id: int) -> bool: ...

    @abstractmethod
    def inspect(self, actor_id: int) -> dict[str, Any] | None: ...

    @abstractmethod
    def wait_for(
        self, actor_id: int, token: uuid.UUID, target_id: int | None, lock_timeout: float
    ) -> None: ...

    @abstractmethod
    def sweep(self, kinds: Sequence[str], limit: int, within: dt.timedelta) -> list[Alarm]: ...
