"""Who may run a statement now: one at a time, and inside a transaction only those who are inside it.

A transaction belongs to the context (``contextvars``) in which it was entered, and to the tasks that are
started there. Others of the same turn wait until it is over, so nothing of theirs is undone with it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from agents.exceptions import SqlTransactionError

if TYPE_CHECKING:
    from agents.sql.database import Sql

#: The innermost transaction of the running context, of whichever actor.
_inside: contextvars.ContextVar[Transaction | None] = contextvars.ContextVar("agents_sql", default=None)


class Transaction:
    """``async with self.sql.transaction():`` keeps what its block does, or undoes it if that raises."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._token: contextvars.Token[Transaction | None] | None = None
        self.name = ""
        #: Ended, or undone by SQLite itself when a statement failed.
        self.over = self.lost = False

    async def __aenter__(self) -> None:
        if self.name:
            raise SqlTransactionError("a transaction is entered once")
        await self._sql._enter(self)
        self._token = _inside.set(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _inside.reset(self._token)
        await self._sql._leave(self, keep=error is None)


def inside(sql: Sql) -> Transaction | None:
    """The innermost transaction of this actor's database that the running context is inside of."""
    transaction = _inside.get()
    return transaction if transaction is not None and transaction._sql is sql else None


class Queue:
    """Statements of one turn, first come, first served among those that may run."""

    def __init__(self) -> None:
        self.open: list[Transaction] = []  # the innermost last
        self._running = False
        self._waiting: deque[tuple[Transaction | None, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> bool:
        return self._running

    async def enter(self, scope: Transaction | None) -> None:
        """Waits until a statement of this scope may run. Raises SqlTransactionError if the scope is over."""
        if self._running or not self._may_run(scope):
            place = asyncio.get_running_loop().create_future()
            self._waiting.append((scope, place))
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self.leave()
                raise
        self._running = True
        if scope is not None and (scope.over or scope.lost):
            self.leave()
            if scope.lost:
                raise SqlTransactionError("SQLite undid this transaction when a statement in it failed")
            raise SqlTransactionError("this transaction is over")

    def leave(self) -> None:
        """The statement is done: the next one's turn."""
        self._running = False
        for entry in list(self._waiting):
            scope, place = entry
            if place.done():
                self._waiting.remove(entry)
            elif self._may_run(scope):
                self._waiting.remove(entry)
                self._running = True  # handed over: nobody may come between
                place.set_result(None)
                return

    def _may_run(self, scope: Transaction | None) -> bool:
        if scope is not None and (scope.over or scope.lost):
            return True  # to be told so
        return scope is (self.open[-1] if self.open else None)
