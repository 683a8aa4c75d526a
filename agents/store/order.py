"""The order in which an actor's due tasks run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from agents.store.statements import DRAIN_WINDOW

_NO_TIME = dt.datetime.min.replace(tzinfo=dt.UTC)


def in_order(rows: Iterable[tuple[int, int, bool, dt.datetime, bool]]) -> dict[int, list[int]]:
    """Merges an actor's due timers (by due time) with its inbox (strictly by position).

    ``rows``: (actor, task, whether in the inbox, due at, whether due). The inbox ends at the first of its
    tasks that isn't due: a head that waits for its retry holds up the rest. A task of the inbox runs no
    earlier among the timers than those before it in the inbox.
    """
    timers: dict[int, list[tuple[dt.datetime, int]]] = {}
    inboxes: dict[int, list[tuple[int, dt.datetime, bool]]] = {}
    for actor, task, in_inbox, due_at, due in rows:
        if in_inbox:
            inboxes.setdefault(actor, []).append((task, due_at, due))
        elif due:
            timers.setdefault(actor, []).append((due_at, task))
    merged: dict[int, list[int]] = {}
    for actor in timers.keys() | inboxes.keys():
        entries = timers.get(actor, [])
        held = _NO_TIME
        for task, due_at, due in sorted(inboxes.get(actor, [])):
            if not due:
                break
            held = max(held, due_at)
            entries.append((held, task))
        merged[actor] = [task for _, task in sorted(entries)[:DRAIN_WINDOW]]
    return merged
