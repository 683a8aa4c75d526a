"""The pages of texts, in and out, and of consent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents.adminkit import ActorFilter, ActorKindFilter, Panel, ReadOnlyAdmin, Tool, by
from agents.display import NONE, actor_link, badge, short, transcript_url, two, url_of, when
from conversations import inbox, outbox
from conversations.models import (
    Consent,
    ConsentSource,
    ConsentState,
    InboundStatus,
    InboundText,
    OutboundText,
    TextStatus,
)

#: Texts that one action takes, and reports that one text's page shows.
MOST = 500
REPORTS = 100

TONES = {
    TextStatus.QUEUED: "",
    TextStatus.SENDING: "busy",
    TextStatus.UNKNOWN: "bad",
    TextStatus.SENT: "good",
    TextStatus.UNCONFIRMED: "good",
    TextStatus.FAILED: "bad",
    TextStatus.UNDELIVERED: "bad",
    TextStatus.DELIVERED: "good",
}
INBOUND_TONES = {
    InboundStatus.ACCEPTED: "good",
    InboundStatus.KEYWORD: "",
    InboundStatus.HELD: "bad",
    InboundStatus.WAITING: "busy",
}


class TextAdmin(ReadOnlyAdmin):
    """What both directions have in common."""

    list_select_related = ["actor"]
    search_fields = ["from_number", "to_number"]
    search_help_text = "A part of a number"

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Who may change texts may also say what becomes of one."""
        return bool(request.user.has_perm(f"conversations.change_{self.opts.model_name}"))

    def _operate(
        self, request: HttpRequest, rows: QuerySet[Any], verb: Callable[[Any], bool], said: str
    ) -> None:
        """Does ``verb`` to each of the chosen texts, writes who did it, and says how many it was."""
        done = [row for row in rows.order_by("pk")[:MOST] if verb(row)]
        if done:
            LogEntry.objects.log_actions(request.user.pk, done, CHANGE, said)  # type: ignore[arg-type]
        messages.info(request, f"{said}: {len(done)} of the chosen texts.")

    @admin.display(description="actor")
    def actor_(self, obj: InboundText | OutboundText) -> SafeString | str:
        return actor_link(obj.actor)

    @admin.display(description="text")
    def text_(self, obj: InboundText | OutboundText) -> SafeString:
        return format_html('<a href="{}" dir="auto">{}</a>', url_of(obj), short(obj.text, 120) or NONE)

    @admin.display(description="numbers")
    def numbers(self, obj: InboundText | OutboundText) -> SafeString | str:
        return two(f"from {obj.from_number}", f"to {obj.to_number}")

    @admin.display(description="text")
    def whole(self, obj: InboundText | OutboundText) -> SafeString:
        return format_html('<div class="agents-text" dir="auto">{}</div>', obj.text)

    def tools(self, request: HttpRequest, obj: InboundText | OutboundText) -> Iterable[Tool]:
        if obj.actor_id and request.user.has_perm("conversations.view_message"):
            yield Tool("Transcript", transcript_url(obj.actor_id))


@admin.register(InboundText)
class InboundTextAdmin(TextAdmin):
    list_display = ["text_", "status_", "numbers", "received"]
    list_filter = [ActorFilter, by("status", InboundStatus), ActorKindFilter]
    actions: Any = ["release"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["actor_", ("from_number", "to_number"), "received_at", "whole", "media"]}),
        ("What became of it", {"fields": ["status_", "meaning", "keyword", "error", "due_at"]}),
        ("Provider", {"fields": ["provider", "event_id", "message_id", "sent_at", "kind"]}),
    ]

    @admin.action(description="Give held and waiting texts to their agents", permissions=["operate"])
    def release(self, request: HttpRequest, rows: QuerySet[InboundText]) -> None:
        self._operate(request, rows, lambda row: inbox.release(row) == "accepted", "Given to its agent")

    @admin.display(description="status")
    def status_(self, obj: InboundText) -> SafeString:
        return inbound_badge(obj)

    @admin.display(description="means")
    def meaning(self, obj: InboundText) -> str:
        return InboundStatus(obj.status).label if obj.status in InboundStatus.values else obj.status

    @admin.display(description="received")
    def received(self, obj: InboundText) -> SafeString | str:
        return two(when(obj.received_at), actor_link(obj.actor))


@admin.register(OutboundText)
class OutboundTextAdmin(TextAdmin):
    list_display = ["text_", "status_", "numbers", "created"]
    list_filter = [ActorFilter, by("status", TextStatus), ActorKindFilter]
    search_fields = ["from_number", "to_number", "=provider_id"]
    search_help_text = "A part of a number, or the provider's id"
    fieldsets: ClassVar[Any] = [
        (
            None,
            {"fields": ["actor_", ("to_number", "from_number"), ("status_", "meaning"), "whole", "media"]},
        ),
        ("Sending", {"fields": [("created_at", "due_at"), ("claimed_at", "sent_at"), "attempts", "error"]}),
        ("Cost", {"fields": ["encoding", "segments", "parts", "cost", "currency"]}),
        ("Provider", {"fields": ["provider", "provider_id", "uid", "reason", "finished_at", "ask_at"]}),
    ]
    actions: Any = ["send_again"]

    @admin.action(description="Send again what failed, or may not have been sent", permissions=["operate"])
    def send_again(self, request: HttpRequest, rows: QuerySet[OutboundText]) -> None:
        self._operate(request, rows, outbox.resend, "Sent again")

    def panels(self, request: HttpRequest, obj: OutboundText) -> Iterable[Panel]:
        events = obj.events.order_by("pk")[:REPORTS]
        yield Panel("Reports", "conversations/_reports.html", {"events": events})

    @admin.display(description="created")
    def created(self, obj: OutboundText) -> SafeString | str:
        return two(when(obj.created_at), actor_link(obj.actor))

    @admin.display(description="status")
    def status_(self, obj: OutboundText) -> SafeString:
        return text_badge(obj)

    @admin.display(description="means")
    def meaning(self, obj: OutboundText) -> str:
        return TextStatus(obj.status).label if obj.status in TextStatus.values else obj.status


@admin.register(Consent)
class ConsentAdmin(ReadOnlyAdmin):
    """Who wants no texts from which of our numbers. What people write changes it, and manage.py consent."""

    kind_field = None
    list_display = ["numbers", "state_", "said", "changed"]
    list_filter = [by("state", ConsentState), by("source", ConsentSource)]
    search_fields = ["their_number", "our_number"]
    search_help_text = "A part of a number"
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["numbers", "state_", "source", "word", "changed_at", "created_at"]}),
        ("Hash", {"fields": ["pair"]}),
    ]

    def panels(self, request: HttpRequest, obj: Consent) -> Iterable[Panel]:
        yield Panel("History", "conversations/_consent.html", {"changes": obj.changes.order_by("at", "pk")})

    @admin.display(description="numbers")
    def numbers(self, obj: Consent) -> SafeString | str:
        theirs = format_html('<a href="{}">{}</a>', url_of(obj), obj.their_number or "erased")
        return two(theirs, f"from {obj.our_number}" if obj.our_number else "")

    @admin.display(description="state")
    def state_(self, obj: Consent) -> SafeString:
        return badge(
            obj.get_state_display().split(":")[0], "bad" if obj.state == ConsentState.OPTED_OUT else "good"
        )

    @admin.display(description="said by")
    def said(self, obj: Consent) -> SafeString | str:
        return two(obj.source, short(obj.word, 40))

    @admin.display(description="since")
    def changed(self, obj: Consent) -> SafeString | str:
        return when(obj.changed_at)


def text_badge(text: OutboundText) -> SafeString:
    known = text.status in TextStatus.values
    return badge(text.status, TONES[TextStatus(text.status)] if known else "")


def inbound_badge(text: InboundText) -> SafeString:
    """ "in" for a text that an agent got; else what became of it."""
    if text.status == InboundStatus.ACCEPTED:
        return badge("in")
    known = text.status in InboundStatus.values
    return badge(text.keyword or text.status, INBOUND_TONES[InboundStatus(text.status)] if known else "")
