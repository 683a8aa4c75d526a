"""``self.sql``: the private SQLite database of an actor, as part of its turn.

SQLite runs in threads, over pages that live in the application's own database (``pages.py``): read as they
are needed, and written by the turn's commit if the turn changed them. A statement sees what the turn did
before; what a turn that fails did is never written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agents import conf
from agents.codec import clean_text
from agents.exceptions import SqlError, SqlLimitError, SqlTransactionError, SqlValueError, TurnEndedError
from agents.parts import Part
from agents.sql.connection import Connection
from agents.sql.cursor import SqlCursor
from agents.sql.guard import Mode
from agents.sql.pages import Pages
from agents.sql.transactions import Queue, Transaction, inside
from agents.sql.values import bound

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes

T = TypeVar("T")


class Sql(Part):
    """The SQL database of one actor, as one turn uses it. Statements run one at a time, in order.

    Methods raise SqlError and its kin (docs/sql.md), TurnEndedError after the turn, and where a statement
    writes ReadOnlyTurnError in a ``@reads`` method and StepWriteError inside a step.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._pages = Pages(turn)
        self._connection = Connection(self._pages, read_only=turn.read_only, may_write=turn.may_write)
        self._queue = Queue()
        # Whether the turn knows that there is something to commit.
        self._counted = False

    async def exec(self, query: str, *binds: Any) -> SqlCursor:
        """Runs one statement or several (separated by ``;``); the result of the last.

        ``binds`` are the values of the last statement's ``?``. Each statement takes effect by itself: what
        those before a failing one did stays, unless a ``transaction()`` is around them.
        """
        return await self._exec(query, binds, Mode.FULL)

    async def exec_many(self, query: str, rows: Iterable[Sequence[Any]]) -> int:
        """Runs one statement once for each of the rows of values, for all or for none; rows written."""
        text = _checked(query)
        values = [bound(row) for row in rows]
        return await self._statement(self._connection.execute_many, text, values, self.turn.now())

    async def query_readonly(self, query: str, *binds: Any) -> SqlCursor:
        """Runs one statement that somebody else wrote, such as a model, and that may only read.

        SQLite itself holds it to that; anything else raises SqlForbiddenError and changes nothing.
        """
        return await self._exec(query, binds, Mode.READING)

    def transaction(self) -> Transaction:
        """``async with self.sql.transaction():`` undoes what its block did when that raises; may be nested.

        The exception goes on: catch it around the block, and the turn goes on without what was undone.
        """
        return Transaction(self)

    async def _exec(self, query: str, binds: Sequence[Any], mode: Mode) -> SqlCursor:
        text, values = _checked(query), bound(binds)
        return await self._statement(self._connection.execute, text, values, self.turn.now(), mode)

    async def replace(self, pages: Iterable[bytes]) -> None:
        """Puts another database in this one's place: all its pages, in order (see ``transfer.load``)."""
        self.turn.may_write()
        await self._statement(self._replace, list(pages))

    def _replace(self, pages: list[bytes]) -> None:
        if self._connection.in_transaction:
            raise SqlTransactionError("a database cannot be replaced inside a transaction")
        self._connection.close()
        self._pages.replace(pages)

    # Transactions

    async def _enter(self, transaction: Transaction) -> None:
        async def work() -> None:
            name = f"transaction_{len(self._queue.open) + 1}"
            try:
                await self._in_thread(self._connection.savepoint, name, self.turn.now())
            except asyncio.CancelledError:
                with contextlib.suppress(SqlError):  # it hadn't begun
                    await self._in_thread(self._connection.rollback, name, self.turn.now())
                raise
            transaction.name = name
            self._queue.open.append(transaction)

        await self._in_place(inside(self), work)

    async def _leave(self, transaction: Transaction, *, keep: bool) -> None:
        async def work() -> None:
            connection, name, now = self._connection, transaction.name, self.turn.now()
            try:
                if not keep:
                    await self._in_thread(connection.rollback, name, now)
                    return
                try:
                    await self._in_thread(connection.release, name, now)
                except BaseException:  # a deferred constraint, a limit: it cannot be kept
                    await self._in_thread(connection.rollback, name, now)
                    raise
            finally:
                transaction.over = True
                self._queue.open.remove(transaction)

        try:
            await self._in_place(transaction, work)
        except SqlTransactionError:
            if keep or not transaction.lost:  # what SQLite has undone needs no more
                raise
        self._count()

    # Threads

    async def _statement(self, fn: Callable[..., T], *args: Any) -> T:
        async def work() -> T:
            return await self._in_thread(fn, *args)

        try:
            return await self._in_place(inside(self), work)
        finally:
            self._count()

    async def _in_place(self, scope: Transaction | None, work: Callable[[], Any]) -> Any:
        """Runs work when it is its turn."""
        if self.turn.ended:
            raise TurnEndedError(turn_id=self.turn.id)
        await self._queue.enter(scope)
        try:
            if self.turn.ended:
                raise TurnEndedError(turn_id=self.turn.id)
            return await work()
        finally:
            if self._queue.open and not self._connection.in_transaction:
                for transaction in self._queue.open:
                    transaction.lost = True
                self._queue.open.clear()
            if self.turn.ended:
                self._connection.close()
            self._queue.leave()

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs SQLite in a thread. When the caller is cancelled, the statement is cut and undone first."""
        work = asyncio.ensure_future(self.turn.in_thread(fn, *args))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._connection.cancel()
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            self._connection.cancel(False)
            _ = work.cancelled() or work.exception()
            raise

    def _count(self) -> None:
        """The first change since the last commit is a write of the turn: it now has something to commit."""
        if self._pages.dirty and not self._counted:
            self.turn.writing()
            self._counted = True

    # For the turn

    def check(self) -> None:
        if inside(self) is not None:
            raise SqlTransactionError("a checkpoint inside a transaction would keep half of it")

    def collect(self, writes: Writes) -> None:
        self._pages.collect(writes)  # of transactions that are open: nothing

    def committed(self) -> None:
        self._pages.committed()
        # What was changed while a checkpoint was on its way belongs to the next commit.
        self._counted = False
        self._count()

    def ended(self) -> None:
        if self._queue.running:
            self._connection.cancel()  # the thread closes it
        else:
            self._connection.close()

    async def abandoned(self) -> None:
        self.ended()


def _checked(query: Any) -> str:
    if not isinstance(query, str):
        raise SqlValueError(f"a query is text, got {type(query).__name__}")
    text = clean_text(str.__str__(query))
    maximum = conf.get("MAX_SQL_VALUE_BYTES")
    if len(text) * 4 > maximum and (size := len(text.encode())) > maximum:
        raise SqlLimitError(
            f"the text of a statement has at most {maximum} bytes, this one has {size}",
            limit="MAX_SQL_VALUE_BYTES",
            maximum=maximum,
            actual=size,
        )
    return text
