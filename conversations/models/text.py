"""Texts: what a provider delivered, what a turn sent, what became of it, and who an actor is talking to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Self

from django.db import models
from django.db.models import Count, F, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Now, TruncDate

EMPTY_LIST = models.Value([], output_field=models.JSONField())


class TextStatus(models.TextChoices):
    """The life of an outbound text; a delivery report moves it forward only (``conversations.receipts``)."""

    QUEUED = "queued", "queued: committed, waits for a worker"
    SENDING = "sending", "sending: a worker is talking to the provider"
    UNKNOWN = "unknown", "unknown: the worker died or no answer came; it may have been sent"
    SENT = "sent", "sent: the provider has it"
    UNCONFIRMED = "unconfirmed", "unconfirmed: sent, and nobody will say whether it arrived"
    FAILED = "failed", "failed: refused for good, it was never sent"
    UNDELIVERED = "undelivered", "undelivered: sent, and refused or lost on the way"
    DELIVERED = "delivered", "delivered"


class InboundStatus(models.TextChoices):
    """What became of an inbound text."""

    ACCEPTED = "accepted", "accepted: in its actor's inbox, for good"
    KEYWORD = "keyword", "keyword: STOP, START or HELP; no agent sees it"
    HELD = "held", "held: looks like a machine that answers a machine; no agent sees it"
    WAITING = "waiting", "waiting: nobody can take it now; tried again by itself"


class Keyword(models.TextChoices):
    """Words about consent, which no agent sees."""

    STOP = "stop", "stop: no more texts"
    START = "start", "start: texts again"
    HELP = "help", "help: who is this?"


class InboundText(models.Model):
    """One text as its provider delivered it. The two unique constraints drop duplicates."""

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="inbound_texts", null=True
    )
    provider = models.CharField(max_length=32)
    event_id = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255)
    from_number = models.CharField(max_length=64)
    to_number = models.CharField(max_length=64)
    text = models.TextField(default="")
    # [{"url", "content_type", "size", "sha256"}, ...] as the provider announced them.
    media = models.JSONField(default=list, db_default=EMPTY_LIST)
    received_at = models.DateTimeField(db_default=Now(), help_text="By our clock.")
    # By the provider's clock, where it says so; consent goes by it.
    sent_at = models.DateTimeField(null=True)
    # The kind that the webhook's address named; empty: the number decides.
    kind = models.CharField(max_length=64, default="", db_default="")
    status = models.CharField(
        max_length=8,
        choices=InboundStatus.choices,
        default=InboundStatus.ACCEPTED,
        db_default=InboundStatus.ACCEPTED,
    )
    keyword = models.CharField(max_length=5, choices=Keyword.choices, default="", db_default="")
    # Of a text that waits: when it is tried again, and why it waits.
    due_at = models.DateTimeField(null=True)
    error = models.TextField(default="", db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["provider", "event_id"], name="conversations_inbound_event"),
            models.UniqueConstraint(fields=["provider", "message_id"], name="conversations_inbound_message"),
        ]
        indexes = [
            # What somebody wrote lately: loops, and texts that wait (conversations/loops.py).
            models.Index(fields=["from_number", "received_at"], name="conversations_inbound_lately"),
            # The sweep over texts that nobody could take.
            models.Index(
                fields=["due_at"],
                name="conversations_inbound_waiting",
                condition=models.Q(status="waiting"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.from_number}: {self.text[:60]}"


class OutboundTextQuerySet(models.QuerySet["OutboundText"]):
    def costs(self, *by: str) -> list[dict[str, Any]]:
        """What these texts cost, as far as it is known, summed by any of ``actor``, ``kind``, ``day``.

        ``[{<the names given>, "currency", "texts", "segments", "cost"}, ...]`` with one row a currency;
        ``cost`` is a Decimal. Texts whose cost nobody has told count with currency "" and cost 0. Days are
        those of the current time zone, by the moment of sending.
        """
        columns: dict[str, Any] = {
            "actor": F("actor_id"),
            "kind": F("actor__kind"),
            "day": TruncDate(Coalesce("sent_at", "created_at")),
        }
        if unknown := set(by) - columns.keys():
            raise ValueError(f"costs are summed by actor, kind and day, not by {', '.join(sorted(unknown))}")
        rows = self.exclude(status__in=[TextStatus.QUEUED, TextStatus.SENDING])
        keys = {f"by_{name}": columns[name] for name in by}
        grouped = (
            rows.order_by()
            .annotate(**keys)
            .values(*keys, "currency")
            .annotate(
                texts=Count("pk"),
                # What the provider charged for; our own count until it has said so.
                segment_count=Sum(Coalesce("parts", "segments")),
                total=Coalesce(Sum("cost"), Decimal(0)),
            )
            .order_by(*keys, "currency")
        )
        return [
            {
                **{name: row[f"by_{name}"] for name in by},
                "currency": row["currency"],
                "texts": row["texts"],
                "segments": row["segment_count"],
                "cost": row["total"].quantize(Decimal("0.000001")),  # SQLite sums floats
            }
            for row in grouped
        ]

    def between(self, theirs: str, ours: str) -> Self:
        return self.filter(to_number=theirs, from_number=ours)


class OutboundText(models.Model):
    """The outbox: a text that a turn's commit wrote and a worker sends."""

    # Null: the answer to a keyword of somebody who has no conversation.
    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="outbound_texts", null=True
    )
    # Made by the turn: names the text before it has a row.
    uid = models.UUIDField(unique=True)
    provider = models.CharField(max_length=32, default="", db_default="")
    from_number = models.CharField(max_length=64)
    to_number = models.CharField(max_length=64)
    text = models.TextField()
    # [{"url": ...} or {"blob": <key>}, ...]
    media = models.JSONField(default=list, db_default=EMPTY_LIST)
    status = models.CharField(max_length=16, choices=TextStatus.choices, default=TextStatus.QUEUED)
    attempts = models.IntegerField(default=0, db_default=0)
    due_at = models.DateTimeField(db_default=Now(), help_text="Not before this moment.")
    # Whether later texts of the actor wait behind this one while it is not due yet.
    holds = models.BooleanField(default=True, db_default=True)
    # Whether it has its place in the row of texts that a number may send in a time (conversations/pace.py).
    paced = models.BooleanField(default=False, db_default=False)
    # Whether it goes in no quiet hour of theirs: it answered nothing they had just written, nor was urgent.
    keeps_quiet = models.BooleanField(default=False, db_default=False)
    # Our own answer to a keyword: the only text that may go to somebody who wants none.
    notice = models.BooleanField(default=False, db_default=False)
    claimed_at = models.DateTimeField(null=True)
    provider_id = models.CharField(max_length=255, default="", db_default="", db_index=True)
    # The provider's code for what went wrong, or our own ("opted_out").
    reason = models.CharField(max_length=32, default="", db_default="")
    error = models.TextField(default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, help_text="When its last status was reported.")
    # When the provider is asked what became of it, or what it cost; how often it was.
    ask_at = models.DateTimeField(null=True)
    asks = models.IntegerField(default=0, db_default=0)
    # Our count, and the provider's.
    encoding = models.CharField(max_length=8, default="", db_default="")
    segments = models.IntegerField(default=0, db_default=0)
    parts = models.IntegerField(null=True)
    cost = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    currency = models.CharField(max_length=3, default="", db_default="")

    objects = OutboundTextQuerySet.as_manager()

    class Meta:
        indexes = [
            # The outbox sender's query.
            models.Index(
                fields=["due_at"],
                name="conversations_outbox_due",
                condition=models.Q(status__in=["queued", "sending"]),
            ),
            # What an earlier text of the same actor holds up.
            models.Index(
                fields=["actor", "id"],
                name="conversations_outbox_actor",
                condition=models.Q(status__in=["queued", "sending"]),
            ),
            # Those that somebody should look at (agentsite/figures.py).
            models.Index(
                fields=["status", "id"],
                name="conversations_outbox_wrong",
                condition=models.Q(status__in=["unknown", "failed", "undelivered"]),
            ),
            # The sweep over texts that the provider is asked about.
            models.Index(
                fields=["ask_at"], name="conversations_outbox_ask", condition=models.Q(ask_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.to_number}: {self.text[:60]}"


class TextEventQuerySet(models.QuerySet["TextEvent"]):
    def unmatched(self, since: Combinable | dt.datetime) -> Self:
        return self.filter(text__isnull=True, received_at__gte=since)


class TextEvent(models.Model):
    """One delivery report as its provider sent it. All are kept, whether or not they changed anything."""

    # Null: no text of ours is known by that name (yet), or it was sent by another program.
    text = models.ForeignKey(OutboundText, on_delete=models.CASCADE, related_name="events", null=True)
    provider = models.CharField(max_length=32)
    event_id = models.CharField(max_length=255)
    provider_id = models.CharField(max_length=255)
    # Ours, where the report's address carries it: which text, which of its tries.
    uid = models.UUIDField(null=True)
    attempt = models.IntegerField(null=True)
    # What the provider said; what that means here, empty where nothing.
    said = models.CharField(max_length=64)
    status = models.CharField(max_length=16, choices=TextStatus.choices, default="", db_default="")
    code = models.CharField(max_length=32, default="", db_default="")
    detail = models.TextField(default="", db_default="")
    parts = models.IntegerField(null=True)
    cost = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    currency = models.CharField(max_length=3, default="", db_default="")
    occurred_at = models.DateTimeField(null=True, help_text="By the provider's clock.")
    received_at = models.DateTimeField(db_default=Now())
    changed = models.BooleanField(default=False, db_default=False, help_text="It moved the text's status.")

    objects = TextEventQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["provider", "event_id"], name="conversations_event_once")
        ]
        indexes = [
            # The sweep over reports whose text was not known yet.
            models.Index(
                fields=["received_at"],
                name="conversations_event_unmatched",
                condition=models.Q(text__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.said} ({self.provider_id})"


class Pace(models.Model):
    """When one of our numbers may send its next text. A row only for numbers that have a limit."""

    number = models.CharField(max_length=64, unique=True)
    next_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.number}: {self.next_at}"


class Correspondent(models.Model):
    """Whoever wrote last to an actor, and the number of ours that they wrote to."""

    actor = models.OneToOneField("agents.Actor", on_delete=models.CASCADE, related_name="correspondent")
    their_number = models.CharField(max_length=64)
    our_number = models.CharField(max_length=64)
    wrote_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.their_number} -> {self.our_number}"


#: How far each status is: a report never moves a text back. What arrived has arrived, whatever else is said.
RANK = {
    status: rank
    for rank, status in enumerate(
        [
            TextStatus.QUEUED,
            TextStatus.SENDING,
            TextStatus.UNKNOWN,
            TextStatus.SENT,
            TextStatus.UNCONFIRMED,
            TextStatus.FAILED,
            TextStatus.UNDELIVERED,
            TextStatus.DELIVERED,
        ]
    )
}


def is_forward(before: str, after: str) -> bool:
    """Whether a text may go from one status to another because of a report."""
    return RANK[TextStatus(after)] > RANK[TextStatus(before)]


def furthest(statuses: Iterable[str]) -> str:
    """The status that is furthest of these; "" of none."""
    return max((s for s in statuses if s), key=lambda s: RANK[TextStatus(s)], default="")
