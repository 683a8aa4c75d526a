"""The runtime of a process: one event loop in a thread of its own, on which all its turns run.

Started on first use, and anew after a fork; never by an import. Views, commands, consumers and Celery tasks
submit to it, so model clients keep their connections and nothing meets a closed loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from django.db import connections

from agents import conf
from agents.bodies import swallow
from agents.engine import Engine
from agents.env import env
from agents.handover import hand_over
from agents.store import get_store
from agents.threads import blocking

logger = logging.getLogger("agents.runtime")
T = TypeVar("T")
# How long a thread that works keeps the interpreter from others that wait for it; Python's own is 0.005. The
# threads of the store work shortly, mostly to give the database something to do.
SWITCH_INTERVAL = 0.0005  # seconds
# Objects that are made before the youngest are looked through; Python's own is 700.
GC_THRESHOLD = 10_000
Work = Callable[[Engine], Coroutine[Any, Any, T]]


class Runtime:
    """An event loop in a thread, and the engine on it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._ready: concurrent.futures.Future[Engine] = concurrent.futures.Future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._main, name="agents-runtime", daemon=True)
        self._thread.start()
        self.engine = self._ready.result()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._begin)
        try:
            while True:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    # Raised by a task that a turn started. It ends that task, not everybody's turns.
                    logger.exception("a task asked the process to exit; it was ended instead")
                else:
                    break
        finally:
            self.loop.close()

    def _begin(self) -> None:
        try:
            self._ready.set_result(Engine(self.loop, get_store()))
        except BaseException as error:
            self.loop.stop()
            self._ready.set_exception(error)

    # Submitting

    def start(
        self, work: Work[T], context: contextvars.Context | None = None
    ) -> concurrent.futures.Future[T]:
        """Runs ``work(engine)`` as a task of the loop, to its end, whatever becomes of the caller.

        ``context`` is what it runs in; by default a copy of the caller's, so that chains of calls are seen.
        """
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        context = contextvars.copy_context() if context is None else context
        context.run(self.engine.confine)

        def finish(task: asyncio.Task[T]) -> None:
            if done.cancelled() or not done.set_running_or_notify_cancel():
                _ = task.cancelled() or task.exception()
            elif task.cancelled():
                done.set_exception(concurrent.futures.CancelledError())
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        hand_over(self.loop, self._launch, work, context, finish)
        return done

    def _launch(
        self, work: Work[T], context: contextvars.Context, finish: Callable[[asyncio.Task[T]], None]
    ) -> None:
        task = self.loop.create_task(context.run(work, self.engine), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(finish)

    async def run(self, work: Work[T]) -> T:
        """The same for a caller on any event loop. A caller that is cancelled doesn't end the work."""
        # To cancel the answer ends the waiting alone.
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()
        if here is self.loop:

            def over(task: asyncio.Task[T]) -> None:
                self._tasks.discard(task)
                _answer(answer, task)

            task = self.loop.create_task(work(self.engine))
            self._tasks.add(task)
            task.add_done_callback(over)
            return await answer

        def finish(task: asyncio.Task[T]) -> None:
            try:
                hand_over(here, _answer, answer, task)
            except RuntimeError:  # the caller's loop is closed: nobody waits
                swallow(task)

        context = contextvars.copy_context()
        context.run(self.engine.confine)
        hand_over(self.loop, self._launch, work, context, finish)
        return await answer

    def run_sync(self, work: Work[T]) -> T:
        """The same for synchronous code, which waits for the result."""
        with blocking():
            return self.start(work).result()

    # The end

    def close(self, grace: float) -> None:
        """Runs what is running for ``grace`` seconds more, gives the rest back, and ends the thread."""
        if self.pid != os.getpid() or self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self.engine.close(grace), self.loop).result()
        asyncio.run_coroutine_threadsafe(env.close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        self.engine.close_threads()


def _answer(answer: asyncio.Future[T], task: asyncio.Task[T]) -> None:
    """On the caller's loop: what became of its work."""
    if answer.done():
        swallow(task)
    elif task.cancelled():
        answer.cancel()
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def settle_down() -> None:
    """For a process that has loaded what it needs and will run turns for long.

    What is there by now stays: the garbage collector need not walk Django's and everybody's modules over and
    over, and looks at what turns leave less often. Saves about a seventh of a turn's processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 5)
    sys.setswitchinterval(SWITCH_INTERVAL)


_runtime: Runtime | None = None
_lock = threading.Lock()


def get_runtime() -> Runtime:
    """This process's runtime, started if it isn't."""
    global _runtime
    runtime = _runtime
    if runtime is not None and runtime.pid == os.getpid():
        return runtime
    with _lock:
        if _runtime is None or _runtime.pid != os.getpid():
            _runtime = Runtime()
        return _runtime


def shutdown(grace: float | None = None) -> None:
    """Ends this process's runtime, if it was started; running turns get ``grace`` seconds."""
    global _runtime
    with _lock:
        runtime, _runtime = _runtime, None
    if runtime is not None:
        runtime.close(conf.get("SHUTDOWN_GRACE") if grace is None else grace)


# What a forked child must neither use nor close.
_of_the_parent: list[Any] = []


def _after_fork() -> None:
    """The child has none of the parent's threads, and must not talk on its connections."""
    global _runtime, _lock
    _of_the_parent.append(_runtime)
    _runtime = None
    _lock = threading.Lock()
    env.reset()
    for alias in connections:
        wrapper = connections[alias]
        # Django's pools of psycopg's: their connections are sockets that parent and child would share.
        pools = getattr(type(wrapper), "_connection_pools", {})
        _of_the_parent.append((wrapper, dict(pools)))
        pools.clear()
        del connections[alias]


os.register_at_fork(after_in_child=_after_fork)
