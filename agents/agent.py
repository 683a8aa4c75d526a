"""The Agent class: the one place that puts the parts of a turn together.

Subclass it in the ``agents`` module of an installed app. Its ``async`` methods are turns of an actor; what
they do through ``self`` is there entirely or not at all.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from django.utils.functional import cached_property

from agents import clock, codec, kinds, names
from agents.exceptions import ActorPrivateMethodError, ActorUnknownMethodError
from agents.observing import tracing
from agents.sizes import check_size
from agents.stub import Stub
from agents.turn import Turn, in_step

if TYPE_CHECKING:
    from agents.blobs import Blobs
    from agents.env import Env
    from agents.http.requests import AgentRequest
    from agents.sockets.admission import ConnectionRequest
    from agents.sockets.connections import Connection, Connections
    from agents.sockets.status import StatusMark
    from agents.sql import Sql
    from agents.state import State
    from agents.storage import Storage
    from conversations.log import MessageLog
    from conversations.sms import Sms
    from scheduler.records import ParkedTask, TaskRecord
    from scheduler.timers import Timers

StateT = TypeVar("StateT", bound=Mapping[str, Any])
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What ``on_task`` is told besides the name and the payload."""

    id: str
    attempt: int  # 1 for the first delivery


def exposed(method: MethodT) -> MethodT:
    """Lets browsers and API clients call this method; without it only the deployment's own code can."""
    method.__agents_exposed__ = True  # type: ignore[attr-defined]
    return method


def reads(method: MethodT) -> MethodT:
    """Marks a method that only reads: it takes no lease, never waits, and sees one committed version."""
    method.__agents_reads__ = True  # type: ignore[attr-defined]
    return method


class Agent(Generic[StateT]):
    """One conversation's durable actor. A new instance serves each turn: attributes don't survive it.

    Class attributes: ``kind`` (the stable name in the database; by default the class name in kebab case
    without a trailing "Agent"), ``share_state`` (state patches become events that clients see),
    ``sensitive`` (keys of the state whose values nobody but the agent is shown: admin, API, exports),
    ``call_budget`` and ``task_budget`` (seconds; None: the settings CALL_BUDGET and TASK_BUDGET),
    ``abstract`` (True in a class that is only a base for others; not inherited).
    """

    kind: ClassVar[str] = ""
    abstract: ClassVar[bool] = True
    share_state: ClassVar[bool] = False
    sensitive: ClassVar[tuple[str, ...] | frozenset[str]] = ()
    call_budget: ClassVar[float | None] = None
    task_budget: ClassVar[float | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.abstract = cls.__dict__.get("abstract", False)
        if taken := RESERVED & cls.__dict__.keys():
            raise TypeError(f"{cls.__qualname__}.{min(taken)}: the name belongs to stubs or to the scheduler")
        if "kind" in cls.__dict__:
            names.check_kind(cls.kind)
        else:
            cls.kind = names.kind_from_class_name(cls.__name__)
        if not cls.abstract:
            kinds.register(cls)

    def __init__(self, turn: Turn) -> None:
        """Made by the runtime, one for each turn."""
        self._turn = turn
        self._step_uses: dict[str, int] = {}
        self._steps: dict[tuple[str, int], Any] | None = None
        self._steps_loading = asyncio.Lock()

    # Addresses

    @classmethod
    def named(cls, name: str) -> Stub:
        """The actor of this kind with this name. Raises InvalidNameError. Nothing is created by asking."""
        return Stub(cls, names.check_name(name))

    @classmethod
    def unique(cls) -> Stub:
        """An actor with a fresh name of its own."""
        return Stub(cls, uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """This actor's name within its kind."""
        return self._turn.actor.name

    @property
    def sandbox(self) -> bool:
        """Whether this actor is a copy to try things on (a fork): then leave the outside world alone."""
        return self._turn.actor.sandbox

    # Parts, each made when it is first used

    @cached_property
    def messages(self) -> MessageLog:
        """The conversation's log."""
        from conversations.log import MessageLog

        return MessageLog(self._turn)

    @cached_property
    def sms(self) -> Sms:
        """Texts out."""
        from conversations.sms import Sms

        return Sms(self._turn, _weakly(self, lambda agent: agent.blobs))

    @cached_property
    def blobs(self) -> Blobs:
        """Files of this actor."""
        from agents.blobs import Blobs

        return Blobs(self._turn)

    @cached_property
    def sql(self) -> Sql:
        """The private SQLite database of this actor."""
        from agents.sql import Sql

        return Sql(self._turn)

    @cached_property
    def storage(self) -> Storage:
        """The private key-value store of this actor."""
        from agents.storage import Storage

        return Storage(self._turn)

    @cached_property
    def connections(self) -> Connections:
        """Who is connected to this actor, over all processes."""
        from agents.sockets.connections import Connections

        return Connections(self._turn)

    @cached_property
    def _status(self) -> StatusMark:
        from agents.sockets.status import StatusMark

        return StatusMark(self._turn)

    @cached_property
    def _timers(self) -> Timers:
        from scheduler.timers import Timers

        return Timers(self._turn, self._check_task_method)

    @cached_property
    def _state(self) -> State:
        from agents.state import State

        watched = type(self).on_state_changed is not Agent.on_state_changed
        changed = _weakly(self, lambda agent, *states: agent.on_state_changed(*states)) if watched else None
        initial = _weakly(self, lambda agent: agent.initial_state())
        state = State(self._turn, initial, changed, self.share_state)
        self._turn.state = state
        return state

    @property
    def env(self) -> Env:
        """What the deployment binds by name: model and messaging clients, one instance a process."""
        from agents.env import env

        return env

    # State

    async def get_state(self) -> StateT:
        """A copy of the state; ``initial_state()`` if nothing was written yet."""
        return cast(StateT, await self._state.get())

    async def set_state(self, patch: Mapping[str, Any]) -> StateT:
        """Merges ``patch`` into the state (RFC 7396: recursively, None deletes); returns the new state."""
        return cast(StateT, await self._state.set(patch))

    async def replace_state(self, next: Mapping[str, Any]) -> StateT:
        """Writes the state anew; returns it."""
        return cast(StateT, await self._state.replace(next))

    # Timers

    async def queue(
        self, method: str, payload: Any = None, *, id: str | None = None, max_retries: int = 5
    ) -> str:
        """Runs ``method`` as a task once this turn has committed; returns the task's id."""
        return await self._timers.queue(method, payload, id=id, max_retries=max_retries)

    async def schedule(
        self,
        seconds: float | dt.timedelta,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Runs ``method`` once, ``seconds`` from now. With an ``id`` it replaces the task of that id."""
        return await self._timers.schedule(seconds, method, payload, id=id, max_retries=max_retries)

    async def schedule_at(
        self,
        at: dt.datetime,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Runs ``method`` once, at an aware moment."""
        return await self._timers.schedule_at(at, method, payload, id=id, max_retries=max_retries)

    async def every(
        self,
        seconds: float | dt.timedelta,
        method: str,
        payload: Any = None,
        *,
        id: str | None = None,
        max_retries: int = 5,
    ) -> str:
        """Runs ``method`` every ``seconds``. Give it an ``id``: a second call then replaces it."""
        return await self._timers.every(seconds, method, payload, id=id, max_retries=max_retries)

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
        """Runs ``method`` whenever the cron expression matches in the IANA zone ``tz``."""
        return await self._timers.cron(expression, method, payload, tz=tz, id=id, max_retries=max_retries)

    async def cancel_schedule(self, id: str) -> bool:
        """Removes the pending task of this id; False if there is none."""
        return await self._timers.cancel(id)

    async def list_schedules(self) -> list[TaskRecord]:
        """Every pending task, soonest first."""
        return await self._timers.list()

    # The turn

    async def checkpoint(self) -> None:
        """Commits what this turn did so far, and goes on. A retry runs the method from its start again."""
        session = self._turn.session
        self._turn.writing(0)
        for part in self._turn.parts:
            part.check()
        if session is not None:
            await session.checkpoint()

    async def step(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs ``fn(*args, **kwargs)`` once for all attempts of this task; returns its (codec-passed) result.

        ``fn`` is asynchronous, or synchronous and then run in a thread. The result is saved in a short
        fenced transaction of its own before this returns. Uses of one name are told apart by their order,
        never by their arguments: what chooses these (a model's answer, say) must be remembered as well, or be
        in the name (255 characters). Else a retry that comes another way gets the result of something else.
        Outside of tasks nothing is retried and nothing saved. A write through ``self`` inside ``fn`` raises
        StepWriteError; what ``fn`` raises is not remembered.
        """
        turn = self._turn
        turn.writing(0)
        if not name or len(name) > 255:
            raise ValueError("a step's name is non-empty text of up to 255 characters")
        use = self._step_uses[name] = self._step_uses.get(name, 0) + 1
        if turn.task is None or turn.session is None:
            with tracing.step(name, use):
                return codec.copy(await _run_step(fn, args, kwargs))
        async with self._steps_loading:
            if self._steps is None:
                self._steps = await turn.session.load_steps()
        if (name, use) in self._steps:
            return codec.decode(self._steps[name, use])
        with tracing.step(name, use):
            result = codec.encode(await _run_step(fn, args, kwargs))
        check_size(codec.size(result), "MAX_RESULT_BYTES", "the result of a step")
        await turn.session.save_step(name, use, result)
        return codec.decode(result)

    def at_commit(self, fn: Callable[..., Any], *args: Any) -> None:
        """Runs synchronous Django ORM code inside this turn's commit transaction.

        ``fn(*args)`` may run again if the database aborts the transaction. If it raises, the turn fails and
        nothing of either is written. It may not call actors.
        """
        if inspect.iscoroutinefunction(fn):
            raise TypeError("at_commit takes a synchronous function")
        self._turn.writing()
        if not self.sandbox:
            self._turn.at_commit.append((fn, args))

    # Sockets

    async def broadcast(self, data: str | bytes, now: bool = False) -> int | None:
        """An event with a text or bytes for everybody connected, when this turn commits; its cursor.

        ``now``: at once instead, outside of the commit, and perhaps not to everybody; None then. Raises
        LimitError past MAX_EVENT_BYTES.
        """
        from agents.sockets.connections import data_tree

        tree = data_tree(data)
        if now:
            from agents.sockets.publisher import publisher
            from agents.sockets.signals import Broadcast

            publisher.signal(self._turn.actor, Broadcast(tree))
            return None
        self._turn.writing()
        return self._turn.emit("broadcast", tree)

    def status(self, text: str) -> None:
        """A transient mark such as "thinking" for user interfaces: at once, outside of the commit.

        It is taken back when this turn's method is over. Empty: none.
        """
        self._status.show(text)

    async def emit(self, type: str, payload: Any = None) -> int:
        """An event of your own type for everybody connected, when this turn commits; its cursor.

        Raises ValueError for a type that is the runtime's own, LimitError past MAX_EVENT_BYTES.
        """
        from agents.sockets.events import RESERVED

        if not type or len(type) > 64 or type in RESERVED:
            raise ValueError(
                "an event's type is non-empty text of up to 64 characters, and none of the runtime's own:"
                f" {', '.join(sorted(RESERVED))}"
            )
        tree = codec.encode(payload)
        check_size(codec.size(tree), "MAX_EVENT_BYTES", "an event")
        self._turn.writing()
        return self._turn.emit(codec.clean_text(type), tree)

    # Hooks

    def initial_state(self) -> StateT:
        """The state of an actor that has written none. Reading it stores nothing."""
        return cast(StateT, {})

    async def on_state_changed(self, next: StateT, prev: StateT) -> None:
        """After every ``set_state`` and ``replace_state``, inside the turn."""

    async def on_create(self) -> None:
        """Once, inside the actor's first turn, before its method."""

    async def on_task(self, name: str, payload: Any, ctx: TaskContext) -> None:
        """A due task whose method this class doesn't have.

        Fails by default, so that an old worker in a rolling deploy doesn't swallow what a new one scheduled.
        """
        raise ActorUnknownMethodError(f"{type(self).__qualname__} has no method {name!r}")

    async def on_parked(self, task: ParkedTask) -> None:
        """A task of this actor used up its retries. Runs as a task of its own, without retries."""

    async def on_resume(self, seqs: list[int]) -> None:
        """An operator who had taken this conversation over has released it.

        ``seqs`` are the numbers of the messages that came and went meanwhile. Runs as a task of its own,
        before any that has waited.
        """

    @classmethod
    def name_for_text(cls, theirs: str, ours: str) -> str:
        """The name of the actor that a text from ``theirs`` to ``ours`` (our number) is for.

        By default as SMS_ADDRESS has it: their number, or both. Asked when a text arrives, before it is
        acknowledged: must be quick. A text for which this raises waits and is tried again.
        """
        from conversations.lines import name_of

        return name_of(theirs, ours)

    async def on_delivery_failed(self, text: dict[str, Any]) -> None:
        """A text of this actor failed for good. Runs as a task of its own, without retries.

        ``text`` has ``id`` (what ``self.sms.send`` returned), ``text``, ``to``, ``from``, ``status``
        ("failed": it was never sent; "undelivered"), ``code`` (the provider's), ``error``, ``attempts``.
        """

    async def on_consent(self, change: dict[str, Any]) -> None:
        """The person whom this actor talks to opted out of texts, or in. As a task, without retries.

        ``change`` has ``state`` ("opted_out" or "opted_in"), ``from`` (their number), ``to`` (ours) and
        ``word``.
        """

    async def authorize(self, request: ConnectionRequest) -> bool:
        """Whether a client may open a socket to this actor. A read: nothing can be written here.

        By default operators (staff that may view actors) and whoever has a token of ``connect_token`` for
        this actor. Asked once for each way in which the client says who it is; PermissionDenied is False.
        """
        return request.is_operator or request.claims is not None

    async def on_connect(self, connection: Connection) -> None:
        """A client was admitted. A turn; raise PermissionDenied to close its socket with 4403."""

    async def on_message(self, connection: Connection, frame: str | bytes) -> None:
        """A frame of a client. Overriding this gives you all frames, as they came, text and binary.

        The protocol is silent then but for ``hello``, and what this class broadcasts and sends goes out as
        it is. If this raises, the socket closes with 1011.
        """

    async def on_request(self, request: AgentRequest) -> Any:
        """Answers HTTP under ``/agents/<kind>/<name>/``, one turn a request, for whom ``authorize`` admits.

        Returns None (204), text, bytes, JSON, or a response of Django's (``HttpResponse``, not streamed). It
        is sent once this turn has committed. Raise PermissionDenied or Http404 for those; what else it raises
        is a 500. Without this method there is nothing at those addresses.
        """

    async def on_disconnect(self, connection: Connection) -> None:
        """A client has left, or its process died. Runs as a task of its own, without retries."""

    def now(self) -> dt.datetime:
        """The time (UTC): the database's at the claim plus what has passed since. Overridden in tests.

        An override also moves what this actor's drain judges due.
        """
        turn: Turn | None = getattr(self, "_turn", None)
        if turn is None:
            return dt.datetime.now(dt.UTC) + clock.offset
        return turn.database_now()

    # The runtime's side

    @classmethod
    def clock(cls) -> dt.datetime | None:
        """What an overridden ``now()`` says; None where the database's clock decides."""
        return None if cls.now is Agent.now else cls.__new__(cls).now()

    @classmethod
    def call_method(cls, method: str, *, from_outside: bool = False) -> Callable[..., Any]:
        """The function behind a callable method.

        From outside (browsers, API clients) only ``@exposed`` methods are. Raises ActorUnknownMethodError
        and ActorPrivateMethodError.
        """
        if method.startswith("_") or _is_ours(method):
            raise ActorPrivateMethodError(f"{cls.__qualname__}.{method} is not callable")
        function = _method(cls, method)
        if function is None:
            raise ActorUnknownMethodError(f"{cls.__qualname__} has no async method {method!r}")
        if from_outside and not getattr(function, "__agents_exposed__", False):
            raise ActorPrivateMethodError(f"{cls.__qualname__}.{method} is not exposed")
        return function

    @classmethod
    def task_method(cls, method: str) -> Callable[..., Any] | None:
        """The function that a task of this name runs; None where ``on_task`` gets it."""
        return None if _is_ours(method) else _method(cls, method)

    @staticmethod
    def _check_task_method(method: str) -> None:
        if _is_ours(method):
            raise ActorPrivateMethodError(f"{method!r} belongs to the base class: a task cannot run it")

    async def _hook(self, method: str, payload: Any) -> Any:
        """What a task of the lane ``hook`` runs."""
        if method == "on_parked":
            from scheduler.records import ParkedTask

            return await self.on_parked(ParkedTask(**payload))
        if method == "on_delivery_failed":
            return await self.on_delivery_failed(payload)
        if method == "on_consent":
            return await self.on_consent(payload)
        if method == "on_resume":
            from conversations.takeover import seqs_of

            seqs = await self._turn.read(seqs_of, self._turn.actor.id, payload["takeover"])
            return await self.on_resume(seqs)
        from agents.sockets.connections import Connection

        return await self.on_disconnect(Connection(self._turn, **payload))

    async def _begin(self) -> None:
        """Before the method of every turn that may write."""
        turn = self._turn
        if type(self).now is not Agent.now:
            turn.use_clock(self.now)
        if turn.takes_over:
            from conversations.streams import mend

            await mend(self.messages)
            if turn.session is not None:
                # Also if this turn fails. It doesn't say that on_create has run, which comes only now.
                await turn.session.checkpoint(starts=False)
        if is_text(turn):
            await self.sms.begin()  # joins the turn, remembers who wrote, fetches their pictures
        if not turn.actor.started and type(self).on_create is not Agent.on_create:
            turn.writing()  # the commit that says that it ran
            await self.on_create()


#: Names that no method of an agent may have: the scheduler's, and those of the socket surface.
RESERVED = frozenset({"alarm", "call", "stop", "sync", "tell"})


@lru_cache(1024)  # asked of every task, and of what anybody calls
def _is_ours(method: str) -> bool:
    """Whether a name belongs to the base class, or to the runtime."""
    return any(method in base.__dict__ for base in Agent.__mro__) or method in RESERVED


def _method(cls: type[Agent[Any]], method: str) -> Callable[..., Any] | None:
    """The asynchronous method of this name, as it stands in a class: ``getattr`` may run somebody's code."""
    for base in cls.__mro__:
        if method in base.__dict__:
            function = base.__dict__[method]
            return function if inspect.iscoroutinefunction(function) else None
    return None


def _weakly(agent: Agent[Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` of an agent, for what belongs to it and is used by it alone: that does not keep it alive."""
    its = weakref.ref(agent)
    return lambda *args: fn(its(), *args)


def is_text(turn: Turn) -> bool:
    """Whether the turn's task is an inbound text."""
    task = turn.task
    return (
        task is not None
        and task.lane == "inbox"
        and isinstance(task.payload, dict)
        and task.payload.get("channel") == "sms"
    )


async def _run_step(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    token = in_step.set(True)
    try:
        if inspect.iscoroutinefunction(fn):
            return await fn(*args, **kwargs)
        result = await asyncio.to_thread(fn, *args, **kwargs)
        # A lambda or a partial that made a coroutine.
        return await result if inspect.isawaitable(result) else result
    finally:
        in_step.reset(token)
