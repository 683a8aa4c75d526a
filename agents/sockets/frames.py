"""Frames of the socket protocol, version 1 (docs/protocol.md): parsed, checked, built. Pure.

What a client sent becomes one of the dataclasses below or raises a FrameError that says what is wrong with
it; nothing of it is trusted. What the server sends is built as JSON text.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agents import codec
from agents.exceptions import CodecError, FrameError, FrameVersionError, UnknownFrameError
from agents.saying import MAX_ID

PROTOCOL = 1
#: What a client may subscribe to. ``events`` are broadcasts and what an agent emits; ``deltas`` are streams
#: in progress and statuses.
STREAMS = frozenset({"messages", "state", "events", "deltas"})
#: Characters of a token; far more than any that we make.
MAX_TOKEN = 16 * 1024
MAX_CURSOR = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Attach:
    """Begin here: after ``cursor``, or with a snapshot without one."""

    token: str | None = None
    cursor: int | None = None
    streams: frozenset[str] = STREAMS


@dataclass(frozen=True, slots=True)
class Say:
    """A message for the actor's inbox."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an exposed method."""

    id: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the turn that runs; only ``turn``, if given."""

    id: str | None = None
    turn: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything up to ``cursor`` was shown or kept."""

    cursor: int


@dataclass(frozen=True, slots=True)
class Ping:
    id: str | None = None


Frame = Attach | Say | Call | Stop | Seen | Ping


# What comes in


def parse(text: str) -> Frame:
    """The frame in a text. Raises FrameError, with the frame's ``id`` where it has one."""
    try:
        given = codec.parse(text)
    except CodecError as error:
        raise FrameError(f"a frame is a JSON object: {error}") from None
    if not isinstance(given, dict):
        raise FrameError("a frame is a JSON object")
    try:
        return _parse(given)
    except FrameError as error:
        id = given.get("id")
        error.id = id if isinstance(id, str) and 0 < len(id) <= MAX_ID else None
        raise


def _parse(given: dict[str, Any]) -> Frame:
    version, kind = given.get("v"), given.get("kind")
    if type(version) is not int or version != PROTOCOL:
        raise FrameVersionError
    parser = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        raise UnknownFrameError(f"there is no frame of the kind {kind!r:.80}")
    return parser(given)


def _attach(given: dict[str, Any]) -> Attach:
    streams = given.get("streams")
    if streams is None:
        chosen = STREAMS
    elif isinstance(streams, list) and all(isinstance(s, str) and s in STREAMS for s in streams):
        chosen = frozenset(streams)
    else:
        raise FrameError(f"streams is a list of {', '.join(sorted(STREAMS))}")
    cursor = None if given.get("cursor") is None else _cursor(given)
    return Attach(_text(given, "token", MAX_TOKEN, needed=False), cursor, chosen)


def _say(given: dict[str, Any]) -> Say:
    id, text, metadata = _id(given), given.get("text"), given.get("metadata")
    if not isinstance(text, str) or not text.strip():
        raise FrameError("text must be text, and more than blanks")
    if metadata is not None and not isinstance(metadata, dict):
        raise FrameError("metadata must be an object")
    return Say(id, text, metadata or {})


def _call(given: dict[str, Any]) -> Call:
    id, args, kwargs = _id(given), given.get("args"), given.get("kwargs")
    method = _text(given, "method", 128)
    if args is not None and not isinstance(args, list):
        raise FrameError("args must be a list")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise FrameError("kwargs must be an object")
    return Call(id, method or "", tuple(args or ()), kwargs or {})


def _stop(given: dict[str, Any]) -> Stop:
    turn = given.get("turn")
    if turn is not None:
        try:
            turn = uuid.UUID(turn)
        except (ValueError, AttributeError, TypeError):
            raise FrameError("turn must be the id of a turn") from None
    return Stop(_id(given, needed=False), turn)


def _seen(given: dict[str, Any]) -> Seen:
    return Seen(_cursor(given))


def _ping(given: dict[str, Any]) -> Ping:
    return Ping(_id(given, needed=False))


_PARSERS: dict[str, Callable[[dict[str, Any]], Frame]] = {
    "attach": _attach,
    "say": _say,
    "call": _call,
    "stop": _stop,
    "seen": _seen,
    "ping": _ping,
}


def _id(given: dict[str, Any], *, needed: bool = True) -> Any:
    return _text(given, "id", MAX_ID, needed=needed)


def _text(given: dict[str, Any], name: str, longest: int, *, needed: bool = True) -> str | None:
    value = given.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise FrameError(f"{name} must be text of 1 to {longest} characters")
    return value


def _cursor(given: dict[str, Any]) -> int:
    cursor = given.get("cursor")
    if type(cursor) is not int or not 0 <= cursor <= MAX_CURSOR:
        raise FrameError("cursor must be a whole number, not negative")
    return cursor


# What goes out


def build(kind: str, **fields: Any) -> str:
    """A frame of the server's; fields that are None are left out. Values are plain JSON trees."""
    frame = {"v": PROTOCOL, "kind": kind} | {k: v for k, v in fields.items() if v is not None}
    return codec.dumps(frame).decode()


def splice(kind: str, cursor: int | None, **fields: bytes) -> str:
    """A frame whose fields are JSON already: an event's body goes to many sockets and is written once."""
    head = f'{{"v":{PROTOCOL},"kind":"{kind}"' + ("" if cursor is None else f',"cursor":{cursor}')
    return head + "".join(f',"{name}":{value.decode()}' for name, value in fields.items()) + "}"


def result(id: str, tree: Any) -> str:
    """A ``result`` frame. Its value may be null, which is then said."""
    return splice("result", None, id=codec.dumps(id), value=codec.dumps(tree))


def error(code: str, message: str, *, id: str | None = None, turn: str | None = None) -> str:
    """An ``error`` frame; ``turn`` is for staff."""
    return build("error", id=id, code=code, message=codec.clean_text(message), turn=turn)
