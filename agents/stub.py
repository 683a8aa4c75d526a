"""Stubs: how code outside of an actor talks to it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, connections

from agents import codec, conf, store
from agents.exceptions import (
    LimitError,
    OpenTransactionError,
    SandboxError,
    SynchronousCallError,
)
from agents.sizes import check_size
from agents.turn import Tell, Turn, current_turn, in_commit

logger = logging.getLogger("agents.stub")

if TYPE_CHECKING:
    from agents.agent import Agent

INBOX_RETRIES = 5


class Stub:
    """The address of one actor. ``await stub.method(...)`` is a turn of it; nothing is created by asking.

    ``stub.sync.method(...)`` is the same from synchronous code. ``await stub.tell("method", payload)``
    puts a task into the inbox and returns when that is committed, without waiting for the actor.
    """

    __slots__ = ("_cls", "name")

    def __init__(self, cls: type[Agent[Any]], name: str) -> None:
        self._cls = cls
        self.name = name

    @property
    def kind(self) -> str:
        return self._cls.kind

    @property
    def sync(self) -> SyncStub:
        return SyncStub(self)

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        function = self._cls.call_method(method)  # raises for what may not be called

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(function, method, args, kwargs)

        call.__name__ = method
        return call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stub) and (self.kind, self.name) == (other.kind, other.name)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        return f"<{self.kind}/{self.name}>"

    async def call(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        patience: float | None = None,
        origin: str = "call",
        from_outside: bool = False,
    ) -> Any:
        """One turn of the actor that runs ``method``; its result, as the codec carries it.

        ``patience`` is how long to wait (seconds) for an actor that others hold, before ActorBusyError.
        Raises what the method raises, ActorMethodTimeoutError past its budget, CodecError and LimitError
        for arguments that cannot cross.
        """
        function = self._cls.call_method(method, from_outside=from_outside)
        return await self._call(function, method, args, kwargs or {}, patience, origin)

    async def _call(
        self,
        function: Callable[..., Any],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float | None = None,
        origin: str = "call",
    ) -> Any:
        from agents.runtime import get_runtime

        _not_in_a_transaction()
        return await get_runtime().run(self._turn_of(function, method, args, kwargs, patience, origin))

    async def tell(
        self, method: str, payload: Any = None, *, key: str | None = None, max_retries: int = INBOX_RETRIES
    ) -> bool:
        """Puts a task into the actor's inbox; True, or False where the same ``key`` had been told before.

        Returns when it is committed; inside a turn it is part of that turn's commit (and returns True).
        Raises OpenTransactionError where a transaction is open on this thread: only ``.sync.tell`` joins one.
        """
        told = self._tell(method, payload, key, max_retries)
        turn = current_turn.get()
        if turn is not None:
            _join(turn, told)
            return True
        _not_in_a_transaction()
        from agents.runtime import get_runtime

        runtime = get_runtime()
        return await runtime.run(lambda engine: engine.tell(told))

    async def stop(self, turn_id: Any = None) -> bool:
        """Asks the turn that is running now (only ``turn_id``, if given) to stop; False if none is."""
        from agents.runtime import get_runtime

        return await get_runtime().run(lambda engine: engine.stop((self.kind, self.name), turn_id))

    def _prepare(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float | None,
        origin: str,
        from_outside: bool,
        wanted: Callable[[], bool] | None = None,
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        """Everything that can be refused before the actor is touched; then the call, for the engine."""
        function = self._cls.call_method(method, from_outside=from_outside)
        return self._turn_of(function, method, args, kwargs, patience, origin, wanted)

    def _turn_of(
        self,
        function: Callable[..., Any],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float | None,
        origin: str,
        wanted: Callable[[], bool] | None = None,
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        if in_commit.get():
            raise OpenTransactionError("a function of at_commit cannot call actors")
        given = codec.pack([list(args), kwargs])
        check_size(given.size, "MAX_ARGUMENT_BYTES", "what the method is given")
        if kwargs or not _takes(function, len(args)):
            try:
                _signature(function).bind(None, *args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self._cls.__qualname__}.{method}: {error}") from None
        cls, address = self._cls, (self.kind, self.name)
        budget = cls.call_budget or conf.get("CALL_BUDGET")

        async def body(turn: Turn) -> Any:
            agent = cls(turn)
            if not turn.read_only:
                await agent._begin()
            positional, named = given.value()
            result = codec.pack(await getattr(agent, method)(*positional, **named))
            check_size(result.size, "MAX_RESULT_BYTES", "the result")
            return result.value()

        turn = current_turn.get()
        if getattr(function, "__agents_reads__", False):
            return lambda engine: engine.reads.read(address, method, body, budget=budget)
        if turn is not None and turn.actor.sandbox:
            raise SandboxError(f"a copy calls no other actor: {self.kind}.{method}")
        return lambda engine: engine.call(
            address, method, body, origin=origin, budget=budget, patience=patience, wanted=wanted
        )

    def task(
        self, method: str, payload: Any = None, *, key: str | None = None, max_retries: int = INBOX_RETRIES
    ) -> Tell:
        """What ``tell`` would put into the inbox, checked, for the store: many at once."""
        return self._tell(method, payload, key, max_retries)

    def _tell(self, method: str, payload: Any, key: str | None, max_retries: int) -> Tell:
        self._cls.call_method(method)
        if in_commit.get():
            raise OpenTransactionError("a function of at_commit cannot tell actors")
        if key is not None:
            key = codec.clean_text(key)
            if not 0 < len(key) <= conf.KEY_MAX_LENGTH:
                raise LimitError(
                    f"a key is non-empty text of up to {conf.KEY_MAX_LENGTH} characters",
                    limit="KEY_MAX_LENGTH", maximum=conf.KEY_MAX_LENGTH, actual=len(key),
                )  # fmt: skip
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative, got {max_retries}")
        packed = codec.pack(payload)
        check_size(packed.size, "MAX_PAYLOAD_BYTES", "the payload")
        return Tell(self.kind, self.name, method, packed.tree(), key=key, max_retries=max_retries)


class SyncStub:
    """A stub for synchronous code. Raises SynchronousCallError on an event loop."""

    __slots__ = ("_stub",)

    def __init__(self, stub: Stub) -> None:
        self._stub = stub

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        self._stub._cls.call_method(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(method, args, kwargs)

        call.__name__ = method
        return call

    def call(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        patience: float | None = None,
        from_outside: bool = False,
    ) -> Any:
        """As ``Stub.call``. Raises OpenTransactionError inside a transaction: a turn commits by itself."""
        from agents.runtime import get_runtime

        _not_on_a_loop()
        _not_in_a_transaction()
        call = self._stub._prepare(method, args, kwargs or {}, patience, "call", from_outside)
        return get_runtime().run_sync(call)

    def tell(
        self, method: str, payload: Any = None, *, key: str | None = None, max_retries: int = INBOX_RETRIES
    ) -> bool:
        """As ``Stub.tell``. Inside an open transaction it joins that, and wakes a worker on its commit."""
        from agents.runtime import get_runtime

        _not_on_a_loop()
        told = self._stub._tell(method, payload, key, max_retries)
        turn = current_turn.get()
        if turn is not None:  # a synchronous helper that a turn runs in a thread
            _join(turn, told)
            return True
        if connections[DEFAULT_DB_ALIAS].in_atomic_block:
            return store.tell_in_transaction(told)
        return get_runtime().run_sync(lambda engine: engine.tell(told))

    def stop(self, turn_id: Any = None) -> bool:
        """As ``Stub.stop``."""
        from agents.runtime import get_runtime

        _not_on_a_loop()
        stub = self._stub
        return get_runtime().run_sync(lambda engine: engine.stop((stub.kind, stub.name), turn_id))


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _join(turn: Turn, told: Tell) -> None:
    turn.writing()
    if turn.actor.sandbox and (told.kind, told.name) != (turn.actor.kind, turn.actor.name):
        logger.info("a copy tells %s nothing: %s is dropped", told.kind, told.method)
        return
    turn.tells.append(told)


@cache
def _positions(function: Callable[..., Any]) -> tuple[int, float]:
    """How many arguments a method takes without names: at least, at most. Its own first one is left out."""
    kinds = inspect.Parameter
    least, most = 0, 0.0
    for parameter in list(_signature(function).parameters.values())[1:]:
        needed = parameter.default is kinds.empty
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
            least, most = least + needed, most + 1
        elif parameter.kind is kinds.VAR_POSITIONAL:
            most = math.inf
        elif parameter.kind is kinds.KEYWORD_ONLY and needed:
            return 1, 0
    return least, most


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether so many arguments without names are what a method takes. When in doubt not: then bind them."""
    least, most = _positions(function)
    return least <= count <= most


def _not_in_a_transaction() -> None:
    """A turn commits by itself: what its caller's transaction then rolls back would stand."""
    if connections[DEFAULT_DB_ALIAS].in_atomic_block:
        raise OpenTransactionError


def _not_on_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousCallError
