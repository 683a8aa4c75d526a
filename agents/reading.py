"""Reading: ``@reads`` methods, which take no lease and see one committed version of their actor.

Each query of a read is followed by a look at the actor's version; if that has moved, the method starts again
on the new one. An actor that keeps moving is read inside one short transaction that sees one moment.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections

from agents import store
from agents.bodies import contained, result_of, swallow
from agents.exceptions import ActorMethodTimeoutError
from agents.observing import turns as observing
from agents.turn import ActorRow, Identity, Reader, Turn

if TYPE_CHECKING:
    from agents.engine import Engine
    from agents.store.base import Address

T = TypeVar("T")

# How often a read starts again because the actor moved; how long the last try, which holds a transaction,
# may take; and how many of those a process makes at once, each with a connection of its own.
READ_TRIES = 4
SNAPSHOT_BUDGET = 5.0  # seconds
SNAPSHOTS = 2

Body = Callable[[Turn], Coroutine[Any, Any, Any]]


class VersionMoved(BaseException):
    """Another turn committed while a read was under way. No error: the method of a read must not catch it."""


class Reads:
    """Runs the reads of one process, on the engine's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._snapshots = asyncio.Semaphore(SNAPSHOTS)

    async def read(self, address: Address, method: str, body: Body, *, budget: float) -> Any:
        """The result of a ``@reads`` method. Raises what it raises, or ActorMethodTimeoutError."""
        began = time.monotonic()
        outcome = "failed"
        try:
            result = await self._read(address, method, body, began + budget)
            outcome = "done"
            return result
        except ActorMethodTimeoutError:
            outcome = "timeout"
            raise
        finally:
            observing.read(address[0], outcome, time.monotonic() - began)

    async def _read(self, address: Address, method: str, body: Body, deadline: float) -> Any:
        for _ in range(READ_TRIES):
            reader = VersionReader(self._engine)
            row = await self._engine.run(load_actor, address)
            reader.watch(row)
            try:
                result = await self._run(row, reader, method, body, deadline)
            except (asyncio.CancelledError, ActorMethodTimeoutError):
                raise
            except BaseException:
                # What a method makes of half an old and half a new version is no error of its own.
                if not reader.moved:
                    raise
            else:
                if not reader.moved:
                    return result
        try:
            async with asyncio.timeout_at(self._engine.loop.time() + deadline - time.monotonic()):
                await self._snapshots.acquire()
        except TimeoutError:
            raise ActorMethodTimeoutError(f"{method} could not read an actor that keeps moving") from None
        try:
            async with SnapshotReader(self._engine) as snapshot:
                row = await snapshot.run(load_actor, address)
                last = min(deadline, time.monotonic() + SNAPSHOT_BUDGET)
                return await self._run(row, snapshot, method, body, last)
        finally:
            self._snapshots.release()

    async def _run(self, row: ActorRow, reader: Reader, method: str, body: Body, deadline: float) -> Any:
        turn = Turn(row, Identity("read", method), reader, read_only=True)
        context = contextvars.copy_context()
        context.run(self._engine.enter, turn)
        task = self._engine.loop.create_task(contained(body(turn)), context=context, name=f"read-{method}")
        try:
            await asyncio.wait([task], timeout=max(0.0, deadline - time.monotonic()))
        finally:
            turn.end()
            if not task.done():
                turn.left_behind = True
                task.cancel()
                task.add_done_callback(swallow)
            turn.let_go()
        if not task.done():
            raise ActorMethodTimeoutError(f"{method} ran past its budget")
        return result_of(task, method)


class VersionReader(Reader):
    """Runs the queries of a read; after each it looks whether the actor is still at the same version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._row: ActorRow | None = None
        self.moved = False

    def watch(self, row: ActorRow) -> None:
        self._row = row

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        result, version = await self._engine.run(self._with_version, fn, *args)
        if self._row is not None and version != self._row.version:
            raise self.moved_on()
        return result

    async def run_unwatched(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._engine.run(fn, *args)

    def moved_on(self) -> BaseException:
        self.moved = True
        return VersionMoved()

    def _with_version(self, fn: Callable[..., T], *args: Any) -> tuple[T, int]:
        from agents.models import Actor

        assert self._row is not None
        result = fn(*args)
        version = Actor.objects.filter(pk=self._row.id).values_list("version", flat=True).first()
        return result, 0 if version is None else version


class SnapshotReader(Reader):
    """Runs the queries of a read in one transaction, on a thread and a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._db = engine.store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agents-snapshot")
        self._stack = ExitStack()

    async def __aenter__(self) -> SnapshotReader:
        try:
            await self.run(self._stack.enter_context, self._db.sql.snapshot())
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        """In the thread's own time: a query that is still running there holds nobody up."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        try:
            self._stack.close()
        finally:
            connections.close_all()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, fn, *args)


def load_actor(address: Address) -> ActorRow:
    """The actor as it is committed now; one that isn't there looks like one that wrote nothing."""
    from agents.models import Actor

    kind, name = address
    now = store.get_store().sql.now()
    columns = ("id", "version", "seq", "cursor", "state", "started")
    row = Actor.objects.filter(kind=kind, name=name).values_list(*columns).first()
    id, version, seq, cursor, state, started = row or (0, 0, 0, 0, None, False)
    return ActorRow(id, kind, name, version, seq, cursor, state, started, now)
