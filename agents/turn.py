"""The turn: one run of one method of one actor, exclusive, atomic and fenced.

A turn buffers what its method does; nothing of it is in the database before its commit, and then all of
it. This module holds the buffer and its rules. Who claims and commits turns is ``agents/engine.py``; the
statements are in ``agents/store``.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from agents import conf
from agents.exceptions import LimitError, ReadOnlyTurnError, StepWriteError, TurnEndedError, TurnLostError
from agents.observing.carrying import carried
from agents.parts import Part
from agents.writes import Table, Writes

logger = logging.getLogger("agents.turn")
T = TypeVar("T")

EVENT = Table("agents.Event", ("actor_id", "cursor", "type", "payload", "created_at"))

#: The turn whose method is running in this context, for ``tell`` and for call chains.
current_turn: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("agents_turn", default=None)
#: True while a step's function runs in this context.
in_step: contextvars.ContextVar[bool] = contextvars.ContextVar("agents_in_step", default=False)
#: True while a function that ``at_commit`` was given runs, inside the commit's transaction.
in_commit: contextvars.ContextVar[bool] = contextvars.ContextVar("agents_in_commit", default=False)


@dataclass(slots=True)
class ActorRow:
    """An actor as its claim (or a read) saw it."""

    id: int
    kind: str
    name: str
    version: int
    seq: int
    cursor: int
    state: Any  # codec-encoded tree; None when nothing was written yet
    started: bool
    now: dt.datetime  # the database's time at the claim, UTC
    # What keeps turns of its agent from beginning: "" | taken | actor | kind | everything.
    hold: str = ""
    sandbox: bool = False


@dataclass(slots=True)
class StartedTask:
    """A task whose attempt has been recorded and whose method is about to run."""

    pk: int
    attempt_pk: int
    turn_id: uuid.UUID
    task_id: str
    lane: str
    method: str
    payload: Any  # codec-encoded tree
    due_at: dt.datetime
    every_seconds: float | None
    cron: str
    tz: str
    attempt: int  # 1 for the first delivery
    max_retries: int
    carried: str = ""  # agents/observing/carrying.py


@dataclass(slots=True)
class Tell:
    """A task for an actor's inbox, from a turn or from outside."""

    kind: str
    name: str
    method: str
    payload: Any  # codec-encoded tree
    key: str | None = None
    lane: str = "inbox"
    max_retries: int = 5
    task_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    carried: str = field(default_factory=carried)


class Session(Protocol):
    """What the engine does for the turn that is running: short fenced transactions in the middle of it."""

    @property
    def token(self) -> uuid.UUID: ...

    async def checkpoint(self, *, starts: bool = True) -> None: ...

    async def load_steps(self) -> dict[tuple[str, int], Any]: ...

    async def save_step(self, name: str, use: int, result: Any) -> None: ...

    async def save(self, writes: Writes, *, last: bool = False) -> None:
        """Writes rows beside the buffer, at once: only what no retry is harmed by, and what may come twice.

        ``last``: also when the turn has ended, to take back what it saved so.
        """


class StateLike(Protocol):
    """The part that holds the state, as the engine commits it."""

    dirty: bool

    @property
    def tree(self) -> Any: ...

    @property
    def change(self) -> dict[str, Any] | None: ...

    @property
    def undo(self) -> dict[str, Any] | None: ...


class Shown(NamedTuple):
    """An event as listeners get it: its place, its type, and what there is to show."""

    cursor: int
    type: str
    value: Any


#: Called on the event loop with the events that a commit wrote, right after it. Must be quick.
on_events: list[Callable[[ActorRow, list[Shown]], None]] = []


class Reader(Protocol):
    """Where a turn's own reads of the database run."""

    async def run(self, fn: Callable[..., T], *args: Any) -> T: ...

    async def run_unwatched(self, fn: Callable[..., T], *args: Any) -> T:
        """For what looks at the actor's version by itself (``Turn.saw_version``)."""
        return await self.run(fn, *args)

    def moved_on(self) -> BaseException:
        """What the turn's method gets when it reads what somebody else has committed."""
        return TurnLostError()


@dataclass(slots=True)
class Identity:
    """What a turn is called."""

    origin: str  # call | task | frame | request | read
    method: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    # One of the framework's own, which runs no code of the agent: no pause keeps it from its actor.
    framework: bool = False


class Turn:
    """The buffer of one turn, and the facts that its method may ask for."""

    def __init__(
        self,
        actor: ActorRow,
        identity: Identity,
        reader: Reader,
        *,
        task: StartedTask | None = None,
        read_only: bool = False,
    ) -> None:
        self.actor = actor
        self.id = identity.id
        self.origin = identity.origin
        self.method = identity.method
        self.framework = identity.framework
        self.task = task
        self.read_only = read_only
        self.ended = False
        #: Why the engine ended it before its method did: timeout | stopped | shutdown | lost | overdue.
        self.ended_by: str | None = None
        #: The actor for which its row says that it waits.
        self.waits_for: int | None = None
        #: Whether the lease was taken over from a process that died: it may have left things to mend.
        self.takes_over = False
        #: Set by the engine; a read has none.
        self.session: Session | None = None
        #: The start of the drain in which this turn runs its task (database time).
        self.drain_began: dt.datetime | None = None
        #: Set by the part that holds the state, once it is used.
        self.state: StateLike | None = None
        self.parts: list[Part] = []
        self.tells: list[Tell] = []
        self.at_commit: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.on_committed: list[Callable[[], None]] = []
        self.seq = actor.seq
        # What is in the database: moves with a checkpoint.
        self.committed_seq = actor.seq
        self.committed_cursor = actor.cursor
        self.committed_state = actor.state
        self.cursor = actor.cursor
        self._events: list[dict[str, Any]] = []
        self._shown: list[Shown] = []
        self._collected = (0, 0, 0, 0, 0)
        self._parts_collected: list[Part] = []
        self._writes = 0
        self._reader = reader
        #: time.monotonic() at the claim.
        self.claimed_at = time.monotonic()
        #: time.monotonic() when its method was over.
        self.ended_at: float | None = None
        # What is told of it (agents/observing): how long it waited (seconds; of a task, how late it began),
        # whether its method runs on though its turn is over, whether it began, its span.
        self.waited = 0.0
        self.left_behind = False
        self.observed = False
        self.span: Any = None
        self._clock: Callable[[], dt.datetime] | None = None

    # Facts

    def now(self) -> dt.datetime:
        """The agent's time: the database's, unless its class overrides ``now()`` (UTC)."""
        return self.database_now() if self._clock is None else self._clock()

    def database_now(self) -> dt.datetime:
        """The database's time at the claim plus the monotonic time since (UTC)."""
        return self.actor.now + dt.timedelta(seconds=time.monotonic() - self.claimed_at)

    def use_clock(self, clock: Callable[[], dt.datetime]) -> None:
        """From here on ``now()`` is what the agent's own ``now()`` says (tests)."""
        self._clock = clock

    async def read(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs a synchronous function that queries the ORM, off the event loop; returns its result.

        What other turns committed cannot change under this turn: it holds the lease. A ``@reads`` turn
        holds none: bound what you read by ``self.actor.seq`` and ``self.actor.cursor``.
        """
        return await self._reader.run(fn, *args)

    async def in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        """As ``read``, for a function that itself tells ``saw_version`` what its queries saw."""
        return await self._reader.run_unwatched(fn, *args)

    def saw_version(self, version: int, committed_by: uuid.UUID | None) -> None:
        """A query read these columns of the actor along: raises unless it is at this turn's version.

        TurnLostError where somebody else holds the actor now; a ``@reads`` method starts again. May be
        called in any thread.
        """
        if version != self.actor.version and committed_by != self.id:
            raise self._reader.moved_on()

    def end(self) -> None:
        """Its method is over: nothing more is read or written through it."""
        self.ended, self.ended_at = True, time.monotonic()
        for part in self.parts:
            quietly(part.ended)

    def let_go(self) -> None:
        """All of it is over and told of. Turn and parts know each other: now they go with the last who has
        hold of them, and need not wait for the garbage collector."""
        if not self.left_behind:
            self.session, self.state = None, None
            self.parts, self._parts_collected = [], []
            self.at_commit, self.on_committed = [], []

    # Writes

    def writing(self, count: int = 1) -> None:
        """Every write of every part passes here first.

        Raises ReadOnlyTurnError, StepWriteError, TurnEndedError, or LimitError past MAX_TURN_WRITES.
        """
        self.may_write()
        self._writes += count
        maximum = conf.get("MAX_TURN_WRITES")
        if self._writes > maximum:
            raise LimitError(
                f"a turn may write {maximum} things, this one tried more",
                limit="MAX_TURN_WRITES",
                maximum=maximum,
                actual=self._writes,
            )

    def may_write(self) -> None:
        """Raises ReadOnlyTurnError, StepWriteError, TurnEndedError. Counts nothing, so any thread may ask."""
        if self.ended:
            raise TurnEndedError(turn_id=self.id)
        if self.read_only:
            raise ReadOnlyTurnError(turn_id=self.id)
        if in_step.get():
            raise StepWriteError(turn_id=self.id)

    @property
    def wrote(self) -> bool:
        """Whether there is anything that a commit would have to write."""
        return self._writes > 0

    def next_seq(self) -> int:
        """The next message number. Safe to give out at once: the lease keeps others away."""
        self.seq += 1
        return self.seq

    def emit(self, type: str, payload: Any, shown: Any = None) -> int:
        """Appends an event that clients will see once this turn has committed; returns its cursor.

        ``payload`` is a plain JSON tree. ``shown`` is what listeners (``on_events``) get to show instead,
        where the payload only names something that is stored elsewhere.
        """
        self.cursor += 1
        self._events.append(
            {
                "actor_id": self.actor.id,
                "cursor": self.cursor,
                "type": type,
                "payload": payload,
                "created_at": self.now(),
            }
        )
        self._shown.append(Shown(self.cursor, type, payload if shown is None else shown))
        return self.cursor

    def collect(self) -> Writes:
        """The rows of everything buffered since the last commit."""
        writes = Writes()
        for part in self.parts:
            part.collect(writes)
        for event in self._events:
            writes.insert(EVENT, event)
        for tell in self.tells:
            # Without its name: erasing that actor must not have to look for it here.
            writes.note("told", {"kind": tell.kind, "method": tell.method})
        # What is written while the commit is on its way belongs to the next one.
        self._collected = (
            len(self._events),
            len(self.tells),
            len(self.at_commit),
            len(self.on_committed),
            self._writes,
        )
        self._parts_collected = list(self.parts)
        return writes

    def settle(self, version: int) -> None:
        """A commit of something else than the buffer (a step's result, a release) moved the fence."""
        self.actor.version = version
        self.waits_for = None  # each commit clears it on the row

    def settle_buffer(self, version: int, seq: int, cursor: int, state: Any, *, started: bool = True) -> None:
        """The commit of what ``collect`` gave happened: its numbers and its state are the actor's."""
        self.settle(version)
        self.actor.started |= started
        self.committed_seq, self.committed_cursor, self.committed_state = seq, cursor, state
        for part in self._parts_collected:
            quietly(part.committed)
        events, tells, functions, callbacks, writes = self._collected
        shown, self._shown = self._shown[:events], self._shown[events:]
        del self._events[:events]
        del self.tells[:tells]
        del self.at_commit[:functions]
        self._writes -= writes
        called, self.on_committed = self.on_committed[:callbacks], self.on_committed[callbacks:]
        for callback in called:
            quietly(callback)
        if shown:
            for listener in on_events:
                quietly(listener, self.actor, shown)

    def successor(self, now: dt.datetime) -> ActorRow:
        """The actor as this turn's last commit left it, for the next turn under the same lease."""
        row = self.actor
        return ActorRow(
            row.id, row.kind, row.name, row.version, self.committed_seq, self.committed_cursor,
            self.committed_state, row.started, now, row.hold, row.sandbox,
        )  # fmt: skip

    async def abandoned(self) -> None:
        """What was buffered since the last commit is never written. Raises nothing."""
        for part in self.parts:
            try:
                await part.abandoned()
            except Exception:
                logger.exception("%s of an abandoned turn was not cleaned up", type(part).__name__)


def quietly(fn: Callable[..., Any], *args: Any) -> None:
    """Runs what follows a commit, or a turn's end: nothing that it raises may look as if that had failed."""
    try:
        fn(*args)
    except Exception:
        logger.exception("%r failed after a commit or at a turn's end", fn)
