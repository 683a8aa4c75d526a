"""What becomes of texts that were sent: delivery reports, kept and applied.

Reports come late, twice and in any order, and before the answer to the request that they are about. Each is
a row first (the same one once); then it moves its text's status, forward only, in the order

    queued < sending < unknown < sent < unconfirmed < failed < undelivered < delivered

so the order in which reports come changes nothing. A failure whose reason passes starts the text's next try,
by the same pauses as a request that was refused. What failed for good is told to the agent.
"""

from __future__ import annotations

import datetime as dt
import logging
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse

from agents.exceptions import ConfigurationError
from agents.observing.logs import Quoted
from conversations import conf, consent, moments, observing
from conversations.ladder import pause_after
from conversations.models import ConsentSource, ConsentState, OutboundText, TextEvent, TextStatus
from conversations.models.text import is_forward
from conversations.providers import get_provider
from conversations.providers.base import DeliveryReport, TextProvider
from conversations.public import reachable_url

logger = logging.getLogger(__name__)

#: How long a report waits for its text to become known: the answer to its request is then long written.
UNMATCHED_FOR = dt.timedelta(hours=1)
#: Unmatched reports that one sweep looks at.
SWEEP = 200
#: How often a provider is asked about one text, and the seconds before each time.
ASK_PAUSES = (60.0, 240.0, 600.0, 1800.0)
#: A text that the provider says it has not is believed to be lost when it says so the second time.
SURE_AFTER = 2

FINAL = frozenset({TextStatus.UNCONFIRMED, TextStatus.FAILED, TextStatus.UNDELIVERED, TextStatus.DELIVERED})
BAD = frozenset({TextStatus.FAILED, TextStatus.UNDELIVERED})


def callback(provider: TextProvider, uid: UUID, attempt: int) -> str:
    """Where the provider shall report about this try of a text; "" where it cannot reach us.

    The address names the text, so a report finds it even when the answer to the request was lost.
    """
    base = reachable_url(provider.api_url())
    if not base:
        return ""
    path = reverse("text-webhook", kwargs={"provider": provider.name})
    return f"{base}{path}?{urlencode({'text': str(uid), 'try': attempt})}"


# Taking in


def take(provider: TextProvider, report: DeliveryReport) -> bool:
    """Keeps a report and applies it; False if it had come before. One short transaction."""
    try:
        with transaction.atomic():
            event = TextEvent.objects.create(**_columns(provider.name, report))
            text = _text_of(event)
            if text is not None:
                apply(text, event, report)
    except IntegrityError:
        if not TextEvent.objects.filter(provider=provider.name, event_id=report.event_id).exists():
            raise
        return False
    return True


def _columns(provider: str, report: DeliveryReport) -> dict[str, Any]:
    return {
        "provider": provider,
        "event_id": report.event_id,
        "provider_id": report.provider_id,
        "uid": report.uid,
        "attempt": report.attempt,
        "said": report.said,
        "status": report.status or "",
        "code": report.code,
        "detail": report.detail,
        "parts": report.parts,
        "cost": report.cost,
        "currency": report.currency,
        "occurred_at": report.at,
    }


def _text_of(event: TextEvent) -> OutboundText | None:
    """The locked text that a report is about, by our own name for it or by the provider's."""
    texts = OutboundText.objects.select_for_update(of=("self",))
    if event.uid is not None and (text := texts.filter(uid=event.uid).first()):
        # The address is not always signed: it must be the provider that the text went to.
        return text if text.provider == event.provider else None
    named = {"provider": event.provider, "provider_id": event.provider_id}
    if text := texts.filter(**named).first():
        return text
    # An earlier try of a text that is being sent again: its reports know the name.
    known = TextEvent.objects.filter(text__isnull=False, **named).values_list("text_id", flat=True).first()
    return texts.filter(pk=known).first() if known else None


def settle(limit: int = SWEEP) -> int:
    """Applies reports that came before their text's name was known; returns how many.

    A report and the answer that it overtook are written at the same moment now and then, and neither sees
    the other: this finds them.
    """
    known = OutboundText.objects.filter(provider=OuterRef("provider"), provider_id=OuterRef("provider_id"))
    since = moments.now_in_query() - UNMATCHED_FOR
    found = TextEvent.objects.unmatched(since).filter(Exists(known)).order_by("pk")
    pks = list(found.values_list("pk", flat=True)[:limit])
    return sum(_settle(pk) for pk in pks)


def settle_for(text: OutboundText) -> None:
    """The same for the reports about one text, right after its name was written."""
    events = TextEvent.objects.filter(text__isnull=True, provider=text.provider, provider_id=text.provider_id)
    for pk in events.order_by("pk").values_list("pk", flat=True):
        _settle(pk)


def _settle(pk: int) -> bool:
    with transaction.atomic():
        event = TextEvent.objects.filter(pk=pk, text__isnull=True).first()
        text = _text_of(event) if event else None
        # Looked at again under the text's lock.
        if event is None or text is None or not TextEvent.objects.filter(pk=pk, text__isnull=True).exists():
            return False
        apply(text, event, _report_of(event))
    return True


def _report_of(event: TextEvent) -> DeliveryReport:
    """The report that an event was. What a code means is the provider's to say, now as then."""
    passes = opted_out = False
    try:
        passes, opted_out = get_provider(event.provider).meaning_of(event.code, event.detail)
    except ConfigurationError:
        logger.warning("the provider %s is gone: its code %s means nothing", event.provider, event.code)
    return DeliveryReport(
        event_id=event.event_id,
        provider_id=event.provider_id,
        said=event.said,
        status=TextStatus(event.status) if event.status else None,
        code=event.code,
        detail=event.detail,
        passes=passes,
        opted_out=opted_out,
        at=event.occurred_at,
        parts=event.parts,
        cost=event.cost,
        currency=event.currency,
        uid=event.uid,
        attempt=event.attempt,
    )


# Applying


def apply(text: OutboundText, event: TextEvent, report: DeliveryReport) -> None:
    """Moves a locked text by a report that is already a row; writes both."""
    event.text = text
    earlier = _is_of_earlier_try(text, report)
    status = report.status
    if status is not None and not (earlier and status != TextStatus.DELIVERED):
        event.changed = _advance(text, status, report)
    if report.opted_out:
        consent.record(
            text.to_number, text.from_number, ConsentState.OPTED_OUT, ConsentSource.REFUSAL,
            word=report.code, at=report.at,
        )  # fmt: skip
    event.save(update_fields=["text", "changed"])
    if report.parts is not None and not earlier:
        text.parts = report.parts
    if report.cost is not None:
        text.cost, text.currency = _cost_of(text)
    if text.status in FINAL and text.cost is None and text.asks == 0 and _asks_cost(text):
        text.ask_at = moments.now() + dt.timedelta(seconds=ASK_PAUSES[0])
    text.save()


def _is_of_earlier_try(text: OutboundText, report: DeliveryReport) -> bool:
    if text.status == TextStatus.QUEUED and _has_failed(text, report):
        return True  # its next try has been decided, though nobody has claimed it yet
    if report.attempt is not None:
        return report.attempt != text.attempts
    if text.provider_id:
        return report.provider_id != text.provider_id
    return text.events.filter(provider_id=report.provider_id).exists()


def _has_failed(text: OutboundText, report: DeliveryReport) -> bool:
    """Whether the try that this report is about was reported as failed. Who was asked names no try."""
    same = Q(attempt=report.attempt) if report.attempt is not None else Q(pk__in=[])
    if report.provider_id:
        same |= Q(provider_id=report.provider_id)
    return text.events.filter(same, status__in=BAD).exists()


def _advance(text: OutboundText, status: TextStatus, report: DeliveryReport) -> bool:
    if not is_forward(text.status, status):
        return False
    if not text.provider_id and not _is_of_earlier_try(text, report):
        text.provider_id = report.provider_id
    if status in BAD:
        pause = pause_after(text.attempts) if report.passes and conf.get("SMS_RETRY_UNDELIVERED") else None
        if pause is not None and not report.opted_out:
            try_again(text, pause, _reason(report), f"{status}: {_words(report)}")
            # Others have left already: they need not wait for this one.
            text.holds = False
            return True
    text.status = status
    text.sent_at = text.sent_at or report.at or moments.now()
    text.ask_at = None
    text.error = _words(report) if status in BAD else ""
    text.reason = _reason(report) if status in BAD else ""
    if status in FINAL:
        text.finished_at = report.at or moments.now()
    if status in BAD:
        why = Quoted(text.error, text.reason)
        logger.error("text %s to %s is %s: %s", text.uid, text.to_number, status, why)
        tell_of_failure(text)
    observing.text_moved(text)
    return True


def _reason(report: DeliveryReport) -> str:
    return report.code[:32]


def _words(report: DeliveryReport) -> str:
    return " ".join(part for part in (report.code, report.detail or report.said) if part)


def _cost_of(text: OutboundText) -> tuple[Decimal, str]:
    """The sum over a text's tries: each is charged for. Of one try's reports the last one counts."""
    tries: dict[str, tuple[Decimal, str]] = {}
    priced = text.events.filter(cost__isnull=False).order_by("pk")
    for event in priced:
        _, known = tries.get(event.provider_id, (Decimal(0), ""))
        tries[event.provider_id] = (event.cost or Decimal(0), event.currency or known)
    currency = next((currency for _, currency in tries.values() if currency), text.currency)
    return sum((cost for cost, _ in tries.values()), Decimal(0)), currency


def _asks_cost(text: OutboundText) -> bool:
    try:
        return bool(text.provider) and get_provider(text.provider).asks_cost
    except ConfigurationError:
        return False


# What the outbox does too


def try_again(text: OutboundText, pause: float, reason: str, why: str) -> None:
    """Puts a text back into the queue for its next try. The caller saves it."""
    text.status = TextStatus.QUEUED
    text.due_at = moments.now() + dt.timedelta(seconds=pause)
    text.holds, text.paced, text.ask_at = True, False, None
    text.provider_id = ""  # that of the next try; the reports keep this one's
    text.reason, text.error = reason, why


def give_up(text: OutboundText, reason: str, why: str) -> None:
    """It was never sent and never will be. The caller saves it."""
    text.status, text.reason, text.error = TextStatus.FAILED, reason[:32], why
    text.finished_at, text.ask_at = moments.now(), None
    logger.error("text %s to %s is failed: %s", text.uid, text.to_number, Quoted(why, text.reason))
    observing.text_moved(text)
    tell_of_failure(text)


def tell_of_failure(text: OutboundText) -> None:
    """Tells the agent (``on_delivery_failed``), in the transaction that is open."""
    if text.actor_id is None:
        return
    from agents.models import Actor
    from conversations.inbox import tell_hook

    actor = Actor.objects.only("kind", "name").filter(pk=text.actor_id).first()
    if actor is None:
        return
    tell_hook(
        actor.kind,
        actor.name,
        "on_delivery_failed",
        {
            "id": str(text.uid),
            "text": text.text,
            "to": text.to_number,
            "from": text.from_number,
            "status": text.status,
            "code": text.reason,
            "error": text.error,
            "attempts": text.attempts,
        },
    )
