"""What clients see of the log: messages as frames carry them. Trees stay trees, dates in them are tagged."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from agents import codec
from conversations.messages import COLUMNS
from conversations.models import Message, Role

#: Messages read at a time for a snapshot, which is bounded in bytes as well.
SNAPSHOT_PAGE = 10
#: A snapshot ends before the message that would make it larger than this; it has one at least.
SNAPSHOT_BYTES = 1024 * 1024


def message(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the log (``.values(*COLUMNS)``, or as a turn wrote it) as clients get it.

    ``{"seq", "role", "content", "at", "parts"?, "name"?, "tool_calls"?, "tool_call_id"?, "metadata"?}``.
    """
    shown: dict[str, Any] = {
        "seq": row["seq"],
        "role": row["role"],
        "content": row["content"],
        "at": moment(row["at"]),
    }
    for field in ("parts", "name", "tool_calls", "tool_call_id", "metadata"):
        if row[field]:
            shown[field] = row[field]
    return shown


def moment(at: dt.datetime) -> str:
    """ISO 8601 in UTC, with a Z."""
    return at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def is_private(row: Mapping[str, Any]) -> bool:
    """Whether a message is for operators alone: what the system says to the model is not for its users."""
    return bool(row["role"] == Role.SYSTEM)


def rows_by_seq(actor_id: int, seqs: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of these messages."""
    rows = Message.objects.filter(actor_id=actor_id, seq__in=list(seqs)).values(*COLUMNS)
    return {row["seq"]: row for row in rows}


def after(
    actor_id: int, seq: int, up_to: int, count: int, *, private: bool
) -> tuple[list[dict[str, Any]], int]:
    """The messages behind a seq, oldest first: at most ``count``, and SNAPSHOT_BYTES, but one; and the seq
    behind which the next ones are.
    """
    rows = Message.objects.filter(actor_id=actor_id, seq__lte=up_to).order_by("seq")
    if not private:
        rows = rows.exclude(role=Role.SYSTEM)
    found: list[dict[str, Any]] = []
    size = 0
    while len(found) < count:
        wanted = min(SNAPSHOT_PAGE, count - len(found))
        page = list(rows.filter(seq__gt=seq).values(*COLUMNS)[:wanted])
        for row in page:
            shown = message(row)
            size += codec.size(shown)
            if found and size > SNAPSHOT_BYTES:
                return found, seq
            found.append(shown)
            seq = row["seq"]
        if len(page) < wanted:
            return found, max(seq, up_to)
    return found, seq


def newest(actor_id: int, up_to: int, count: int, *, private: bool) -> list[dict[str, Any]]:
    """The newest messages up to a seq, oldest of them first: at most ``count``, and SNAPSHOT_BYTES."""
    rows = Message.objects.filter(actor_id=actor_id).order_by("-seq")
    if not private:
        rows = rows.exclude(role=Role.SYSTEM)
    found: list[dict[str, Any]] = []
    size, below = 0, up_to + 1
    while len(found) < count:
        page = list(rows.filter(seq__lt=below).values(*COLUMNS)[: min(SNAPSHOT_PAGE, count - len(found))])
        for row in page:
            shown = message(row)
            size += codec.size(shown)
            if found and size > SNAPSHOT_BYTES:
                return found[::-1]
            found.append(shown)
        if not page:
            break
        below = page[-1]["seq"]
    return found[::-1]
