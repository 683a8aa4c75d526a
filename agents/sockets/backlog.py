"""What sockets read from the database: heads, pages of events, snapshots, streams in progress.

Synchronous, for the hub's threads. Every read is bounded, and none takes a lease or waits for a turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from agents import conf
from agents.masking import masked
from agents.models import Actor
from agents.models import Event as EventRow
from agents.sockets import events
from agents.sockets.events import Event

Address = tuple[str, str]

#: Events of one page.
PAGE = 32
#: Addresses in one query.
ADDRESSES = 1000


@dataclass(slots=True)
class Head:
    """How far an actor has come. One that doesn't exist has no id and has come nowhere."""

    id: int | None = None
    cursor: int = 0
    # Streams in progress: uid -> (take, index of the last chunk).
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamText:
    """A stream in progress and its text so far."""

    uid: str
    take: int
    index: int
    text: str


@dataclass(slots=True)
class Start:
    """Where a client's replay begins, and what it has to know before that."""

    head: Head
    cursor: int
    # {"messages"?, "state"?}, where the client has nothing to go on from.
    snapshot: dict[str, Any] | None = None
    # Nothing was written yet: what the state is, the class says.
    initial_state: bool = False
    streams: list[StreamText] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asks to begin with."""

    cursor: int | None
    messages: bool
    state: bool
    deltas: bool
    private: bool  # also what only operators see


def heads(addresses: Iterable[Address]) -> dict[Address, Head]:
    """The heads of these actors, in one query (for up to ADDRESSES of them)."""
    wanted = list(dict.fromkeys(addresses))
    found: dict[Address, Head] = {address: Head() for address in wanted}
    columns = ("kind", "name", "id", "cursor", "streams__uid", "streams__take", "streams__chunks")
    for start in range(0, len(wanted), ADDRESSES):
        names: dict[str, list[str]] = defaultdict(list)
        for kind, name in wanted[start : start + ADDRESSES]:
            names[kind].append(name)
        which = Q()
        for kind, of_kind in names.items():
            which |= Q(kind=kind, name__in=of_kind)
        for kind, name, id, cursor, uid, take, chunks in Actor.objects.filter(which).values_list(*columns):
            head = found[kind, name]
            head.id, head.cursor = id, cursor
            if uid is not None:
                head.streams[uid] = (take, chunks - 1)
    return found


def page(actor_id: int, after: int) -> list[Event]:
    """The next events behind a cursor: at most PAGE."""
    return events.load(actor_id, after, PAGE)


def start(address: Address, wanted: Wanted) -> Start:
    """Where to begin. The snapshot is of the very moment of its cursor: both come from one row."""
    from conversations import shown as log

    columns = ("id", "cursor", "seq", "state")
    kind, name = address
    row = Actor.objects.filter(kind=kind, name=name).values_list(*columns).first()
    id, cursor, seq, state = row or (None, 0, 0, None)
    found = Start(Head(id, cursor), cursor)
    if wanted.cursor is not None and _follows(id, wanted.cursor, cursor):
        found.cursor = wanted.cursor
    else:
        found.snapshot = {}
        if wanted.messages:
            count = conf.get("SNAPSHOT_MESSAGES")
            newest = log.newest(id, seq, count, private=wanted.private) if id is not None else []
            found.snapshot["messages"] = newest
        if wanted.state:
            found.initial_state = state is None
            found.snapshot["state"] = masked(kind, state)
    if wanted.deltas and id is not None:
        found.streams = streams(id)
    return found


def _follows(actor_id: int | None, cursor: int, head: int) -> bool:
    """Whether everything behind this cursor is still kept. One beyond the head is another actor's."""
    if cursor >= head or actor_id is None:
        return cursor == head
    return EventRow.objects.filter(actor_id=actor_id, cursor=cursor + 1).exists()


def streams(actor_id: int, uid: str | None = None) -> list[StreamText]:
    """An actor's streams in progress (or the one of them), in the order in which they were opened."""
    from conversations import streams as log

    found = log.in_progress(actor_id, uid)
    return [StreamText(s.uid, s.take, s.chunks - 1, text) for s, text in found]
