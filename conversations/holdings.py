"""What conversations keep of an actor: messages, texts, who it talks to."""

from __future__ import annotations

import uuid
from typing import Any

from agents.holdings import ALIASES, ERASERS, Holding, register
from agents.models import Actor
from conversations import consent
from conversations.models import (
    Conversation,
    Correspondent,
    InboundText,
    Message,
    OutboundText,
    Seen,
    Stream,
    StreamChunk,
    Takeover,
    TextEvent,
    TextStatus,
)


def _sent(row: dict[str, Any]) -> dict[str, Any]:
    """Where a text came from somebody may be sending it: nobody sends it here, unless asked to."""
    if row["status"] in (TextStatus.QUEUED, TextStatus.SENDING):
        row |= {"status": TextStatus.UNKNOWN, "error": "it was not sent when it was exported", "ask_at": None}
    if OutboundText.objects.filter(uid=row["uid"]).exists():  # a copy beside what it is a copy of
        row["uid"] = uuid.uuid4()
    return row | {"ask_at": None, "claimed_at": None}


_IDS = frozenset({"event_id", "message_id", "provider_id", "uid"})

register(
    Holding(Message, plain=frozenset({"role"}), names=frozenset({"tool_call_id"})),
    Holding(Conversation),
    Holding(Correspondent, names=frozenset({"their_number", "our_number"})),
    Holding(Takeover, plain=frozenset({"uid"}), names=frozenset({"by", "released_by"})),
    Holding(
        InboundText,
        plain=frozenset({"provider", "status", "keyword", "kind"}),
        names=_IDS | {"from_number", "to_number"},
    ),
    Holding(
        OutboundText,
        plain=frozenset({"provider", "status", "reason", "encoding", "currency"}),
        names=(_IDS - {"uid"}) | {"from_number", "to_number"},
        arrives=_sent,
    ),
    Holding(
        TextEvent,
        rows=lambda actor: TextEvent.objects.filter(text__actor_id=actor.pk),
        plain=frozenset({"provider", "said", "status", "code", "currency"}),
        names=_IDS - {"uid"},
        refers={"text_id": "conversations.OutboundText"},
    ),
    Holding(Stream, plain=frozenset({"uid", "role"}), refers={"task_pk": "scheduler.Task"}),
    Holding(StreamChunk, plain=frozenset({"uid"})),
    Holding(Seen, exported=False),
)


def _numbers(actor: Actor) -> set[str]:
    """The people who wrote to this actor, as far as it is known."""
    wrote = InboundText.objects.filter(actor=actor).values_list("from_number", flat=True).distinct()
    talks = Correspondent.objects.filter(actor=actor).values_list("their_number", flat=True)
    return {number for number in (*wrote, *talks) if number}


def _texts_without_actor(actor: Actor, words: set[str]) -> dict[str, int]:
    """Texts of theirs that wait, or came before there was a conversation; and the answers to those."""
    theirs = _numbers(actor)
    inbound = InboundText.objects.filter(actor=None, from_number__in=theirs)
    outbound = OutboundText.objects.filter(actor=None, to_number__in=theirs)
    return {"texts": inbound.delete()[0] + outbound.delete()[0]}


def _consent(actor: Actor, words: set[str]) -> dict[str, int]:
    """The records go on working, without their numbers."""
    return {"consents": sum(consent.erase(number) for number in _numbers(actor))}


ALIASES.append(_numbers)
ERASERS.extend([_consent, _texts_without_actor])
