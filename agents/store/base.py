"""The store: the short transactions in which turns are claimed and committed.

A batch of claims or commits is one transaction of a few statements. The rules are in Python, once:
``claims.py``, ``commits.py``, ``tells.py``. ``Statements`` names the statements, and ``postgres.py`` and
``sqlite.py`` are the only places with raw SQL, but for what a part looks up by itself (``Query``).

The order inside a commit is what its promises rest on:

1. the rows of all actors that the batch touches are locked, in the order of their ids, in a statement of
   their own (so two batches never wait for each other in a circle, and later statements see what others
   committed while this one waited);
2. the fence is checked: same token, lease still alive, same version;
3. everything is written, the running task ended, the next one begun;
4. last, the actors' rows: numbers, state, lease, and the alarm recomputed from the tasks as they are now.

A connection that dies leaves it open whether its transaction happened. Nothing is repeated before that is
looked up, by the turn's id (a claim: by its token; a tell: by its task's id), and the lookup takes the
actor's lock first: the server may still be busy with what the dead connection sent.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from agents import conf
from agents.store.claims import Claims
from agents.store.commits import Commits
from agents.store.patience import retrying
from agents.store.requests import Alarm, Claim, Claimed, Commit, Committed
from agents.store.rows import TASK, TURN_RECORD, parked_hook, task_row
from agents.store.statements import (
    LOCK_TIMEOUT,
    Address,
    ConnectionLost,
    Delayed,
    Interrupted,
    Statements,
    lock_timeout,
)
from agents.store.tells import Tells, ToldBefore
from agents.turn import Tell
from agents.writes import Row, Table

__all__ = [
    "TASK",
    "TURN_RECORD",
    "Address",
    "ConnectionLost",
    "Delayed",
    "Interrupted",
    "Store",
    "ToldBefore",
    "parked_hook",
    "task_row",
]


class Store:
    """Claims, commits and tells, in batches. Synchronous: call it from a thread that may block.

    Raises DatabaseUnavailableError when the database does not answer for as long as is worth waiting.
    """

    def __init__(self, statements: Statements) -> None:
        self.sql = statements
        self._claims = Claims(statements)
        self._commits = Commits(statements)
        self._tells = Tells(statements)

    # Addresses

    def ensure(self, addresses: Sequence[Address], *, wait: bool = True) -> dict[Address, int]:
        """The ids of these actors; rows that aren't there are made.

        Without ``wait`` raises Delayed where somebody's transaction that hasn't ended makes one of them.
        """
        if not addresses:
            return {}
        wanted, timeout = sorted(set(addresses)), lock_timeout(wait)
        return retrying(lambda: self.sql.ensure(wanted, timeout), wait=wait)

    def find(self, addresses: Sequence[Address]) -> dict[Address, int]:
        """The ids of those of these actors that exist."""
        return retrying(lambda: self.sql.find(sorted(set(addresses)))()) if addresses else {}

    def make(self, addresses: Sequence[Address]) -> dict[Address, int]:
        """The ids of actors that weren't there a moment ago; rows that still aren't are made."""
        if not addresses:
            return {}
        wanted = sorted(set(addresses))
        return retrying(lambda: self.sql.make(wanted, LOCK_TIMEOUT))

    # Turns

    def claim(self, claims: Sequence[Claim]) -> list[Claimed | BaseException | None]:
        """Leases what is free; None where somebody else holds the turn (or the actor is gone).

        A drain's first task is begun and counted here, before its method runs. An error is its own claim's.
        """
        return self._claims.claim(claims)

    def commit(self, commits: Sequence[Commit], *, wait: bool = True) -> list[Committed | BaseException]:
        """Commits turns; each gets its result or the error that is its own. One bad turn harms no other.

        An application's transaction may hold the row of an actor that a turn tells something, or the turn's
        own, for as long as it likes. Then this waits, up to a minute, and the results of the others with
        it; without ``wait`` such a turn's result is Delayed. A lease that ends meanwhile, because nothing
        renews it while the turn's own row is locked or the database away, makes it TurnLostError.
        """
        return self._commits.commit(commits, wait=wait)

    # Tells from outside of turns

    def tell(self, tells: Sequence[Tell], *, wait: bool = True) -> tuple[list[bool], list[Alarm]]:
        """Puts tasks into inboxes, all or none; True for each that was new (its key had not been seen).

        Raises InboxFullError; and without ``wait`` Delayed, where an actor's row is locked by somebody.
        """
        return self._tells.tell(tells, wait=wait)

    def tell_with(
        self, tells: Sequence[Tell], ids: Mapping[Address, int], parts: Mapping[Table, Sequence[Row]]
    ) -> tuple[dict[Table, list[int]], list[Alarm]]:
        """Tasks, and rows of a part that say the same, in one transaction: the ids of the rows, and alarms.

        The actors are known already (``ids``), so it is two round trips. All of it happens or none, and it
        is tried once: raises ToldBefore where a key had been seen, InboxFullError, Interrupted,
        ConnectionLost (then it may have happened) and what the database refuses.
        """
        return self._tells.tell_with(tells, ids, parts)

    def tell_here(self, tells: Sequence[Tell]) -> tuple[list[bool], list[Alarm]]:
        """The same inside the transaction that is open on this thread's connection."""
        return self._tells.tell_here(tells)

    def realarm(self, actor_id: int) -> list[Alarm]:
        """Recomputes one locked actor's alarm inside the transaction open on this thread's connection."""
        return self.sql.update_actors([{"id": actor_id, "tasks": True}], self.sql.now())()

    # Leases

    def renew(self, leases: Sequence[tuple[int, uuid.UUID]]) -> dict[uuid.UUID, bool]:
        """Renews live leases; the tokens that are still ours, and whether their leases were renewed.

        A row that somebody has locked keeps its lease as it is: the next renewal may find it free.
        """
        return retrying(lambda: self.sql.renew(leases, conf.get("LEASE"))) if leases else {}

    def free(self, actor_id: int, token: uuid.UUID) -> bool:
        """Voids a lease whose body cannot be ended: the actor is free at once, the attempt is lost.

        False where it isn't held, or its row is locked just now: then it ends by itself.
        """
        return retrying(lambda: self.sql.free(actor_id, token))

    def stops(self, ids: Sequence[int]) -> dict[int, uuid.UUID]:
        """{actor: turn} for those of these actors whose running turn somebody asked to stop."""
        return retrying(lambda: self.sql.stops(ids)) if ids else {}

    def stop(self, actor_id: int, turn_id: uuid.UUID | None = None, *, wait: bool = True) -> uuid.UUID | None:
        """Asks the running turn (only that one, if given) to stop; its id, or None where none is running.

        Without ``wait`` raises Delayed where its row is locked by somebody.
        """
        return retrying(lambda: self.sql.stop(actor_id, turn_id, lock_timeout(wait)), wait=wait)

    def inspect(self, actor_id: int) -> dict[str, Any] | None:
        """How an actor's lease stands now; None when there is no such actor."""
        return retrying(lambda: self.sql.inspect(actor_id))

    def mark_waiting(self, actor_id: int) -> bool:
        """Asks the drain that holds the actor, in whatever process, to stand back after its task.

        False where nothing was marked: nobody holds the actor, its row is locked just now or gone, or it has
        a mark that is still fresh.
        """
        return retrying(lambda: self.sql.mark_waiting(actor_id))

    def wait_for(self, actor_id: int, token: uuid.UUID, target_id: int | None, *, wait: bool = True) -> None:
        """Says on an actor's row that its turn waits for another actor (None: no longer).

        Without ``wait`` raises Delayed where the row is locked by somebody.
        """
        retrying(lambda: self.sql.wait_for(actor_id, token, target_id, lock_timeout(wait)), wait=wait)

    def sweep(self, kinds: Sequence[str], limit: int, within: dt.timedelta) -> list[Alarm]:
        """Free actors of these kinds whose alarm is due, or will be ``within`` that time; oldest first."""
        return retrying(lambda: self.sql.sweep(kinds, limit, within)) if kinds else []
