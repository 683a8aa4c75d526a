"""Where each log stands: what was said last, and whether it was answered. For lists of conversations.

A commit that appends messages says so in one row of its own, ``conversations.Conversation``: a list can then
be ordered and filtered by an index, however many messages there are. What the rows say follows from the log;
``refresh`` makes them anew where messages came otherwise (an import, a copy, an older version).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps as installed
from django.db.models import Max, Q

from agents.writes import Row, Table, Writes

#: Actors that ``refresh`` looks at in one transaction.
BATCH = 500

_ASKED, _ANSWERED = ("asked_seq", "asked_at"), ("answered_seq",)


def _table(*columns: str) -> Table:
    return Table("conversations.Conversation", ("actor_id", "last_at", *columns), conflict=("actor_id",))


# A commit leaves alone what it says nothing of.
TABLES = {
    (False, False): _table(),
    (True, False): _table(*_ASKED),
    (False, True): _table(*_ANSWERED),
    (True, True): _table(*_ASKED, *_ANSWERED),
}


def collect(writes: Writes, appended: Sequence[Row]) -> None:
    """Adds what these messages of one actor, in their order, make of its conversation."""
    if not appended:
        return
    row: dict[str, Any] = {"actor_id": appended[-1]["actor_id"], "last_at": appended[-1]["at"]}
    asked = next((m for m in reversed(appended) if m["role"] == "user"), None)
    answered = next((m for m in reversed(appended) if _answers(m)), None)
    if asked is not None:
        row |= {"asked_seq": asked["seq"], "asked_at": asked["at"]}
    if answered is not None:
        row["answered_seq"] = answered["seq"]
    writes.upsert(TABLES[asked is not None, answered is not None], row)


def _answers(message: Row) -> bool:
    """Whether this is said to the person: not a mere call of a tool."""
    return message["role"] == "assistant" and bool(message["content"] or not message["tool_calls"])


def refresh(actor_ids: Iterable[int], apps: Any = installed) -> int:
    """Makes the rows of these actors anew from their logs; how many have one. ``apps``: a migration's."""
    conversations = apps.get_model("conversations", "Conversation")
    messages = apps.get_model("conversations", "Message")
    user, assistant = Q(role="user"), Q(role="assistant") & (~Q(content="") | Q(tool_calls__isnull=True))
    ids, done = list(actor_ids), 0
    for start in range(0, len(ids), BATCH):
        logs = messages.objects.filter(actor_id__in=ids[start : start + BATCH]).order_by().values("actor_id")
        found = logs.annotate(
            last_at=Max("at"),
            asked_seq=Max("seq", filter=user),
            asked_at=Max("at", filter=user),
            answered_seq=Max("seq", filter=assistant),
        )
        rows = [
            conversations(
                **{**row, "asked_seq": row["asked_seq"] or 0, "answered_seq": row["answered_seq"] or 0}
            )
            for row in found
        ]
        conversations.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["actor"],
            update_fields=["last_at", "asked_seq", "asked_at", "answered_seq"],
        )
        done += len(rows)
    return done
