"""The outbox: texts that turns committed, handed to the provider one actor's in order.

A text is claimed in a short transaction of its own, given to the provider outside of any, and recorded in
another. Between the first and the last a worker may die, or the provider's answer may be lost: such a text
becomes "unknown", and nobody sends it again by itself, since it may have arrived. Its provider is asked,
where it can be, and a delivery report may still tell.

What was certainly not sent is tried again after the pauses of ``conversations/ladder.py``. While an actor's
text waits for its next try, the actor's later texts wait behind it.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from agents.exceptions import ConfigurationError, OpenTransactionError
from agents.observing.logs import Quoted
from agents.store.patience import COMMIT_PATIENCE, Tries
from conversations import conf, consent, moments, observing, pace, quiet, receipts
from conversations.exceptions import (
    BadMediaError,
    OptedOutError,
    PermanentFailure,
    ProviderError,
    TemporaryFailure,
)
from conversations.ladder import LADDER, pause_after
from conversations.lines import line_of
from conversations.models import ConsentSource, ConsentState, OutboundText, TextStatus
from conversations.models.text import is_forward
from conversations.providers import SendResult, TextProvider, provider_for
from conversations.providers.base import Outgoing

logger = logging.getLogger(__name__)

__all__ = ["LADDER", "claim", "give_up_stale", "on_wake", "resend", "send_due", "wake"]

#: Seconds until texts are looked at again whose provider lacks its settings.
UNREADY_PAUSE = 30.0
#: A place in the row of a paced number that is this near is waited for, in seconds.
NAP = 0.2

#: Called without arguments when there is something to send: dispatchers add themselves. It may be on an
#: event loop, where nothing may block.
on_wake: list[Callable[[], None]] = []

Outcome = SendResult | Exception


@dataclass(frozen=True, slots=True)
class Claimed:
    """A text that this process sends now, and by whom."""

    provider: TextProvider
    outgoing: Outgoing

    @property
    def text(self) -> OutboundText:
        return self.outgoing.text


def wake() -> None:
    """Tells whoever listens that a commit has added texts. Never fails: the next sweep finds them anyway."""
    for callback in list(on_wake):
        try:
            callback()
        except Exception:
            logger.exception("waking the outbox failed; the next sweep sends")


def send_due(limit: int = 100, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Sends texts that are due, ``limit`` at most; returns how many were dealt with.

    Once ``goes_on()`` is false no further text is claimed.

    Synchronous; any number of threads and processes may call it at once. Texts of different actors go to
    the provider SMS_CONCURRENCY at a time, those of one actor one after another. Raises
    OpenTransactionError inside a transaction: a claim must be committed before a text leaves.
    """
    from conversations.sweep import sweep

    if connection.in_atomic_block:
        raise OpenTransactionError("texts are not sent from inside a transaction")
    sweep()
    handled = give_up_stale()
    napped = False
    while handled < limit and goes_on():
        claimed, refused = claim(min(limit - handled, conf.get("SMS_CONCURRENCY")))
        handled += refused
        if not claimed:
            if refused:
                continue
            if napped or not _nap():
                break
            napped = True
            continue
        for one, outcome in zip(claimed, _send_all(claimed), strict=True):
            _record(one, outcome)
        handled += len(claimed)
    return handled


def _nap() -> bool:
    """Waits for a place in a number's row that comes in a moment; whether there was one."""
    paced = OutboundText.objects.filter(status=TextStatus.QUEUED, paced=True).order_by("due_at")
    first = paced.values_list("due_at", flat=True).first()
    if first is None:
        return False
    left = (first - moments.now()).total_seconds()
    if left > NAP:
        return False
    time.sleep(max(left, 0.0))
    return True


def give_up_stale() -> int:
    """Texts whose worker is gone: ``sending`` for SMS_STALE_AFTER seconds becomes ``unknown``."""
    stale = OutboundText.objects.filter(
        status=TextStatus.SENDING,
        claimed_at__lte=moments.now_in_query() - dt.timedelta(seconds=conf.get("SMS_STALE_AFTER")),
    )
    # Looked at first: an update would make SQLite wait for its one writer, at every sweep.
    pks = list(stale.values_list("pk", flat=True)[:1000])
    count = 0
    for pk in pks:
        with transaction.atomic():
            text = stale.select_for_update().filter(pk=pk).first()
            if text is not None:
                _is_unknown(text, "the worker was gone before it said what became of the text")
                text.save()
                count += 1
    if count:
        logger.error("%d texts may or may not have been sent: their worker is gone", count)
    return count


def resend(text: OutboundText) -> bool:
    """An operator's verb: sends a text again that has failed, or that may not have been sent.

    False for one that is on its way, or that has arrived.
    """
    with transaction.atomic():
        locked = OutboundText.objects.select_for_update().get(pk=text.pk)
        if locked.status not in (TextStatus.FAILED, TextStatus.UNDELIVERED, TextStatus.UNKNOWN):
            return False
        if locked.actor is not None and locked.actor.sandbox:
            return False
        receipts.try_again(locked, 0.0, locked.reason, locked.error)
        locked.holds, locked.finished_at = False, None
        locked.save()
        transaction.on_commit(wake)
    return True


# Claiming


def claim(limit: int) -> tuple[list[Claimed], int]:
    """Marks the first due text of up to ``limit`` actors as ``sending``, committed.

    Returns them, and how many were dealt with without sending: refused because somebody wants no texts, put
    off until a quiet hour ends, or given their place among the texts of a number that has a limit. The row's
    lock decides who has a text; ``SKIP LOCKED`` spreads workers, and where the database has none (SQLite) its
    one writer does.
    """
    # Seldom is anything due: look before taking SQLite's write lock.
    numbers = set(_heads().values_list("from_number", flat=True)[:limit])
    if not numbers:
        return [], 0
    _warm(numbers)
    with transaction.atomic():
        rows = _heads().order_by("id").select_for_update(skip_locked=moments.skips_locked(), of=("self",))
        heads = list(rows[:limit])
        return _claim(heads) if heads else ([], 0)


def _claim(heads: list[OutboundText]) -> tuple[list[Claimed], int]:
    now = moments.now()
    unwanted = consent.opted_out((t.to_number, t.from_number) for t in heads if not t.notice)
    rates = {text.from_number: _rate(text.from_number) for text in heads}
    places = pace.Places(rates, now)
    claimed, others = [], 0
    for text in heads:
        if not text.notice and (text.to_number, text.from_number) in unwanted:
            receipts.give_up(text, OptedOutError.code, f"OptedOutError: {text.to_number} wants no texts")
            text.save()
            others += 1
            continue
        try:
            provider, morning = provider_for(text.from_number), _morning(text, now)
        except ConfigurationError as error:
            _postpone(text, now + dt.timedelta(seconds=UNREADY_PAUSE), str(error))
            continue
        if morning > now:
            # Without the place that it may have among its number's texts, and holding up no later answer.
            text.due_at, text.paced, text.holds = morning, False, False
            text.save(update_fields=["due_at", "paced", "holds"])
            others += 1
            continue
        moment = now if text.paced else places.take(text.from_number)
        if moment > now:
            text.due_at, text.paced = moment, rates[text.from_number] > 0
            text.save(update_fields=["due_at", "paced"])
            others += 1
            continue
        text.attempts += 1
        text.provider, text.status, text.claimed_at, text.paced = (
            provider.name,
            TextStatus.SENDING,
            now,
            False,
        )
        try:
            outgoing = _outgoing(provider, text)
        except BadMediaError as error:
            receipts.give_up(text, error.code, str(error))
            text.save()
            others += 1
            continue
        text.save(update_fields=["attempts", "provider", "status", "claimed_at", "paced"])
        claimed.append(Claimed(provider, outgoing))
    return claimed, others


def _morning(text: OutboundText, now: dt.datetime) -> dt.datetime:
    """``now``, or when the quiet hour ends in which this text may not go. Raises ConfigurationError.

    Asked at each claim: one that was written by day may be claimed in the night, after an outage or a pause.
    """
    hours = quiet.configured() if text.keeps_quiet else None
    return now if hours is None else quiet.moment_for(text.to_number, now, hours)


def _outgoing(provider: TextProvider, text: OutboundText) -> Outgoing:
    from conversations.media import sendable_urls

    urls = sendable_urls(text, provider) if text.media else ()
    return Outgoing(text, urls, receipts.callback(provider, text.uid, text.attempts))


def _warm(numbers: Iterable[str]) -> None:
    for number in numbers:
        try:
            provider_for(number).warm()
        except ConfigurationError:
            pass  # those texts wait, and the log says why


def _rate(number: str) -> float:
    try:
        return line_of(number).rate
    except ConfigurationError:
        return 0.0


def _postpone(text: OutboundText, until: dt.datetime, why: str) -> None:
    if text.error != why:
        logger.error("texts wait, they cannot be sent as things are set: %s", why)
    text.due_at, text.error = until, why
    text.save(update_fields=["due_at", "error"])


def _heads() -> QuerySet[OutboundText]:
    """Due texts that no earlier text of their actor holds up."""
    earlier = OutboundText.objects.filter(
        Q(holds=True) | Q(due_at__lte=moments.now_in_query()) | Q(status=TextStatus.SENDING),
        actor_id=OuterRef("actor_id"),
        status__in=[TextStatus.QUEUED, TextStatus.SENDING],
        id__lt=OuterRef("id"),
    )
    return OutboundText.objects.filter(
        ~Exists(earlier), status=TextStatus.QUEUED, due_at__lte=moments.now_in_query()
    )


# Sending


def _send_all(claimed: Sequence[Claimed]) -> list[Outcome]:
    """What became of each text. The threads touch no database."""
    if len(claimed) == 1:
        return [_send(claimed[0])]
    futures: list[Future[Outcome] | None] = []
    with ThreadPoolExecutor(len(claimed), thread_name_prefix="conversations-outbox") as pool:
        for one in claimed:
            try:
                futures.append(pool.submit(_send, one))
            except RuntimeError:
                # The process ends and starts no thread any more: but these are claimed, so they are sent.
                futures.append(None)
    return [f.result() if f else _send(one) for f, one in zip(futures, claimed, strict=True)]


def _send(claimed: Claimed) -> Outcome:
    try:
        return claimed.provider.send(claimed.outgoing)
    except ProviderError as error:
        return error
    except Exception as error:
        logger.exception("the provider %s failed on text %s", claimed.provider.name, claimed.text.uid)
        return error


# Recording


def _record(claimed: Claimed, outcome: Outcome) -> None:
    """Writes what became of a text. For as long as a commit is tried: what is not written here becomes
    ``unknown``, and the database may only be restarting."""
    text = claimed.text
    tries = Tries(COMMIT_PATIENCE)
    while True:
        try:
            _write(text, outcome)
            return
        except (OperationalError, InterfaceError) as error:
            if tries.over:
                logger.exception("text %s: %r could not be written", text.uid, outcome)
                return
            logger.warning("text %s: %r is yet to be written: %s", text.uid, outcome, error)
            connection.close_if_unusable_or_obsolete()
            tries.pause()
        except DatabaseError:
            logger.exception("text %s: %r is refused by the database", text.uid, outcome)
            return


def _write(claimed: OutboundText, outcome: Outcome) -> None:
    with transaction.atomic():
        text = OutboundText.objects.select_for_update().filter(pk=claimed.pk).first()
        # An answer that comes late is the truth about its own try; about a later one it says nothing.
        if text is None or text.attempts != claimed.attempts:
            logger.warning("text %s: %r came too late to be written", claimed.uid, outcome)
            return
        before = text.status
        _apply(text, outcome)
        text.save()
        if text.status == TextStatus.SENT and before != TextStatus.SENT:
            observing.text_moved(text)
    if isinstance(outcome, TemporaryFailure) and outcome.crowded:
        pause = outcome.retry_after or LADDER[0]
        pace.hold([text.from_number], moments.now() + dt.timedelta(seconds=pause))
    if text.provider_id:
        receipts.settle_for(text)


def _apply(text: OutboundText, outcome: Outcome) -> None:
    if isinstance(outcome, SendResult):
        _is_sent(text, outcome)
        return
    # A report was faster, and says that the provider had it.
    if text.status not in (TextStatus.SENDING, TextStatus.UNKNOWN):
        return
    error = str(outcome) or type(outcome).__name__
    reason = outcome.reason if isinstance(outcome, ProviderError) else ""
    match outcome:
        case TemporaryFailure():
            pause = pause_after(text.attempts, outcome.retry_after)
            if pause is None:
                receipts.give_up(text, reason, f"gave up after {text.attempts} tries: {outcome}")
            else:
                receipts.try_again(text, pause, reason, error)
        case PermanentFailure():
            if outcome.opted_out:
                consent.record(
                    text.to_number, text.from_number, ConsentState.OPTED_OUT, ConsentSource.REFUSAL,
                    word=outcome.reason,
                )  # fmt: skip
            receipts.give_up(text, reason, error)
        case _:
            text.reason = reason
            _is_unknown(text, error)


def _is_sent(text: OutboundText, result: SendResult) -> None:
    now = moments.now()
    text.sent_at = text.sent_at or now
    if text.status != TextStatus.QUEUED:  # a report may have started its next try already
        text.provider_id = text.provider_id or result.provider_id
    if text.parts is None:
        text.parts = result.parts
    if text.cost is None and result.cost is not None:
        text.cost, text.currency = result.cost, result.currency
    if text.status != TextStatus.QUEUED and is_forward(text.status, TextStatus.SENT):
        text.status, text.reason, text.error, text.ask_at = TextStatus.SENT, "", "", None


def _is_unknown(text: OutboundText, why: str) -> None:
    """It may have been sent. What follows is the setting's to say."""
    wanted = conf.get("SMS_UNKNOWN")
    pause = pause_after(text.attempts)
    if wanted == "resend" and pause is not None:
        receipts.try_again(text, pause, text.reason, why)
        return
    text.status, text.error = TextStatus.UNKNOWN, why
    logger.error("text %s to %s is unknown: %s", text.uid, text.to_number, Quoted(why, text.reason))
    observing.text_moved(text)
    if wanted == "ask" and _finds(text):
        text.asks = 0
        text.ask_at = moments.now() + dt.timedelta(seconds=receipts.ASK_PAUSES[0])


def _finds(text: OutboundText) -> bool:
    try:
        return bool(text.provider_id) or provider_for(text.from_number).finds
    except ConfigurationError:
        return False
