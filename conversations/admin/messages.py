"""The pages of messages, and the transcript."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from agents import pauses, permissions
from agents.adminkit import ActorFilter, ActorKindFilter, Panel, Tool, by
from agents.display import NONE, actor_link, link, list_url, short, transcript_url, two, url_of, when
from agents.exceptions import AgentsError
from agents.models import Actor, TurnRecord
from conversations import conf, takeover, transcripts
from conversations.admin import turns
from conversations.admin.searching import SearchedAdmin
from conversations.admin.texts import inbound_badge, text_badge
from conversations.exceptions import BadMediaError
from conversations.media import MAX_SENT, Upload
from conversations.messages import COLUMNS
from conversations.models import Correspondent, InboundText, Message, OutboundText, Role, Seen
from scheduler.display import described
from scheduler.models import Attempt, Lane, Task

#: Rows beside a transcript: follow-ups, and texts.
SHOWN = 20
#: Characters of a text in a list.
START = 160


@admin.register(Message)
class MessageAdmin(SearchedAdmin):
    list_display = ["start_", "role_", "actor_", "at_"]
    list_filter = [ActorFilter, by("role", Role), ActorKindFilter]
    list_select_related = ["actor"]
    search_fields = ["content"]
    search_help_text = 'Words of the message; "a phrase", -without, or'

    def get_search_results(
        self, request: HttpRequest, rows: QuerySet[Message], text: str
    ) -> tuple[QuerySet[Message], bool]:
        return (rows.filter(pk__in=self.found(request, rows, text)) if text.strip() else rows), False

    deferred = ("content", "parts", "tool_calls", "metadata")
    fieldsets: ClassVar[Any] = [(None, {"fields": ["actor_", ("seq_", "role_", "at")]})]

    def rows_of_list(self, request: HttpRequest, rows: QuerySet[Message]) -> QuerySet[Message]:
        return rows.annotate(start=Left("content", Value(START)), calls=F("tool_calls__0__name"))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.transcript)
        return [
            path("transcript/<int:actor_id>/", view, name="conversations_transcript"),
            path(
                "transcript/<int:actor_id>/operate/",
                self.admin_site.admin_view(require_POST(self.operate)),
                name="conversations_operate",
            ),
            *super().get_urls(),
        ]

    def transcript(self, request: HttpRequest, actor_id: int) -> HttpResponse:
        """An actor's conversation: a page of its log, with its follow-ups and texts."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        actors = permissions.visible(request.user, Actor.objects.all())
        actor = get_object_or_404(actors, pk=actor_id)
        Seen.objects.note(request.user, actor.pk, actor.seq)
        may = request.user.has_perm
        sms = may("conversations.view_inboundtext") and may("conversations.view_outboundtext")
        seq, version = _number(request, "seq"), _number(request, "version")
        shown = transcripts.page_of(actor.pk, actor.seq, number=_number(request, "page"), seq=seq)
        if may("agents.view_turnrecord"):
            turns.add_turns(actor, shown, texts=sms)
        context = {
            **self.admin_site.each_context(request),
            "title": actor.name,
            "subtitle": None,
            "opts": self.opts,
            "actor": actor,
            "actor_url": url_of(actor),
            "running": actor.token is not None,
            "page": shown,
            "chosen": seq,
            "hold": pauses.hold_of(actor),
            "takeover": takeover.current(actor.pk),
            "may_take_over": may("agents.take_over_actor"),
            "answer_key": uuid.uuid4().hex,
            "sendable": ",".join(conf.get("SMS_MEDIA_TYPES")),
            "most_files": MAX_SENT,
            "most_bytes": conf.get("MAX_MEDIA_BYTES"),
            "state": turns.state_panel(request, actor, version) if may("agents.view_turnrecord") else None,
            "ways": self._ways(request, actor),
            "tasks": _follow_ups(actor) if may("scheduler.view_task") else None,
            "tasks_url": list_url(Task, actor=actor.pk),
            "texts": _texts(actor) if sms else None,
            "correspondent": Correspondent.objects.filter(actor_id=actor.pk).first() if sms else None,
            "media": self.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "conversations/transcript.html", context)

    def operate(self, request: HttpRequest, actor_id: int) -> HttpResponse:
        """Takes the conversation over, answers in it, releases it; then its page again."""
        actors = permissions.visible(request.user, Actor.objects.only("kind", "name"))
        actor = get_object_or_404(actors, pk=actor_id)
        if not permissions.may(request.user, "agents.take_over_actor", actor.kind):
            raise PermissionDenied
        by, words = request.user.get_username(), request.POST
        try:
            match words.get("verb"):
                case "take_over":
                    reason = words.get("reason", "")
                    takeover.take_over(actor.pk, by=by, reason=reason, stop=bool(words.get("stop")))
                    said = "Taken over"
                case "answer":
                    seq = takeover.answer(
                        actor.kind,
                        actor.name,
                        words.get("text", ""),
                        by=by,
                        files=_uploads(request),
                        key=words.get("key", "")[:64],
                    )
                    said = f"Answered with message {seq}"
                case "release":
                    takeover.release(actor.pk, by=by, reason=words.get("reason", ""))
                    said = "Released"
                case _:
                    messages.error(request, "There is no such verb.")
                    said = ""
        except (AgentsError, Actor.DoesNotExist) as error:
            messages.error(request, str(error))
        else:
            if said:
                LogEntry.objects.log_actions(request.user.pk, [actor], CHANGE, said)  # type: ignore[arg-type]
        return HttpResponseRedirect(transcript_url(actor.pk))

    def _ways(self, request: HttpRequest, actor: Actor) -> list[Tool]:
        """Where else there is something of this actor."""
        lists = {
            "scheduler.view_task": ("Tasks", Task),
            "scheduler.view_attempt": ("Attempts", Attempt),
            "agents.view_turnrecord": ("Turns", TurnRecord),
            "conversations.view_outboundtext": ("Texts", OutboundText),
        }
        return [
            Tool("Actor", url_of(actor)),
            *(
                Tool(label, list_url(model, actor=actor.pk))
                for permission, (label, model) in lists.items()
                if request.user.has_perm(permission)
            ),
        ]

    def tools(self, request: HttpRequest, obj: Message) -> Iterable[Tool]:
        yield Tool("In the transcript", transcript_url(obj.actor_id, seq=obj.seq))

    def panels(self, request: HttpRequest, obj: Message) -> Iterable[Panel]:
        row = {name: getattr(obj, name) for name in ("pk", *COLUMNS)}
        shown = transcripts.entries([row], limit=len(obj.content))
        yield Panel("Message", "conversations/_messages.html", {"entries": shown, "actor": obj.actor})

    @admin.display(description="no.")
    def seq_(self, obj: Message) -> str:
        return f"#{obj.seq}"

    @admin.display(description="actor")
    def actor_(self, obj: Message) -> SafeString | str:
        place = f"#{obj.seq} in the transcript"
        return two(actor_link(obj.actor), link(transcript_url(obj.actor_id, seq=obj.seq), place))

    @admin.display(description="role")
    def role_(self, obj: Message) -> SafeString:
        return format_html('<span class="agents-role" data-role="{}">{}</span>', obj.role, obj.role)

    @admin.display(description="message")
    def start_(self, obj: Any) -> SafeString | str:
        text = short(obj.start, START - 20)
        if not text and obj.calls:
            text = f"asks for {short(str(obj.calls), 60)}"
        return format_html('<a href="{}" dir="auto">{}</a>', url_of(obj), text or NONE)

    @admin.display(description="at")
    def at_(self, obj: Message) -> SafeString | str:
        return when(obj.at)


def _follow_ups(actor: Actor) -> list[dict[str, Any]]:
    """What the actor has before it: parked tasks first, then what is due, soonest first."""
    tasks = Task.objects.filter(actor_id=actor.pk).exclude(lane=Lane.HOOK).defer("payload")
    return [described(task) for task in tasks.order_by("status", "due_at")[:SHOWN]]


def _texts(actor: Actor) -> list[dict[str, Any]]:
    """The newest texts in both directions, the newest first."""
    inbound = InboundText.objects.filter(actor_id=actor.pk).order_by("-pk")[:SHOWN]
    outbound = OutboundText.objects.filter(actor_id=actor.pk).order_by("-pk")[:SHOWN]
    both: list[tuple[dt.datetime, InboundText | OutboundText]] = [
        *((text.received_at, text) for text in inbound),
        *((text.created_at, text) for text in outbound),
    ]
    newest = sorted(both, key=lambda pair: pair[0], reverse=True)[:SHOWN]
    return [
        {
            "status": text_badge(text) if isinstance(text, OutboundText) else inbound_badge(text),
            "when": when(at),
            "url": url_of(text),
            "start": short(text.text, 160),
            "error": text.error,
        }
        for at, text in newest
    ]


def _uploads(request: HttpRequest) -> list[Upload]:
    """The files of a form; none that was left empty. Raises BadMediaError before too much of it is read."""
    files = [file for file in request.FILES.getlist("files") if file.name]
    if sum(file.size or 0 for file in files) > conf.get("MAX_MEDIA_BYTES"):
        raise BadMediaError(f"the files of an answer have {conf.get('MAX_MEDIA_BYTES'):,} bytes at most")
    return [Upload(str(file.name), file.content_type or "", file.read()) for file in files]


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
