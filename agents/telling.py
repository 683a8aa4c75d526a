"""Telling: tasks from outside of turns go into inboxes, those of one actor together.

What has come for an actor while its previous tells were on their way goes in one transaction; a lone tell
never waits. In threads of their own: an actor's row may be locked by somebody's long transaction, and the
tells that wait for it must not keep the threads that commit everybody's turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agents import conf, store
from agents.exceptions import DatabaseUnavailableError, OutcomeUnknownError
from agents.store.base import Address, Delayed, Store
from agents.store.patience import PATIENCE, Tries
from agents.store.requests import Alarm
from agents.threads import close_connections
from agents.turn import Tell

THREADS = 2

Answers = tuple[Sequence[bool | BaseException], list[Alarm]]


class Telling:
    """The tells of one process. All methods but ``close`` belong to the engine's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, db: Store) -> None:
        self._loop = loop
        self._store = db
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="agents-tell")
        self._gathered: dict[Address, list[tuple[Tell, asyncio.Future[bool]]]] = {}
        self._under_way: dict[Address, asyncio.Task[None]] = {}

    async def tell(self, told: Tell) -> bool:
        """Returns when it is committed; False where its key had been told before."""
        address = (told.kind, told.name)
        done: asyncio.Future[bool] = self._loop.create_future()
        self._gathered.setdefault(address, []).append((told, done))
        if address not in self._under_way:
            self._under_way[address] = self._loop.create_task(self._carry(address))
        return await done

    async def _carry(self, address: Address) -> None:
        try:
            while waiting := self._gathered.pop(address, []):
                size = conf.get("STORE_BATCH")
                batch, rest = waiting[:size], waiting[size:]
                if rest:
                    self._gathered[address] = rest
                await self._put(batch)
        finally:
            del self._under_way[address]

    async def _put(self, batch: list[tuple[Tell, asyncio.Future[bool]]]) -> None:
        """All of one actor. Where somebody holds its row, that is waited for here, not in a thread."""
        tries = Tries(PATIENCE)
        while batch:
            try:
                answers, alarms = await self._loop.run_in_executor(
                    self._threads, self._work, [told for told, _ in batch]
                )
            except BaseException as error:
                answers, alarms = [error] * len(batch), []
            store.wake([a for a in alarms if a.at is not None])
            delayed = []
            for (told, done), answer in zip(batch, answers, strict=True):
                if done.done():
                    continue  # whoever told it has gone
                if isinstance(answer, Delayed):
                    if not tries.over:
                        delayed.append((told, done))
                        continue
                    answer = DatabaseUnavailableError(f"the actor's row was not to be had: {answer}")
                if isinstance(answer, BaseException):
                    done.set_exception(answer)
                else:
                    done.set_result(answer)
            batch = delayed
            if batch:
                await asyncio.sleep(tries.next_pause())

    def _work(self, tells: Sequence[Tell]) -> Answers:
        try:
            return self._store.tell(tells, wait=False)
        except (DatabaseUnavailableError, OutcomeUnknownError, Delayed) as error:
            return [error] * len(tells), []
        except Exception as error:
            if len(tells) == 1:
                return [error], []
        # A full inbox, a value that the database refuses: it is one tell's, not all's.
        answers: list[bool | BaseException] = []
        alarms: list[Alarm] = []
        for told in tells:
            (answer,), alarmed = self._work([told])
            answers.append(answer)
            alarms += alarmed
            if isinstance(answer, Delayed):  # nobody overtakes it
                answers += [answer] * (len(tells) - len(answers))
                break
        return answers, alarms

    def close(self) -> None:
        close_connections(self._threads)
        self._threads.shutdown(wait=True)
