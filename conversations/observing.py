"""What becomes of texts, as it is counted and announced: once the transaction that says so has committed."""

from __future__ import annotations

from functools import partial

from django.db import transaction
from django.dispatch import Signal
from prometheus_client import Counter

from agents import conf
from agents.observing.announcing import announce
from conversations.models import Consent, ConsentState, InboundText, OutboundText, TextStatus
from conversations.signals import (
    opted_in,
    opted_out,
    text_delivered,
    text_failed,
    text_received,
    text_sent,
)

received = Counter("agents_texts_received", "Texts that providers delivered.", ["provider", "acceptance"])
moved = Counter("agents_texts_moved", "Texts of ours that reached a status.", ["provider", "status"])

_SIGNALS: dict[str, Signal] = {
    TextStatus.SENT: text_sent,
    TextStatus.DELIVERED: text_delivered,
    TextStatus.FAILED: text_failed,
    TextStatus.UNDELIVERED: text_failed,
    TextStatus.UNKNOWN: text_failed,
}


def text_came(provider: str, acceptance: str, row: InboundText | None) -> None:
    """A delivery was dealt with. ``row`` is None for a duplicate."""
    facts = None if row is None else {"pk": row.pk, "provider": provider, "acceptance": str(acceptance)}
    transaction.on_commit(partial(_text_came, provider, str(acceptance), facts), robust=True)


def _text_came(provider: str, acceptance: str, facts: dict[str, object] | None) -> None:
    if conf.get("METRICS"):
        received.labels(provider, acceptance).inc()
    if facts is not None:
        announce(text_received, InboundText, **facts)


def text_moved(text: OutboundText) -> None:
    """A text has a new status, in the transaction that is open."""
    facts = {
        "pk": text.pk,
        "uid": text.uid,
        "actor_id": text.actor_id,
        "provider": text.provider,
        "status": str(text.status),
        "reason": text.reason,
        "attempts": text.attempts,
    }
    transaction.on_commit(partial(_text_moved, facts), robust=True)


def _text_moved(facts: dict[str, object]) -> None:
    status = str(facts["status"])
    if conf.get("METRICS"):
        moved.labels(facts["provider"] or "none", status).inc()
    if (signal := _SIGNALS.get(status)) is not None:
        announce(signal, OutboundText, **facts)


def consent_changed(consent_pk: int, state: str, source: str) -> None:
    """Somebody opted out or in, in the transaction that is open."""
    signal = opted_out if state == ConsentState.OPTED_OUT else opted_in
    told = partial(announce, signal, Consent, pk=consent_pk, state=str(state), source=str(source))
    transaction.on_commit(told, robust=True)
