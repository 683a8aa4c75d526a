"""How many tasks may be pending for one actor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agents import conf
from agents.exceptions import InboxFullError, LimitError
from agents.store.requests import Commit
from agents.store.rows import TASK
from agents.store.statements import Address, LockedRow
from agents.turn import Tell

Lane = tuple[int, str]  # an actor, and one of its lanes

# By lane. Hooks are not counted: they are as many as the tasks and the sockets that they are about.
LIMITS = {"inbox": ("MAX_INBOX", InboxFullError), "timer": ("MAX_PENDING_TASKS", LimitError)}


def told(tells: Iterable[Tell], ids: dict[Address, int]) -> Counter[Lane]:
    """Pending tasks that these would add."""
    return Counter((ids[t.kind, t.name], t.lane) for t in tells if t.lane in LIMITS)


def additions(commit: Commit, ids: dict[Address, int]) -> Counter[Lane]:
    """Pending tasks that a commit adds, not counting what it takes away."""
    added = told(commit.tells, ids)
    for table, row in commit.writes.inserts:
        if table.model == TASK.model and row["lane"] in LIMITS:
            added[row["actor_id"], row["lane"]] += 1
    return added


class Room:
    """Whether locked actors have room for more tasks.

    Only who adds some is ever refused, so a full actor can always be drained, also where a limit was lowered.
    """

    def __init__(self, rows: dict[int, LockedRow]) -> None:
        self._rows = rows
        self._added: Counter[Lane] = Counter()
        # Whether something may not fit: it does if enough goes in the same transaction.
        self.tight = False

    def takes(self, added: Counter[Lane]) -> bool:
        """Whether these fit for sure, with all before them, even if nothing goes (a task that is replaced, a
        key that was seen before). They are added either way."""
        fits = True
        for (actor_id, lane), count in added.items():
            self._added[actor_id, lane] += count
            row = self._rows.get(actor_id)
            pending = row.pending.get(lane, 0) if row else 0
            if pending + self._added[actor_id, lane] > conf.get(LIMITS[lane][0]):
                fits = False
        self.tight |= not fits
        return fits

    def check(self, pending: dict[int, dict[str, int]]) -> None:
        """Raises LimitError or InboxFullError for an actor that ended with more than it may and it had."""
        for actor_id, lane in self._added:
            name, error = LIMITS[lane]
            maximum, actual = conf.get(name), pending.get(actor_id, {}).get(lane, 0)
            row = self._rows[actor_id]
            if actual > maximum and actual > row.pending.get(lane, 0):
                what = "the inbox of {} is full" if lane == "inbox" else "{} has too many pending tasks"
                raise error(what.format(f"{row.kind}/{row.name}"), limit=name, maximum=maximum, actual=actual)
