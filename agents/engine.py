"""The engine: takes an actor, runs one method, commits what it wrote. One an event loop, one loop a process.

A turn passes through here in the order of docs/architecture.md: turnstile (this process's queue), claim,
body, commit. The database is touched only through the store, in its threads; no connection is held while
the body runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from agents import conf, store
from agents.addresses import Addresses
from agents.batcher import Batcher
from agents.bodies import contained, result_of, swallow
from agents.deadlines import Deadlines
from agents.exceptions import (
    ActorBusyError,
    ActorMethodError,
    ActorMethodTimeoutError,
    ActorStoppedError,
    DatabaseUnavailableError,
    OutcomeUnknownError,
    RuntimeShutdownError,
    TurnLostError,
)
from agents.leases import Heartbeat, Lease
from agents.observing import metrics
from agents.observing import turns as observing
from agents.reading import Reads
from agents.session import TurnSession
from agents.store.base import Address, Delayed, Store
from agents.store.patience import COMMIT_PATIENCE, PATIENCE, Tries
from agents.store.requests import Claim, Claimed, Commit, Committed
from agents.taking import take
from agents.telling import Telling
from agents.threads import OrmExecutor, close_connections
from agents.turn import Identity, Reader, Tell, Turn, current_turn, in_step
from agents.turn_commits import commit_of, settle
from agents.turnstile import Turnstile
from agents.waits import call_chain, waiting_turns

logger = logging.getLogger("agents.engine")
T = TypeVar("T")

# Threads for what agents' code gives to ``asyncio.to_thread``, synchronous steps among it.
OTHER_THREADS = 64
# What turns left running when the process ends has this long to end by itself.
CLOSING = 5.0  # seconds

Body = Callable[[Turn], Coroutine[Any, Any, Any]]


@dataclass(eq=False)
class Run:
    """A turn whose body is running: what may end it early, and why."""

    turn: Turn
    lease: Lease
    loop: asyncio.AbstractEventLoop
    budget: float
    task: asyncio.Task[Any] | None = None
    ended: asyncio.Future[None] | None = None
    # Why the body was cancelled: timeout | stopped | shutdown | lost | overdue. None: it was not.
    reason: str | None = None
    grace: asyncio.TimerHandle | None = None

    def end(self, reason: str) -> None:
        """Cancels the body. The first reason stands; a lease that is void ends the waiting at once."""
        if self.ended is None or self.ended.done():
            return
        if self.reason is None:
            self.reason = reason
            if self.task is not None:
                self.task.cancel()
                self.task.add_done_callback(self.over)  # it may not have begun
            if reason in ("timeout", "stopped", "shutdown"):
                self.grace = self.loop.call_later(conf.get("BUDGET_GRACE"), self.end, "overdue")
        if reason in ("lost", "overdue"):
            self.over()

    def over(self, _: object = None) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


def _nobody_hears(why: str) -> None:
    """What becomes of a lease whose turn is over, or has not begun."""


class Engine(Reader):
    """Runs turns on the event loop it was made on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, db: Store) -> None:
        self.loop = loop
        self.store = db
        self.turnstile = Turnstile()
        self.runs: set[Run] = set()
        self.budgets = Deadlines(loop)
        self.reads = Reads(self)
        self.addresses = Addresses(loop, lambda wanted: self.in_store_when_free(db.ensure, wanted))
        # Closing: no turn begins but those that running ones call. Closed: none at all.
        self.closing = self.closed = False
        self.going: asyncio.Future[None] = loop.create_future()  # done when closing
        threads = conf.get("STORE_THREADS")
        self._store_threads = ThreadPoolExecutor(threads, thread_name_prefix="agents-store")
        self.orm_executor = OrmExecutor(conf.get("ORM_THREADS"), thread_name_prefix="agents-orm")
        size = conf.get("STORE_BATCH")
        self.claims: Batcher[Claim, Claimed | None] = Batcher(
            db.claim,
            self._store_threads,
            size=size,
            lanes=max(1, threads - 1),
            under_way=lambda: self.turnstile.held,
            told=metrics.store_batches("claim"),
        )
        self._commit_now = functools.partial(db.commit, wait=False)
        self.commits: Batcher[Commit, Committed] = Batcher(
            self._commit_now,
            self._store_threads,
            size=size,
            lanes=max(1, threads - 1),
            under_way=lambda: self.turnstile.held,
            told=metrics.store_batches("commit"),
        )
        metrics.turns_running.set_function(lambda: len(self.runs))
        # What agents' code runs in threads: asgiref's thread-sensitive calls (the asynchronous ORM) in those
        # that are bounded like connections are, ``asyncio.to_thread`` and synchronous steps in the others.
        self._orm_context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[self._orm_context] = self.orm_executor
        self._other_threads = OrmExecutor(OTHER_THREADS, thread_name_prefix="agents-other")
        loop.set_default_executor(self._other_threads)
        self.telling = Telling(loop, db)
        self.heartbeat = Heartbeat(db)
        self.heartbeat.start()

    # Threads

    async def in_store(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs a store's verb in one of its threads."""
        return await self.loop.run_in_executor(self._store_threads, fn, *args)

    async def in_store_when_free(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs a store's verb that may be Delayed, as often as it takes.

        An application's transaction may hold the row that it needs for as long as it likes: that is waited
        for here, not in the few threads that everybody's claims and commits need.
        """
        tries = Tries(PATIENCE)
        while True:
            try:
                return await self.in_store(functools.partial(fn, *args, wait=False))
            except Delayed as error:
                if tries.over:
                    raise DatabaseUnavailableError(f"the actor's row was not to be had: {error}") from error
                await asyncio.sleep(tries.next_pause())

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs synchronous code that uses the ORM, with a connection that is healthy and given back."""
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(self.orm_executor, context.run, fn, *args)

    # Tells and stops

    async def tell(self, told: Tell) -> bool:
        """Puts a task into an inbox; False where its key had been told before."""
        return await self.telling.tell(told)

    async def stop(self, address: Address, turn_id: uuid.UUID | None) -> bool:
        """Asks the turn that is running now to stop; False where none is, or another than ``turn_id``."""
        actor_id = (await self.in_store(self.store.find, [address])).get(address)
        if actor_id is None:
            return False
        stopped = await self.in_store_when_free(self.store.stop, actor_id, turn_id)
        for run in self.runs:
            if run.turn.id == stopped:
                run.end("stopped")
        return stopped is not None

    # Contexts

    def confine(self) -> None:
        """Lets the asynchronous ORM of the context that this runs in work in the engine's threads.

        asgiref otherwise sends every such call of the process through one thread, whose connection nobody
        refreshes.
        """
        SyncToAsync.thread_sensitive_context.set(self._orm_context)

    def enter(self, turn: Turn) -> None:
        """Makes the context that this runs in the turn's own, whoever asked for it."""
        current_turn.set(turn)
        in_step.set(False)
        self.confine()
        if not turn.read_only:  # a read holds nothing that anybody could wait for
            call_chain.set((*waiting_turns(), turn))

    # Calls

    async def call(
        self,
        address: Address,
        method: str,
        body: Body,
        *,
        origin: str = "call",
        budget: float,
        patience: float | None = None,
        wanted: Callable[[], bool] | None = None,
        framework: bool = False,
    ) -> Any:
        """One turn of one actor that answers its caller: waits for the actor, runs, commits.

        Raises ActorPausedError where turns of the actor's agent don't begin now. ``framework``: the body runs
        no code of the agent, and begins all the same.
        ``wanted`` is asked when the actor is free at last: a turn that nobody waits for then does not begin.
        """
        identity = Identity(origin, method, framework=framework)
        asked = time.monotonic()
        deadline = asked + (conf.get("PATIENCE") if patience is None else patience)
        try:
            claimed, waits = await take(self, address, identity.id, deadline, framework=framework)
        except BaseException as error:
            observing.refused(address[0], error)
            raise
        turn = Turn(claimed.actor, identity, self)
        turn.waited = turn.claimed_at - asked
        turn.takes_over = claimed.takes_over
        try:
            try:
                if wanted is not None and not wanted():
                    raise ActorBusyError("nobody waits for this turn any more")
                result = await self.run_body(turn, claimed, body, budget)
                commit = commit_of(turn, claimed, "done")
            except BaseException as error:
                if isinstance(error, Exception) and getattr(error, "turn_id", None) is None:
                    with suppress(AttributeError):
                        error.turn_id = turn.id  # type: ignore[attr-defined]
                await self._give_back(turn, claimed)
                observing.failed(turn, error)
                raise
            self.announce(await self._final(turn, claimed, commit))
            observing.committed(turn, wrote=commit.dirty)
            return result
        finally:
            turn.let_go()
            self.heartbeat.drop(claimed.token)
            self.turnstile.leave(claimed.actor.id)
            if waits is not None:
                await waits.over()

    async def _give_back(self, turn: Turn, claimed: Claimed) -> None:
        """Frees the lease of a turn that writes nothing (any more)."""
        await turn.abandoned()
        release = Commit(turn.actor.id, claimed.token, turn.id, turn.actor.version, dirty=False)
        try:
            self.announce(await self.commit(release))
        except TurnLostError:
            pass  # somebody else holds it: there is nothing to free
        except Exception:
            logger.exception("a lease could not be freed; it ends by itself in %g s", conf.get("LEASE"))

    async def run_body(self, turn: Turn, claimed: Claimed, body: Body, budget: float) -> Any:
        """The body alone: with its budget, its stops, its place in the chain of calls.

        Raises what it raises, or why it was ended; ``turn.ended_by`` tells the two apart. When this returns
        the turn's fence is known: what it asked for in its middle has happened or failed.
        """
        session = turn.session = TurnSession(self, turn, claimed)
        if self.refuses():
            turn.ended, turn.ended_by = True, "shutdown"
            raise RuntimeShutdownError(turn_id=turn.id)
        grace = conf.get("BUDGET_GRACE")
        run = Run(turn, self._lease(claimed, turn, budget + grace), self.loop, budget)
        run.lease.ended = lambda why: self.loop.call_soon_threadsafe(run.end, why)  # type: ignore[assignment]
        context = contextvars.copy_context()
        context.run(self.enter, turn)
        observing.began(turn, context)
        run.ended = self.loop.create_future()
        run.task = self.loop.create_task(
            contained(body(turn), run.over), context=context, name=f"turn-{turn.method}"
        )
        self.budgets.set(run, budget, functools.partial(run.end, "timeout"))
        self.runs.add(run)
        self.heartbeat.hold(run.lease)
        try:
            await run.ended
        finally:
            self.budgets.drop(run)
            if run.grace is not None:
                run.grace.cancel()
            turn.end()
            run.lease.over, run.lease.ended = True, _nobody_hears
            self.runs.discard(run)
        await session.over()
        if run.lease.void and run.reason is None:
            run.reason = "lost"
        turn.ended_by, turn.left_behind = run.reason, not run.task.done()
        return self._outcome(run, budget)

    def _outcome(self, run: Run, budget: float) -> Any:
        turn, task = run.turn, run.task
        assert task is not None
        if not task.done():
            task.add_done_callback(swallow)
        elif run.reason is not None and not task.cancelled():
            task.exception()  # what the cancelled body raised is not the reason
        match run.reason:
            case None:
                return result_of(task, turn.method)
            case "stopped":
                raise ActorStoppedError(f"{turn.method} was stopped", turn_id=turn.id)
            case "shutdown":
                raise RuntimeShutdownError(turn_id=turn.id)
            case "lost":
                raise TurnLostError(turn_id=turn.id)
            case _:
                raise ActorMethodTimeoutError(
                    f"{turn.method} ran past its budget of {budget:g} s", turn_id=turn.id
                )

    def _lease(self, claimed: Claimed, turn: Turn, seconds: float) -> Lease:
        return Lease(
            claimed.actor.id, claimed.token, turn.id, time.monotonic() + seconds, ended=_nobody_hears
        )

    def refuses(self) -> bool:
        """Whether no turn may begin here; in their grace, running turns may still call others."""
        return self.closed or (self.closing and not waiting_turns())

    # Commits

    async def commit(self, commit: Commit) -> Committed:
        """Commits, as often as it takes.

        An application's transaction may hold the row of the actor, or of one that is told something, for as
        long as it likes: that is waited for here, not in the few threads that everybody's commits need.
        """
        tries = Tries(COMMIT_PATIENCE)
        while True:
            try:
                if commit.at_commit:
                    return await self._commit_apart(commit)
                return await self.commits.submit(commit)
            except Delayed as error:
                if tries.over:
                    raise TurnLostError(
                        f"the database kept aborting the commit: {error}", turn_id=commit.turn_id
                    ) from error
                await asyncio.sleep(tries.next_pause())

    async def _commit_apart(self, commit: Commit) -> Committed:
        """The application's code runs in it: not in a thread that others' commits need."""
        try:
            (outcome,) = await self.loop.run_in_executor(self.orm_executor, self._commit_now, [commit])
        except (SystemExit, KeyboardInterrupt) as error:
            raise ActorMethodError(f"a function given to at_commit raised {error!r}") from error
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _final(self, turn: Turn, claimed: Claimed, commit: Commit) -> Committed:
        try:
            committed = await self.commit(commit)
        except OutcomeUnknownError as error:
            observing.failed(turn, error)
            raise  # it may have happened: what the parts prepared for it stays
        except BaseException as error:
            # Refused: nothing was written. Lost: then there is nothing to free, and nobody is harmed.
            await self._give_back(turn, claimed)
            observing.failed(turn, error)
            raise
        settle(turn, commit, committed)
        return committed

    def announce(self, committed: Committed) -> None:
        alarms = [a for a in committed.alarms if a.at is not None]
        if alarms:
            store.wake(alarms)

    # The end

    async def close(self, grace: float) -> None:
        """No new turns; running ones get ``grace`` seconds, then they are cancelled and given back."""
        self.closing = True
        if not self.going.done():
            self.going.set_result(None)
        if self.runs and grace > 0:
            await asyncio.wait([r.ended for r in self.runs if r.ended], timeout=grace)
        self.closed = True
        for run in list(self.runs):
            run.end("shutdown")
        if self.runs:
            await asyncio.wait([r.ended for r in self.runs if r.ended], timeout=conf.get("BUDGET_GRACE") + 1)
        # The transactions that give the leases back are still on their way.
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        if others:
            _, left = await asyncio.wait(others, timeout=CLOSING)
            for task in left:  # what turns started and left running, bodies that don't end
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1)

    def close_threads(self) -> None:
        self.heartbeat.stop()
        close_connections(self._store_threads)
        self._store_threads.shutdown(wait=True)
        self.telling.close()
        # Their connections are given back after each use.
        self.orm_executor.close()
        self._other_threads.close()
