"""Asking providers what became of texts: of those whose answer was lost, and what the others cost."""

from __future__ import annotations

import datetime as dt
import logging

from django.db import transaction

from agents.exceptions import ConfigurationError
from conversations import conf, moments, receipts
from conversations.exceptions import CannotAsk
from conversations.ladder import pause_after
from conversations.models import OutboundText, TextEvent, TextStatus
from conversations.providers import get_provider
from conversations.providers.base import DeliveryReport

logger = logging.getLogger(__name__)

#: Texts that one sweep asks about.
SWEEP = 20


def ask_due(limit: int = SWEEP) -> int:
    """Asks about the texts whose moment has come, one after another; returns how many it asked about."""
    now = moments.now()
    due = OutboundText.objects.filter(ask_at__lte=now).order_by("ask_at")
    pks = list(due.values_list("pk", flat=True)[:limit])
    return sum(_ask(pk, now) for pk in pks)


def _ask(pk: int, now: dt.datetime) -> bool:
    text = _claim(pk, now)
    if text is None:
        return False
    try:
        provider = get_provider(text.provider)
        provider.ready()
        others = OutboundText.objects.between(text.to_number, text.from_number).exclude(pk=text.pk)
        taken = set(others.exclude(provider_id="").values_list("provider_id", flat=True))
        report = provider.look_up(text, taken)
    except (CannotAsk, ConfigurationError) as error:
        logger.warning("text %s: %s", text.uid, error)
        return True
    except Exception:
        logger.exception("asking %s about text %s failed", text.provider, text.uid)
        return True
    if report is None:
        _is_absent(text)
    else:
        _is_there(text, report)
    return True


def _claim(pk: int, now: dt.datetime) -> OutboundText | None:
    """The text, if its moment is still there; the next moment is set, so that nobody else asks now."""
    with transaction.atomic():
        text = OutboundText.objects.select_for_update().filter(pk=pk, ask_at__lte=now).first()
        if text is None:
            return None
        text.asks += 1
        more = text.asks < len(receipts.ASK_PAUSES)
        text.ask_at = now + dt.timedelta(seconds=receipts.ASK_PAUSES[text.asks]) if more else None
        text.save(update_fields=["asks", "ask_at"])
    return text


def _is_there(text: OutboundText, report: DeliveryReport) -> None:
    with transaction.atomic():
        locked = OutboundText.objects.select_for_update().filter(pk=text.pk).first()
        if locked is None or locked.attempts != text.attempts:
            return
        event = TextEvent.objects.create(
            provider=text.provider,
            event_id=f"asked:{text.uid}:{text.attempts}:{text.asks}",
            provider_id=report.provider_id,
            said=report.said,
            status=report.status or "",
            code=report.code,
            detail=report.detail,
            parts=report.parts,
            cost=report.cost,
            currency=report.currency,
            occurred_at=report.at,
        )
        receipts.apply(locked, event, report)
        known = locked.status in receipts.FINAL and locked.cost is not None
        if known or (locked.status != TextStatus.UNKNOWN and locked.status not in receipts.FINAL):
            locked.ask_at = None
            locked.save(update_fields=["ask_at"])


def _is_absent(text: OutboundText) -> None:
    """The provider has never had it. It is sent again when it has said so twice."""
    if text.asks < receipts.SURE_AFTER or conf.get("SMS_UNKNOWN") == "keep":
        return
    with transaction.atomic():
        locked = OutboundText.objects.select_for_update().filter(pk=text.pk).first()
        if locked is None or locked.status != TextStatus.UNKNOWN or locked.attempts != text.attempts:
            return
        why = "the provider says that it never had it"
        if pause_after(locked.attempts) is None:
            receipts.give_up(locked, "", f"gave up after {locked.attempts} tries: {why}")
        else:
            logger.warning("text %s is sent again: %s", locked.uid, why)
            receipts.try_again(locked, 0.0, "", why)
        locked.save()
