"""Events as clients see them: from what a turn has just committed, and from rows, with the same result.

An event's body is JSON that was written once, in the process that made or read it; sockets splice it into
their frames. Some types are the runtime's own, and an agent may not emit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import codec
from agents.models import Event as EventRow
from agents.sockets import frames
from agents.turn import Shown

#: ``broadcast``: a text, or bytes as the codec writes them. ``direct``: the same for one connection,
#: ``{"to", "data"}``. ``close``: ``{"to", "code", "reason"}``. ``message``: in the row ``{"seq"}``, shown as
#: the message; ``gone`` stands for one that was erased. ``state``: ``{"patch"}`` or ``{"snapshot"}``.
RESERVED = frozenset({"message", "state", "broadcast", "direct", "close", "gone"})
#: The subscription that an event belongs to; what an agent emits is among ``events``.
SUBSCRIPTIONS = {"message": "messages", "state": "state"}


@dataclass(slots=True)
class Event:
    """One event, as any number of sockets may send it. Not changed once it is made."""

    cursor: int
    type: str
    body: bytes  # JSON
    private: bool = False  # for operators alone
    ends: str = ""  # the stream that this message ends
    _frame: str | None = field(default=None, repr=False, compare=False)

    @property
    def subscription(self) -> str:
        return SUBSCRIPTIONS.get(self.type, "events")

    @property
    def size(self) -> int:
        return len(self.body)

    def frame(self) -> str:
        """The protocol's frame; written for the first socket that sends it."""
        if self._frame is None:
            self._frame = self._build()
        return self._frame

    def _build(self) -> str:
        match self.type:
            case "message":
                return frames.splice("message", self.cursor, message=self.body)
            case "state":
                ((part, tree),) = codec.loads(self.body).items()
                return frames.splice("state", self.cursor, **{part: codec.dumps(tree)})
            case "broadcast":
                return broadcast_frame(self.cursor, codec.loads(self.body))
            case "direct":
                return broadcast_frame(self.cursor, codec.loads(self.body)["data"], direct=True)
        return frames.splice("event", self.cursor, type=codec.dumps(self.type), payload=self.body)

    def data(self) -> str | bytes:
        """What a client of raw frames gets of a broadcast, or of what was sent to it alone."""
        tree = codec.loads(self.body)
        data: str | bytes = codec.decode(tree["data"] if self.type == "direct" else tree)
        return data

    def addressed(self) -> dict[str, Any]:
        """The body of what is for one connection."""
        body: dict[str, Any] = codec.loads(self.body)
        return body


def broadcast_frame(cursor: int | None, tree: Any, *, direct: bool = False) -> str:
    """A ``broadcast`` frame: text as ``data``, bytes as ``base64``; without a cursor it is no event."""
    if isinstance(tree, str):
        return frames.build("broadcast", cursor=cursor, data=tree, direct=direct or None)
    return frames.build("broadcast", cursor=cursor, base64=tree["$bytes"], direct=direct or None)


def of_commit(shown: Iterable[Shown]) -> list[Event]:
    """What a commit has just written."""
    return [
        _message(event.cursor, event.value)
        if event.type == "message"
        else Event(event.cursor, event.type, codec.dumps(event.value))
        for event in shown
    ]


def load(actor_id: int, after: int, limit: int) -> list[Event]:
    """The next events behind a cursor, in order. A message that is gone (erased) leaves an empty place."""
    from conversations import shown as log

    columns = ("cursor", "type", "payload")
    rows = list(
        EventRow.objects.filter(actor_id=actor_id, cursor__gt=after)
        .order_by("cursor")
        .values_list(*columns)[:limit]
    )
    seqs = [payload["seq"] for _, type, payload in rows if type == "message"]
    messages = log.rows_by_seq(actor_id, seqs) if seqs else {}
    return [_event(cursor, type, payload, messages) for cursor, type, payload in rows]


def pack(events: Sequence[Event]) -> list[list[Any]]:
    """Events for the channel layer."""
    return [[e.cursor, e.type, e.body, e.private, e.ends] for e in events]


def unpack(packed: Iterable[Sequence[Any]]) -> list[Event]:
    return [Event(*fields) for fields in packed]


def _event(cursor: int, type: str, payload: Any, messages: dict[int, dict[str, Any]]) -> Event:
    if type != "message":
        return Event(cursor, type, codec.dumps(payload))
    row = messages.get(payload["seq"])
    return Event(cursor, "gone", b"null") if row is None else _message(cursor, row)


def _message(cursor: int, row: Any) -> Event:
    from conversations import shown as log

    stream = (row["metadata"] or {}).get("stream", "")
    return Event(
        cursor,
        "message",
        codec.dumps(log.message(row)),
        private=log.is_private(row),
        ends=stream if isinstance(stream, str) else "",
    )
