"""Signals: what goes to clients at once, outside of any commit, and may be lost.

A piece of a stream, a status, a broadcast or a direct send with ``now=True``. They carry no cursor; what
matters of them comes again, in a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agents import codec
from agents.sockets import frames
from agents.sockets.events import broadcast_frame


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream, as it was saved. ``take`` rises when a retry begins the stream anew."""

    uid: str
    take: int
    index: int
    text: str
    reset: bool = False
    done: bool = False

    def frame(self) -> str:
        return frames.build(
            "delta",
            stream=self.uid,
            index=self.index,
            text=self.text,
            reset=self.reset or None,
            done=self.done or None,
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A mark for user interfaces, such as "thinking"; empty: none."""

    text: str
    turn: str

    def frame(self) -> str:
        return frames.build("status", status=self.text, turn=self.turn)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """``broadcast(data, now=True)``, or ``connection.send(data, now=True)`` to one connection."""

    data: Any  # text, or bytes as the codec writes them
    to: str = ""

    def frame(self) -> str:
        return broadcast_frame(None, self.data, direct=bool(self.to))

    def raw(self) -> str | bytes:
        data: str | bytes = codec.decode(self.data)
        return data


Signal = Delta | Status | Broadcast

_TYPES: dict[str, type[Any]] = {"delta": Delta, "status": Status, "broadcast": Broadcast}
_NAMES = {type: name for name, type in _TYPES.items()}


def pack(signals: Sequence[Signal]) -> list[list[Any]]:
    """Signals for the channel layer."""
    return [[_NAMES[type(s)], *(getattr(s, field) for field in s.__slots__)] for s in signals]


def unpack(packed: Sequence[Sequence[Any]]) -> list[Signal]:
    return [_TYPES[name](*fields) for name, *fields in packed]


def size(signal: Signal) -> int:
    """Characters that it carries, roughly."""
    match signal:
        case Delta():
            return len(signal.text)
        case Status():
            return len(signal.text)
        case Broadcast():
            return len(signal.data) if isinstance(signal.data, str) else codec.size(signal.data)
