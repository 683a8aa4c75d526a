"""Connections: the open sockets of an actor, over all processes, as its agent sees them and as rows.

Each has a row as long as its process speaks of it. The rows are no part of any turn; what an agent sends to
one connection is, and goes the way of all events.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models.functions import Now

from agents import codec, faults, kinds, store
from agents.exceptions import AgentsError
from agents.models import Connection as Row
from agents.sizes import check_size
from agents.sockets import backlog
from agents.sockets.backlog import Head
from agents.sockets.signals import Broadcast
from agents.turn import Tell, Turn

if TYPE_CHECKING:
    from agents.agent import Agent

logger = logging.getLogger("agents.sockets")

NORMAL = 1000
#: Codes that an agent may close with: of RFC 6455 those that mean something coming from here; its own.
CLOSE_CODES = frozenset({1000, 1001, 1008, 1009, 1011, 1012, 1013}) | frozenset(range(3000, 5000))
MAX_REASON = 123  # bytes: RFC 6455, section 5.5

#: Connections in one statement.
BATCH = 1000


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one connection."""

    id: str
    kind: str
    name: str
    user_id: str = ""
    claims: dict[str, Any] | None = None
    headers: Mapping[str, str] | None = None

    def payload(self) -> dict[str, Any]:
        """What the task of ``on_disconnect`` carries."""
        return {
            "id": self.id,
            "user_id": self.user_id,
            "claims": self.claims,
            "headers": dict(self.headers or {}),
        }


class Connection:
    """One client of this actor, in a turn: ``id``, ``user_id``, ``claims``, ``headers``.

    ``user_id`` is the primary key of the signed-in user as text, empty for nobody. ``claims`` are those of
    the token that admitted it, empty without one. ``headers`` have lower-case names and no secrets.
    """

    def __init__(
        self,
        turn: Turn,
        id: str,
        user_id: str = "",
        claims: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._turn = turn
        self.id = id
        self.user_id = user_id
        self.claims: dict[str, Any] = dict(claims or {})
        self.headers: dict[str, str] = dict(headers or {})

    def __repr__(self) -> str:
        return f"<Connection {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def send(self, data: str | bytes, now: bool = False) -> int | None:
        """Sends a text or bytes to this connection alone, when the turn commits; the event's cursor.

        ``now``: at once, outside of the commit, and perhaps not at all; None then. Raises LimitError past
        MAX_EVENT_BYTES. To a connection that is closed nothing is sent.
        """
        tree = data_tree(data)
        if now:
            from agents.sockets.publisher import publisher

            publisher.signal(self._turn.actor, Broadcast(tree, to=self.id))
            return None
        self._turn.writing()
        return self._turn.emit("direct", {"to": self.id, "data": tree})

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Closes it when the turn commits, behind what was sent to it before.

        ``code`` is 3000 to 4999, or one of RFC 6455 that a server may say. The reason has room for 123
        bytes. Raises ValueError for another code.
        """
        if code not in CLOSE_CODES:
            raise ValueError(f"a socket closes with 1000 or 3000 to 4999, got {code!r}")
        short = codec.clean_text(reason).encode()[:MAX_REASON].decode(errors="ignore")
        self._turn.writing()
        self._turn.emit("close", {"to": self.id, "code": code, "reason": short})


class Connections:
    """``self.connections``: who is connected to this actor, over all processes.

    A process that died is noticed within CONNECTION_EXPIRY seconds.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    async def count(self) -> int:
        """How many sockets are open."""
        actor = self._turn.actor
        return await self._turn.read(lambda: Row.objects.to(actor.kind, actor.name).live().count())

    async def list(self) -> list[Connection]:
        """All of them, the oldest first."""
        actor = self._turn.actor

        def read() -> list[tuple[uuid.UUID, str, Any, Any]]:
            rows = Row.objects.to(actor.kind, actor.name).live().order_by("connected_at", "id")
            return list(rows.values_list("id", "user_id", "claims", "headers"))

        rows = await self._turn.read(read)
        return [Connection(self._turn, id.hex, user, claims, headers) for id, user, claims, headers in rows]


def data_tree(data: Any) -> Any:
    """A text or bytes as an event carries them. Raises TypeError, LimitError."""
    if not isinstance(data, str | bytes):
        raise TypeError(f"clients are sent text or bytes, got {type(data).__name__}")
    tree = codec.encode(data)
    check_size(codec.size(tree), "MAX_EVENT_BYTES", "what is sent")
    return tree


# Rows: synchronous, in batches, for the hub's threads


def opened(several: Sequence[Facts]) -> list[Head]:
    """Writes the rows of new connections; for each the head of its actor."""
    _insert(several)
    heads = backlog.heads((facts.kind, facts.name) for facts in several)
    return [heads[facts.kind, facts.name] for facts in several]


def closed(several: Sequence[Facts]) -> list[BaseException | None]:
    """Deletes the rows of connections that ended, and tells ``on_disconnect`` where the class has one."""
    silent = [facts for facts in several if not _has_hook(facts.kind, "on_disconnect")]
    for start in range(0, len(silent), BATCH):
        ids = [facts.id for facts in silent[start : start + BATCH]]
        Row.objects.filter(pk__in=ids).delete()
    return [None if facts in silent else _end(facts) for facts in several]


def refresh(several: Sequence[Facts]) -> None:
    """Says that these live. One whose row is gone (this process was thought dead) gets it back."""
    by_id = {facts.id: facts for facts in several}
    ids = list(by_id)
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        if Row.objects.filter(pk__in=some).update(seen_at=Now()) < len(some):
            there = {pk.hex for pk in Row.objects.filter(pk__in=some).values_list("pk", flat=True)}
            _insert([by_id[id] for id in some if id not in there])


def expire() -> int:
    """Deletes the rows of dead processes and tells ``on_disconnect``; how many there were."""
    rows = Row.objects.gone().order_by("seen_at")[:BATCH]
    columns = ("id", "kind", "name", "user_id", "claims", "headers")
    gone = [Facts(id.hex, *rest) for id, *rest in rows.values_list(*columns)]
    for facts in gone:
        if _has_hook(facts.kind, "on_disconnect"):
            _end(facts, dead=True)
        else:
            Row.objects.gone().filter(pk=facts.id).delete()
    return len(gone)


def claim(facts: Facts) -> None:
    """A fresh token said something else of the client."""
    Row.objects.filter(pk=facts.id).update(claims=facts.claims)


def greet(facts: Facts) -> None:
    """``on_connect`` has run: a part of its turn's commit. A client that has left by then is told of too."""
    if not Row.objects.filter(pk=facts.id).update(greeted=True):
        store.tell_in_transaction(_farewell(facts))


def _insert(several: Sequence[Facts]) -> None:
    Row.objects.bulk_create(
        [
            Row(
                id=uuid.UUID(facts.id),
                kind=facts.kind,
                name=facts.name,
                user_id=facts.user_id,
                claims=facts.claims,
                headers=dict(facts.headers or {}),
                greeted=not _has_hook(facts.kind, "on_connect"),
            )
            for facts in several
        ],
        ignore_conflicts=True,
    )


def _end(facts: Facts, *, dead: bool = False) -> BaseException | None:
    """Deletes one row and tells the hook: both or neither, and once, whoever else tries."""
    row = (Row.objects.gone() if dead else Row.objects.all()).filter(pk=facts.id)
    while True:
        try:
            with transaction.atomic():
                # The actor's row is locked first, as by the commit of ``on_connect``, which greets at
                # its end.
                store.tell_in_transaction(_farewell(facts))
                if row.filter(greeted=True).delete()[0]:
                    return None
                transaction.set_rollback(True)
        except AgentsError as error:
            logger.warning("%s/%s is not told that a client left: %s", facts.kind, facts.name, error)
            row.delete()
            return None
        faults.point("connection.ungreeted")
        if row.filter(greeted=False).delete()[0] or not row.exists():
            return None
        # It was greeted just now, and is told of.


def _farewell(facts: Facts) -> Tell:
    return Tell(
        facts.kind, facts.name, "on_disconnect", codec.encode(facts.payload()), lane="hook", max_retries=0
    )


def _has_hook(kind: str, name: str) -> bool:
    from agents.agent import Agent

    try:
        cls: type[Agent[Any]] = kinds.get(kind)
    except AgentsError:
        return False
    return getattr(cls, name) is not getattr(Agent, name)
