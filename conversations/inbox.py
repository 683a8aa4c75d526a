"""Taking in a text: one row, and one task of an actor's inbox, together or not at all.

A text that was signed and can be read is never refused: what nobody can take now (a kind that isn't
installed, a full inbox) waits in its row and is tried again. STOP and its kin are seen here and reach no
agent, and neither does what looks like a machine that answers a machine.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import Exists, OuterRef

from agents import clock, kinds
from agents.agent import Agent
from agents.exceptions import ActorMethodError, AddressError, ConfigurationError, InboxFullError
from agents.models import Actor
from agents.saying import RECEIVE
from agents.store import tell_in_transaction
from agents.store.base import Address
from agents.turn import Tell
from conversations import conf, consent, keywords, lines, loops, moments, observing, outbox
from conversations.models import (
    ConsentSource,
    ConsentState,
    InboundStatus,
    InboundText,
    Keyword,
    OutboundText,
    TextStatus,
)
from conversations.providers.base import ReceivedText, TextProvider
from conversations.segments import segments

logger = logging.getLogger(__name__)

#: Seconds until a text that nobody could take is tried again.
PAUSE = 15.0
#: Texts that one sweep tries.
SWEEP = 100


class Acceptance(models.TextChoices):
    """What a webhook says became of a text."""

    ACCEPTED = "accepted", "accepted: in the actor's inbox, for good"
    DUPLICATE = "duplicate", "duplicate: this event or this message came before; nothing changed"
    KEYWORD = "keyword", "keyword: STOP, START or HELP; kept, and no agent sees it"
    HELD = "held", "held: looks like a machine's; kept, and no agent sees it"
    WAITING = "waiting", "waiting: kept; nobody can take it now, and it is tried again"
    IGNORED = "ignored", "ignored: nothing that is ours to know; nothing stored"


def accept(provider: TextProvider, text: ReceivedText, kind: str = "") -> Acceptance:
    """Takes in a text for an actor of ``kind``; without one, of the kind that the number of ours is for.

    One short transaction; the agent is not waited for. The row's unique constraints decide between
    deliveries that overlap: the later one waits for the earlier one's end and finds itself a duplicate, or
    takes its place if that one failed. Raises LimitError for a text that no inbox could ever hold.
    """
    try:
        with transaction.atomic():
            row = row_of(provider, text, kind)
            row.save(force_insert=True)
            acceptance = _settle(row, text, provider)
            if acceptance == Acceptance.DUPLICATE:
                # Its row is gone (erased, pruned), but the inbox remembers: it stays handled once.
                transaction.set_rollback(True)
    except IntegrityError:
        same = models.Q(event_id=text.event_id) | models.Q(message_id=text.message_id)
        if not InboundText.objects.filter(same, provider=provider.name).exists():
            raise
        acceptance = Acceptance.DUPLICATE
    observing.text_came(provider.name, acceptance, None if acceptance == Acceptance.DUPLICATE else row)
    return acceptance


def row_of(provider: TextProvider, text: ReceivedText, kind: str) -> InboundText:
    """The row of a text, not saved."""
    return InboundText(
        provider=provider.name,
        event_id=text.event_id,
        message_id=text.message_id,
        from_number=text.from_number,
        to_number=text.to_number,
        text=text.text,
        media=text.media,
        sent_at=text.sent_at,
        kind=kind,
        **({"received_at": moments.now()} if clock.offset else {}),
    )


def _settle(row: InboundText, text: ReceivedText, provider: TextProvider) -> Acceptance:
    if keyword := text.keyword or keywords.keyword_of(row.text):
        row.status, row.keyword = InboundStatus.KEYWORD, keyword
        row.actor = _actor_of(row)
        row.save(update_fields=["status", "keyword", "actor"])
        _heed(row, keyword, answered=text.keyword is not None or provider.answers_keywords)
        return Acceptance.KEYWORD
    if why := loops.why_held(row.text, loops.recent(row)):
        row.status, row.error, row.actor = InboundStatus.HELD, why, _actor_of(row)
        row.save(update_fields=["status", "error", "actor"])
        logger.warning("text %s from %s to %s is held: %s", row.pk, row.from_number, row.to_number, why)
        return Acceptance.HELD
    if waiting().filter(from_number=row.from_number, to_number=row.to_number).exists():
        return _wait(row, "an earlier text of theirs waits")
    return _deliver(row)


# To an actor


def _deliver(row: InboundText) -> Acceptance:
    """Puts the text into its actor's inbox, or lets it wait for a better moment."""
    try:
        agent, name = address_of(row)
        stub = agent.named(name)
        told = stub.sync.tell(RECEIVE, payload_of(row), key=key_of(row))
    except (AddressError, ActorMethodError, ConfigurationError, InboxFullError) as error:
        return _wait(row, str(error))
    if not told:
        return Acceptance.DUPLICATE
    actor = Actor.objects.filter(kind=stub.kind, name=stub.name)
    InboundText.objects.filter(pk=row.pk).update(
        actor=models.Subquery(actor.values("pk")), status=InboundStatus.ACCEPTED, due_at=None, error=""
    )
    return Acceptance.ACCEPTED


def address_of(row: InboundText) -> tuple[type[Agent[Any]], str]:
    """Whose text it is. Raises AddressError or ConfigurationError where nobody's (yet)."""
    agent = _agent_of(row)
    if not _names_by_itself(agent):
        return agent, lines.name_of(row.from_number, row.to_number)
    try:
        with transaction.atomic():  # a query of theirs that fails must not take the text with it
            return agent, agent.name_for_text(row.from_number, row.to_number)
    except Exception as error:
        logger.exception("naming the actor for text %s failed", row.pk)
        raise ConfigurationError(f"name_for_text failed: {error!r}", setting="SMS_ADDRESS") from error


def known_address_of(row: InboundText) -> Address | None:
    """The same without asking the agent: None where its class names actors by itself."""
    agent = _agent_of(row)
    return None if _names_by_itself(agent) else (agent.kind, lines.name_of(row.from_number, row.to_number))


def _agent_of(row: InboundText) -> type[Agent[Any]]:
    kind = row.kind or lines.line_of(row.to_number).kind
    if not kind:
        raise ConfigurationError(
            f"no kind takes texts to {row.to_number}: say so in SMS_NUMBERS, in SMS_KIND or in the"
            " webhook's address",
            setting="SMS_NUMBERS",
        )
    return kinds.get(kind)


def _names_by_itself(agent: type[Agent[Any]]) -> bool:
    return agent.name_for_text.__func__ is not Agent.name_for_text.__func__  # type: ignore[attr-defined]


def key_of(row: InboundText) -> str:
    """What its actor's inbox remembers a text by."""
    return f"{row.provider}:{row.message_id}"


def payload_of(row: InboundText) -> dict[str, Any]:
    """The argument of an agent's ``receive``: plain JSON, the same for each provider."""
    received_at = row.sent_at or row.received_at
    return {
        "text": row.text,
        "from": row.from_number,
        "to": row.to_number,
        "id": row.message_id,
        "event_id": row.event_id,
        "received_at": (received_at if isinstance(received_at, dt.datetime) else moments.now()).isoformat(),
        "media": row.media,
        "channel": "sms",
    }


def _actor_of(row: InboundText) -> Actor | None:
    """The conversation that a text belongs to, where there is one already."""
    try:
        agent, name = address_of(row)
    except (AddressError, ConfigurationError):
        return None
    return Actor.objects.filter(kind=agent.kind, name=name).only("pk").first()


# Later


def _wait(row: InboundText, why: str) -> Acceptance:
    if row.error != why:  # once, not at each try
        logger.error("text %s from %s to %s waits: %s", row.pk, row.from_number, row.to_number, why)
    row.status, row.error = InboundStatus.WAITING, why
    row.due_at = moments.now() + dt.timedelta(seconds=PAUSE)
    row.save(update_fields=["status", "error", "due_at"])
    return Acceptance.WAITING


def retry_waiting(limit: int = SWEEP) -> int:
    """Tries texts again that nobody could take; returns how many were taken. Somebody's stay in order."""
    earlier = waiting().filter(
        from_number=OuterRef("from_number"),
        to_number=OuterRef("to_number"),
        pk__lt=OuterRef("pk"),
    )
    taken = 0
    while taken < limit:
        due = waiting().filter(~Exists(earlier), due_at__lte=moments.now_in_query()).order_by("pk")
        # Seldom is there any: look before taking SQLite's write lock.
        heads = list(due.values_list("pk", flat=True)[: limit - taken])
        if not heads:
            break
        done = sum(_retry(pk) for pk in heads)
        taken += done
        if not done:
            break
    return taken


def _retry(pk: int) -> bool:
    with transaction.atomic():
        row = (
            InboundText.objects.select_for_update(skip_locked=moments.skips_locked())
            .filter(pk=pk, status=InboundStatus.WAITING)
            .first()
        )
        if row is None:
            return False
        acceptance = _deliver(row)
        if acceptance == Acceptance.DUPLICATE:  # its inbox knows it: it was handled under another row
            row.status = InboundStatus.ACCEPTED
            row.save(update_fields=["status"])
        if acceptance == Acceptance.ACCEPTED:  # those behind it need not wait for their own moment
            theirs = waiting().filter(from_number=row.from_number, to_number=row.to_number)
            theirs.update(due_at=moments.now_in_query())
        return acceptance != Acceptance.WAITING


def release(row: InboundText) -> Acceptance:
    """An operator's verb: gives a text that is held, or that waits, to its agent after all."""
    with transaction.atomic():
        locked = InboundText.objects.select_for_update().get(pk=row.pk)
        if locked.status not in (InboundStatus.HELD, InboundStatus.WAITING):
            return Acceptance.DUPLICATE
        return _deliver(locked)


# Keywords


def _heed(row: InboundText, keyword: Keyword, *, answered: bool) -> None:
    """Does what a keyword asks for, and answers it unless the provider has."""
    changed = True
    if keyword != Keyword.HELP:
        state = ConsentState.OPTED_OUT if keyword == Keyword.STOP else ConsentState.OPTED_IN
        source = ConsentSource.PROVIDER if keywords.keyword_of(row.text) is None else ConsentSource.KEYWORD
        changed = consent.record(
            row.from_number, row.to_number, state, source, word=row.text[:64], at=row.sent_at
        )
        if changed:
            tell_of_consent(row.actor, row.from_number, row.to_number, state, row.text[:64])
    if not answered and changed:
        _answer(row, keyword)


def _answer(row: InboundText, keyword: Keyword) -> None:
    words = conf.get(f"SMS_{keyword.name}_REPLY")
    if not words:
        return
    length = segments(words)
    OutboundText.objects.create(
        actor=row.actor,
        uid=uuid.uuid4(),
        from_number=row.to_number,
        to_number=row.from_number,
        text=words,
        status=TextStatus.QUEUED,
        notice=True,
        encoding=length.encoding,
        segments=length.count,
    )
    transaction.on_commit(outbox.wake)


def tell_of_consent(actor: Actor | None, theirs: str, ours: str, state: str, word: str) -> None:
    """Tells an agent that somebody opted out or in, where it wants to know (``on_consent``)."""
    if actor is None:
        return
    actor = Actor.objects.only("kind", "name").get(pk=actor.pk)
    tell_hook(
        actor.kind, actor.name, "on_consent", {"state": state, "from": theirs, "to": ours, "word": word}
    )


def tell_hook(kind: str, name: str, hook: str, payload: dict[str, Any]) -> None:
    """Queues a hook of an agent, in the transaction that is open, where its class overrides it."""
    try:
        agent = kinds.get(kind)
    except AddressError:
        return
    if getattr(agent, hook) is not getattr(Agent, hook):
        tell_in_transaction(Tell(kind, name, hook, payload, lane="hook", max_retries=0))


def waiting() -> models.QuerySet[InboundText]:
    return InboundText.objects.filter(status=InboundStatus.WAITING)
